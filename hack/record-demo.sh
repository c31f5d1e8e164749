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


# Runs hack/demo.sh and draws what it prints: docs/demo.svg, the picture of the README. Like the
# demo, it uses the cluster of KUBECONFIG, or one of its own.

set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

trap 'rm -f docs/demo.svg.new' EXIT
hack/demo.sh 2>&1 | tee >(cat >&2) |
    go run ./hack/tools/demosvg "From the command line" "A time means what a person means, or it is refused" "Tonight at 2 am, as a manifest" "What would fail at 2 am is reported now" \
        "What starts until tomorrow, and what will not, in one table" >docs/demo.svg.new
mv docs/demo.svg.new docs/demo.svg
