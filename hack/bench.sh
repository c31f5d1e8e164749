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


# Measures the controller, each scenario in a new control plane, and prints a table of figures for each. node:NUMBER needs
# Linux and root. All scenarios together take two hours.
#
# Usage: hack/bench.sh [--rounds N] [--against COMMIT] [SCENARIO:NUMBER...]
#   hack/bench.sh burst:1000                        a single scenario; the figures are medians
#   hack/bench.sh --rounds 1 burst:1000             measured once
#   hack/bench.sh --against HEAD~20 burst:1000      compared with the controller of another commit: both are measured in
#                                                   turn in the same cluster, which has the CRDs of this checkout

cd "$(dirname "${BASH_SOURCE[0]}")/.."
OPTIMIZE=yes
# shellcheck source=hack/localcluster.sh
source hack/localcluster.sh

options=() commit=""
while [[ "${1:-}" == --* ]]; do
    case "$1" in
        --rounds) options+=(-rounds="$2") ;;
        --against) commit="$2" ;;
        *) sed -n 's/^# Usage: //p' "$0" && exit 2 ;;
    esac
    shift 2
done
if [[ $# == 0 ]]; then
    set -- lone:200 burst:100 burst:1000 burst:10000 burst-long:100 burst-long:1000 burst-long:10000 cronjob:100 cronjob:1000 cronats:1000 \
        nodes:1000 tenants:10000 pending:1000 pending:10000 pending:100000 memory:100000 hostile:100 node:1 node:50
fi

tmp="$(mktemp -d)"
finish() {
    local code=$?
    trap - EXIT
    stop_jobs
    [[ ! -e "${tmp}/worktree" ]] || git worktree remove --force "${tmp}/worktree"
    if [[ "${code}" == 0 ]]; then
        rm -rf "${tmp}"
    else
        echo "The logs are in ${tmp}." >&2
    fi
    exit "${code}"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP
build_localcluster "${tmp}/cnat-controller"
compiling go build -o "${tmp}/bench" ./hack/bench
if [[ -n "${commit}" ]]; then
    git worktree add --quiet --detach "${tmp}/worktree" "${commit}"
    go_build "The controller of ${commit}" "${tmp}/worktree" "${tmp}/against" -- .
    options+=(-against="${tmp}/against")
fi

for scenario; do
    echo "=== ${scenario}" >&2
    node=()
    if [[ "${scenario}" == node:* ]]; then
        node=(--node)
        install_node_packages
    fi
    "${bin}/localcluster" run "${node[@]}" --dir="${tmp}/cluster" -- bash -o errexit -c '
        kubectl apply -f artifacts/examples/cnat-crd.yaml -f artifacts/deploy/roles.yaml -f hack/bench/record.yaml >/dev/null
        until kubectl get at >/dev/null 2>&1 && kubectl get records >/dev/null 2>&1; do sleep 1; done
        "$@"' bash "${tmp}/bench" -controller="${tmp}/cnat-controller" -scenario="${scenario%:*}" -number="${scenario#*:}" "${options[@]}" | tee -a "${tmp}/results"
done
[[ $# == 1 ]] || cat "${tmp}/results"
