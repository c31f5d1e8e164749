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


# Makes what a release has beside the image and kubectl at: the manifests, the policies alone,
# the Helm chart, the OLM bundle, which is validated, and the notes.
#
# Usage: hack/build-packages.sh DIR IMAGE@DIGEST

set -o errexit -o nounset -o pipefail

if [[ $# != 2 || "$2" != *@sha256:* ]]; then
    sed -n 's/^# Usage: //p' "$0" >&2
    exit 2
fi
mkdir -p "$1"
dir="$(cd "$1" && pwd)"
image="$2"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tmp="$(mktemp -d)"
trap 'rm -rf "${tmp}"' EXIT
version="$(sed -n 's/^const Version = "\(.*\)"$/\1/p' pkg/version/version.go)"

# pack FILE DIR NAME... makes an archive; the same input makes the same archive.
pack() {
    tar --create --gzip --file="$1" --directory="$2" --sort=name --owner=0 --group=0 --numeric-owner \
        --mtime="@$(git log -1 --format=%ct)" "${@:3}"
}

cp -r artifacts "${tmp}/"
for file in install.yaml deploy/deployment.yaml base/base.yaml; do
    sed --in-place "s#image: cnat-controller:.*#image: ${image}#" "${tmp}/artifacts/${file}"
    grep -qF "image: ${image}" "${tmp}/artifacts/${file}"
done
sed --in-place "s#^  repository: .*#  repository: ${image%@*}#; s#^  digest: .*#  digest: ${image#*@}#" "${tmp}/artifacts/chart/values.yaml"
cp "${tmp}/artifacts/install.yaml" "${dir}/"
awk 'FNR == 1 { print "---" } 1' artifacts/deploy/policy/*.yaml >"${dir}/policies.yaml"
pack "${dir}/artifacts.tar.gz" "${tmp}" artifacts

go -C hack/tools/helm build -o "${tmp}/" helm.sh/helm/v4/cmd/helm
"${tmp}/helm" package "${tmp}/artifacts/chart" --destination="${dir}" 2>"${tmp}/log" || { cat "${tmp}/log" >&2 && exit 1; }
# Not in a pipe: grep ends at the first match, and helm would fail to write the rest.
"${tmp}/helm" template cnat "${dir}/cnat-${version#v}.tgz" >"${tmp}/rendered"
grep -qF "image: ${image}" "${tmp}/rendered"

bundle="${dir}/bundle"
mkdir -p "${bundle}"
cp -r artifacts/olm/metadata artifacts/olm/tests "${bundle}/"
{
    echo "FROM scratch"
    # OLM reads them there, too.
    sed -n 's/^  \(operators\.[^:]*\): /LABEL \1=/p' artifacts/olm/metadata/annotations.yaml
    printf 'COPY %s /%s/\n' manifests{,} metadata{,} tests{,}
} >"${bundle}/Dockerfile"
go -C hack/tools/olm run . "${bundle}" "${PWD}/artifacts/olm/csv.yaml" "${dir}/install.yaml" \
    "${PWD}"/artifacts/examples/cnat-example{,-cronat,-freeze}.yaml
pack "${dir}/cnat-olm-bundle.tar.gz" "${dir}" bundle

# The section of this version.
awk -v version="${version}" '/^## / { of = $2; sub(/,$/, "", of); next } of == version' CHANGELOG.md >"${dir}/notes.md"
grep -q . "${dir}/notes.md" || { echo "CHANGELOG.md has no section ${version}" >&2 && exit 1; }
