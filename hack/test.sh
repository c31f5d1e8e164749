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


# Usage: hack/test.sh [unit|integration|e2e]... [-run PATTERN] [--race] [--kubernetes VERSION]
#
# Three layers of tests; without arguments, all of them run:
#   unit          with fakes and a simulated clock
#   integration   the controller against a real API server, with a simulated kubelet
#   e2e           the controller and real containers on a real node
# hack/localcluster.sh starts a cluster for each of the last two; $KUBECONFIG is never used.
# A layer that cannot run here is SKIPPED, which is a failure with CI=true.
#
# With --kubernetes, such as v1.34.4, the API server, the controller-manager and the
# scheduler of the integration layer have that version. Compiling them takes some minutes
# the first time. There is no e2e layer then.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/localcluster.sh
source hack/localcluster.sh

layers=()
run=""
race=""
kubernetes=""
while (($# > 0)); do
    case "$1" in
    unit | integration | e2e) layers+=("$1") ;;
    -run) run="${2:?-run needs a pattern}" && shift ;;
    -run=*) run="${1#*=}" ;;
    --race | -race) race=-race ;;
    --kubernetes) kubernetes="${2:?--kubernetes needs a version}" && shift ;;
    --kubernetes=*) kubernetes="${1#*=}" ;;
    *)
        sed -n 's/^# Usage: //p' "$0" >&2
        exit 2
        ;;
    esac
    shift
done
((${#layers[@]} > 0)) || layers=(unit integration e2e)
if [[ -n "${kubernetes}" && ! "${kubernetes}" =~ ^v1\.[0-9]+\.[0-9]+$ ]]; then
    echo "${kubernetes} is not a version such as v1.34.4" >&2
    exit 2
fi

skipped=0
skip() {
    echo "SKIPPED $1: $2"
    skipped=1
}
tmp="$(mktemp -d)"
trap 'stop_jobs; rm -rf "${tmp}"' EXIT
trap 'exit 130' INT TERM HUP

# with_cluster TAG [FLAG...] runs the tests with a tag in their own cluster.
with_cluster() {
    local tag="$1"
    shift
    if [[ -n "${kubernetes}" ]]; then
        build_control_plane "${kubernetes}"
    else
        build_localcluster
    fi
    # Before the cluster starts, because that keeps the processors busy.
    compiling go test ${race:+-race} -tags="${tag}" -c -o "${tmp}/${tag}.test" ./hack/integration
    # Tests wait most of the time.
    (cd hack/integration && TMPDIR="${tmp}" compiling "${bin}/localcluster" run "$@" -- \
        "${tmp}/${tag}.test" -test.timeout=20m -test.parallel=32 ${run:+-test.run="${run}"})
}

if [[ -n "${race}" ]]; then
    cgo=1 # which the race detector needs, and a C compiler
    if ! command -v gcc >/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends gcc libc6-dev
    fi
fi

for layer in "${layers[@]}"; do
    echo "=== ${layer}"
    case "${layer}" in
    unit)
        compiling go test ${race:+-race} ${run:+-run="${run}"} ./...
        ;;
    integration)
        if [[ "$(uname -s)" == Linux ]]; then
            with_cluster integration
        else
            skip integration "hack/localcluster runs on Linux only"
        fi
        ;;
    e2e)
        if [[ -n "${kubernetes}" ]]; then
            skip e2e "--kubernetes is for clusters without a node"
        elif [[ "$(uname -s)" == Linux && "$(id -u)" == 0 ]]; then
            install_node_packages
            cgo=0 go_build "Helm" "${root}/hack/tools/helm" "${tmp}/helm" -- helm.sh/helm/v4/cmd/helm
            export PATH="${tmp}:${PATH}"
            with_cluster e2e --node
        else
            skip e2e "a node needs Linux and root"
        fi
        ;;
    esac
done

if [[ "${skipped}" == 1 && "${CI:-}" == true ]]; then
    echo "With CI=true, skipped layers are an error." >&2
    exit 1
fi
