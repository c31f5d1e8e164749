#!/usr/bin/env bash
#
# Copyright The cnat Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.


# The soak tests: thousands of Ats while three controllers, the API server and etcd are killed
# repeatedly; all interleavings of hack/explore.sh; histories and
# mutants of hack/simulate.sh. They take tens of minutes and report their results.
#
# Usage: hack/soak.sh [FLAG...], with flags of hack/integration/soak_test.go

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/localcluster.sh
source hack/localcluster.sh

tmp="$(mktemp -d)"
trap 'stop_jobs; rm -rf "${tmp}"' EXIT
trap 'exit 130' INT TERM HUP
build_localcluster
cgo=1
compiling go test -race -tags=integration -c -o "${tmp}/integration.test" ./hack/integration

(cd hack/integration && TMPDIR="${tmp}" compiling "${bin}/localcluster" run -- \
    "${tmp}/integration.test" -test.timeout=30m -test.v -test.run='^TestSoak$' -soak-ats=2000 -soak-for=2m -soak-kill-every=5s "$@")
hack/explore.sh
hack/simulate.sh -for 5m
hack/simulate.sh -mutants
