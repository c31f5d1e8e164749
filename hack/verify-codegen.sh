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


# Fails if the generated files differ from the output of hack/update-codegen.sh, which it
# runs in a copy of the checkout.

set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

copy="$(mktemp -d)"
trap 'rm -rf "${copy}"' EXIT

git ls-files --cached --others --exclude-standard -z | xargs -0 cp --parents --no-dereference --target-directory="${copy}"
"${copy}/hack/update-codegen.sh"

for generated in pkg artifacts docs go.mod go.sum Dockerfile README.md; do
    if ! diff --recursive --unified "${generated}" "${copy}/${generated}"; then
        echo "The generated files are out of date: run hack/update-codegen.sh." >&2
        exit 1
    fi
done
echo "The generated files are up to date."
