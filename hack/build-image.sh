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


# Builds the image of the Dockerfile without Docker, as an archive that kind, minikube, k3s, docker and
# podman load. It is for the processor of this machine.
#
# Usage: hack/build-image.sh FILE

set -o errexit -o nounset -o pipefail

if [[ $# != 1 ]]; then
    sed -n 's/^# Usage: //p' "$0" >&2
    exit 2
fi
mkdir -p "$(dirname "$1")"
file="$(cd "$(dirname "$1")" && pwd)/$(basename "$1")"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tmp="$(mktemp -d)"
trap 'rm -rf "${tmp}"' EXIT
revision="$(git rev-parse HEAD)"
CGO_ENABLED=0 GOOS=linux go build -trimpath \
    -ldflags="-s -w -X programming-kubernetes.info/cnat-controller/pkg/version.revision=${revision}" -o "${tmp}/cnat-controller" .
image="$(sed -n 's/^ *image: //p' artifacts/deploy/deployment.yaml)"
go -C hack/localcluster run ./save-image "${image}=${tmp}/cnat-controller" "${file}"
echo "${file} has the image ${image}"
