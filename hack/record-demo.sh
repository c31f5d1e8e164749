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

# The paths of the machine are not for the picture.
trap 'rm -f docs/demo.svg.new' EXIT
hack/demo.sh 2>&1 | tee >(cat >&2) | sed -E 's#--filename=[^ ]*/#--filename=#' |
    go run ./hack/tools/demosvg "Watching it" "The same without YAML" "A time means what a person means, or it is refused" "What would fail tomorrow is reported today" >docs/demo.svg.new
mv docs/demo.svg.new docs/demo.svg
