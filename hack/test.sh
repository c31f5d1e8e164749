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


# Tests in three layers:
#   unit          with fakes and a played clock
#   integration   the controller against a real API server, the kubelet played
#   e2e           the controller and real containers on a real node
# The clusters are built and started by hack/localcluster, and taken down again;
# $KUBECONFIG is never touched. A layer that cannot run here is SKIPPED, which with
# CI=true is a failure.

set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

dir=""
tmp="$(mktemp -d)"

finish() {
    local code=$?
    trap - EXIT
    if [[ -n "${dir}" ]]; then
        "${tmp}/localcluster" down --dir="${dir}" || code=1
    fi
    if [[ "${code}" == 0 ]]; then
        rm -rf "${tmp}"
    else
        echo "The logs of the clusters are in ${tmp}." >&2
    fi
    exit "${code}"
}
trap finish EXIT
trap 'exit 130' INT TERM

skipped=0
skip() {
    echo "SKIPPED $1: $2"
    skipped=1
}

# with_cluster TAG [UP-FLAG...] runs the tests of a tag in a cluster of their own.
with_cluster() {
    local tag="$1" exports
    exports="$("${tmp}/localcluster" up --dir="${tmp}/${tag}" "${@:2}")"
    dir="${tmp}/${tag}"
    (
        eval "${exports}"
        # Most of the time they wait.
        go test -count=1 -timeout=20m -parallel=16 -tags="${tag}" ./hack/integration
    )
    "${tmp}/localcluster" down --dir="${dir}"
    dir=""
}

command -v go >/dev/null || { echo "hack/test.sh needs Go." >&2; exit 1; }
if ! command -v gcc >/dev/null; then
    # The race detector needs a C compiler.
    if [[ "$(id -u)" != 0 ]] || ! command -v apt-get >/dev/null; then
        echo "hack/test.sh needs gcc, for the race detector." >&2
        exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends gcc libc6-dev
fi

echo "=== unit"
CGO_ENABLED=0 go build -o "${tmp}/" . # as it is deployed
go -C hack/localcluster build -o "${tmp}/localcluster" .
go test -race ./...
go -C hack/localcluster test -race ./...
go -C hack/tools/promcheck test ./...

echo "=== integration"
if [[ "$(uname -s)" == Linux ]]; then
    with_cluster integration
else
    skip integration "hack/localcluster runs on Linux only"
fi

echo "=== e2e"
if [[ "$(uname -s)" == Linux && "$(id -u)" == 0 ]]; then
    with_cluster e2e --node
else
    skip e2e "a node needs Linux and root"
fi

if [[ "${skipped}" == 1 && "${CI:-}" == true ]]; then
    echo "With CI=true nothing may be skipped." >&2
    exit 1
fi
