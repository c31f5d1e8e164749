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


# Makes an OLM bundle of artifacts/olm and the manifests that are installed without OLM, and
# validates it.
#
# Usage: hack/build-bundle.sh DIR

set -o errexit -o nounset -o pipefail

if (($# != 1)); then
    sed -n 's/^# Usage: //p' "$0" >&2
    exit 2
fi
mkdir -p "$1"
dir="$(cd "$1" && pwd)"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cp -r artifacts/olm/metadata artifacts/olm/tests "${dir}/"
{
    echo "FROM scratch"
    # OLM reads them there, too.
    sed -n 's/^  \(operators\.[^:]*\): /LABEL \1=/p' artifacts/olm/metadata/annotations.yaml
    printf 'COPY %s /%s/\n' manifests{,} metadata{,} tests{,}
} >"${dir}/Dockerfile"
go -C hack/tools/olm run . "${dir}" "${PWD}/artifacts/olm/csv.yaml" "${PWD}/artifacts/install.yaml" \
    "${PWD}"/artifacts/examples/cnat-example{,-cronat}.yaml
