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


# The soak: thousands of Ats while three controllers, the API server and etcd are
# killed again and again; and ten Ats beside ten thousand. It takes some minutes, and
# reports what it found.
#
# Usage: hack/soak.sh [FLAG...], with flags of hack/integration/soak_test.go

set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

tmp="$(mktemp -d)"
finish() {
    local code=$?
    trap - EXIT
    "${tmp}/localcluster" down --dir="${tmp}/cluster" || code=1
    if [[ "${code}" == 0 ]]; then
        rm -rf "${tmp}"
    else
        echo "The logs of the cluster are in ${tmp}." >&2
    fi
    exit "${code}"
}
go -C hack/localcluster build -o "${tmp}/localcluster" .
trap finish EXIT
trap 'exit 130' INT TERM

exports="$("${tmp}/localcluster" up --dir="${tmp}/cluster")"
eval "${exports}"
go test -count=1 -timeout=15m -tags=integration -run='^(TestSoak|TestTenants)$' -v ./hack/integration \
    -soak-ats=2000 -soak-tenant=10000 -soak-for=2m -soak-api-servers=5 -soak-etcds=2 -soak-kill-every=5s "$@"
