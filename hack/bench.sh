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


# Measures the controller, each scenario in a new control plane. Prints each figure as a
# line of JSON, and finally a table. node:NUMBER needs Linux and root. All scenarios together take two hours.
#
# Usage: hack/bench.sh [SCENARIO:NUMBER...]
#   hack/bench.sh burst:1000      a single scenario
#   hack/bench.sh scale:45000     for docs/scaling.md, not among all scenarios
#   PAIRS=1 hack/bench.sh ...     measure a burst once; without it, report the median of five
#   PLOT=FILE.svg hack/bench.sh   also draw the series

cd "$(dirname "${BASH_SOURCE[0]}")/.."
OPTIMIZE=yes
# shellcheck source=hack/localcluster.sh
source hack/localcluster.sh

if [[ $# == 0 ]]; then
    set -- lone:200 burst:100 burst:1000 burst:10000 burst-long:100 burst-long:1000 burst-long:10000 distant:1000 \
        cronjob:100 cronjob:1000 cronats:1000 nodes:1000 tenants:10000 hostile:100 pending:1000 pending:10000 pending:100000 memory:100000 node:1 node:50 writes:2000
fi

tmp="$(mktemp -d)"
finish() {
    local code=$?
    trap - EXIT
    stop_jobs
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
compiling go -C hack/bench build -o "${tmp}/bench" .

for scenario; do
    echo "=== ${scenario}" >&2
    node=()
    if [[ "${scenario}" == node:* ]]; then
        node=(--node)
        install_node_packages
    fi
    "${bin}/localcluster" run "${node[@]}" --dir="${tmp}/cluster" -- bash -o errexit -c '
        kubectl apply -f artifacts/examples/cnat-crd.yaml -f artifacts/deploy/roles.yaml >/dev/null
        until kubectl get at >/dev/null 2>&1; do sleep 1; done
        "$@"' bash "${tmp}/bench" -controller="${tmp}/cnat-controller" -scenario="${scenario%:*}" -number="${scenario#*:}" ${PAIRS:+-pairs="${PAIRS}"} | tee -a "${tmp}/results"
done
"${tmp}/bench" -report="${tmp}/results" ${PLOT:+-plot="${PLOT}"}
