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

# Builds kubectl at for all platforms, and its krew manifest.
#
# Usage: hack/build-plugin.sh DIR URL [OS/ARCH...]
#
# Writes to DIR an archive for each platform, and at.yaml, which refers to them at URL.

set -o errexit -o nounset -o pipefail

if (($# < 2)); then
    sed -n 's/^# Usage: //p' "$0" >&2
    exit 2
fi
mkdir -p "$1"
dir="$(cd "$1" && pwd)"
url="$2"
shift 2
cd "$(dirname "${BASH_SOURCE[0]}")/.."
platforms=("$@")
((${#platforms[@]} > 0)) || platforms=({linux,darwin,windows}/{amd64,arm64})

tmp="$(mktemp -d)"
trap 'rm -rf "${tmp}"' EXIT
version="$(sed -n 's/^const Version = "\(.*\)"$/\1/p' pkg/version/version.go)"
revision="$(git rev-parse HEAD)"
cp LICENSE "${tmp}/"
edit=(-e "/^#/d" -e "s#VERSION#${version}#" -e "s#URL/#${url}/#")
for platform in "${platforms[@]}"; do
    os="${platform%/*}" arch="${platform#*/}"
    binary="kubectl-at"
    [[ "${os}" != windows ]] || binary="kubectl-at.exe"
    archive="${dir}/kubectl-at_${os}_${arch}.tar.gz"
    CGO_ENABLED=0 GOOS="${os}" GOARCH="${arch}" go build -trimpath \
        -ldflags="-s -w -X programming-kubernetes.info/cnat-controller/pkg/version.revision=${revision}" \
        -o "${tmp}/${binary}" ./cmd/kubectl-at
    # The archive is reproducible.
    tar --create --gzip --file="${archive}" --directory="${tmp}" --sort=name --owner=0 --group=0 --numeric-owner \
        --mtime="@$(git log -1 --format=%ct)" LICENSE "${binary}"
    edit+=(-e "s#SHA256_${os}_${arch}#$(sha256sum "${archive}" | cut -d' ' -f1)#")
    echo "${archive}"
done
sed "${edit[@]}" artifacts/krew/at.yaml >"${dir}/at.yaml"
