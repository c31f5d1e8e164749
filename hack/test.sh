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


# Usage: hack/test.sh [unit|integration|e2e]... [-run PATTERN] [-shuffle SEED] [--race] [--kubernetes VERSION]
#
# Three layers of tests; without arguments, all of them run:
#   unit          with fakes and a simulated clock
#   integration   the controller against a real API server, with a simulated kubelet
#   e2e           the controller and real containers on a real node
# hack/localcluster.sh starts a cluster for each of the last two; $KUBECONFIG is never used.
# A layer that cannot run here is SKIPPED, which is a failure with CI=true.
#
# The order of the tests is shuffled; -shuffle repeats one. The logs of a red run are kept.
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
shuffle=""
while (($# > 0)); do
    case "$1" in
    unit | integration | e2e) layers+=("$1") ;;
    -run) run="${2:?-run needs a pattern}" && shift ;;
    -run=*) run="${1#*=}" ;;
    -shuffle | --shuffle) shuffle="${2:?-shuffle needs a seed}" && shift ;;
    -shuffle=* | --shuffle=*) shuffle="${1#*=}" ;;
    --race | -race) race=-race ;;
    --kubernetes) kubernetes="${2:?--kubernetes needs a version}" && shift ;;
    --kubernetes=*) kubernetes="${1#*=}" ;;
    *)
        sed -n '/^# Usage: /,/^#$/s/^# *//p' "$0" >&2
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

skipped=""
helm="" # the job that compiles it
tmp="$(mktemp -d)"
logs="$(mktemp -d)" # of the layer that runs
finish() {
    local code=$?
    trap - EXIT
    stop_jobs
    rm -rf "${tmp}"
    if [[ "${code}" == 1 && -n "$(ls -A "${logs}")" ]]; then
        echo "The logs are in ${logs}." >&2
    else
        rm -rf "${logs}"
    fi
    exit "${code}"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

build_helm() { cgo=0 go_build "Helm" "${root}/hack/tools/helm" "${tmp}/helm" -- helm.sh/helm/v4/cmd/helm; }

# prepare LAYER compiles what a layer needs, and sets reason if it cannot run here.
prepare() {
    reason=""
    case "$1" in
    integration)
        [[ "$(uname -s)" == Linux ]] || reason="hack/localcluster runs on Linux only"
        ;;
    e2e)
        [[ -z "${kubernetes}" ]] || reason="--kubernetes is for clusters without a node"
        [[ "$(uname -s)" == Linux && "$(id -u)" == 0 ]] || reason="a node needs Linux and root"
        ;;
    esac
    if [[ -n "${reason}" || "$1" == unit ]]; then
        return
    fi
    if [[ -n "${kubernetes}" ]]; then
        build_control_plane "${kubernetes}"
    else
        build_localcluster
    fi
    if [[ "$1" == e2e ]]; then
        install_node_packages
        if [[ -n "${helm}" ]]; then
            wait "${helm}"
        else
            build_helm
        fi
    fi
    compiling go test ${race:+-race} -tags="$1" -c -o "${tmp}/$1.test" ./hack/integration
}

# run_layer LAYER SEED runs the tests of a layer.
run_layer() {
    local flags=() tests="${parallel}"
    # Collecting garbage less often takes a tenth less time.
    export GOGC=400
    case "$1" in
    unit)
        # hack/lint.sh runs vet.
        TMPDIR="${logs}" compiling go test -vet=off -count=1 -timeout=30m -shuffle="$2" ${race:+-race} ${run:+-run="${run}"} ./...
        return
        ;;
    # Three of these tests only wait for another cluster.
    e2e) flags=(--node) && tests=$((parallel + 3)) ;;
    esac
    (cd hack/integration && TMPDIR="${logs}" PATH="${tmp}:${PATH}" compiling "${bin}/localcluster" run "${flags[@]}" -- \
        "${tmp}/$1.test" -test.timeout="${timeout}" -test.parallel="${tests}" -test.shuffle="$2" ${run:+-test.run="${run}"})
}

if [[ -n "${race}" ]]; then
    cgo=1 # which the race detector needs, and a C compiler
    if ! command -v gcc >/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends gcc libc6-dev
    fi
fi
# Tests wait about half of the time. With more at once, requests take so long that leaders
# lose their leases.
processors="$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)"
parallel="$((6 * processors))"
# CI must not end a layer that hangs before Go does, which prints where.
timeout=30m

for layer in "${layers[@]}"; do
    prepare "${layer}"
    if [[ -n "${reason}" ]]; then
        echo "SKIPPED ${layer}: ${reason}"
        skipped=yes
        continue
    fi
    # These tests wait about half of the time: compile meanwhile what the next ones need.
    if [[ "${layer}" == integration && " ${layers[*]} " == *" e2e "* ]]; then
        { renice -n 19 "${BASHPID}" && build_helm; } >/dev/null &
        helm=$!
    fi
    seed="${shuffle:-$(date +%s)}"
    echo "=== ${layer}, with ${processors} processors, -shuffle=${seed}"
    start="${SECONDS}"
    run_layer "${layer}" "${seed}" || exit 1
    echo "=== ${layer} took $((SECONDS - start)) s"
    rm -rf "${logs:?}"/*
done
if [[ -n "${skipped}" && "${CI:-}" == true ]]; then
    echo "With CI=true, skipped layers are an error." >&2
    exit 1
fi
