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


# Simulates the whole program over days, with users, nodes and faults, and checks the promises:
# see docs/contributing/architecture.md#proof.
#
# Usage: hack/simulate.sh [-seed N] [-days D] [-for DURATION] [-trace FILE] [-v VERBOSITY] [-mutants]
#   hack/simulate.sh -seed 7 -trace /tmp/trace -v 4   one history, in a file with the logs of the controllers
#   hack/simulate.sh -for 1h                          histories with the next seeds, for an hour
#   hack/simulate.sh -mutants                         breaks the program in all known ways, and expects that it is noticed
#
# Without -seed, the first seed is the time. An odd seed gives the same history for some hours,
# until two timers end at the same instant or two handlers act on an event; an even one has preflights, whose order differs sooner.

set -o errexit -o nounset -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

flags=(-simulate-seed="$(date +%s)" -simulate-day=24h)
run='^TestSimulate$'
while (($# > 0)); do
    case "$1" in
    -mutants) run='^TestSimulateMutants$' && flags+=(-simulate-mutants) ;;
    -seed | -days | -for | -trace | -v) flags+=("-simulate-${1#-}=${2:?$1 needs a value}") && shift ;;
    *)
        sed -n '/^# Usage: /,/^$/s/^# *//p' "$0" >&2
        exit 2
        ;;
    esac
    shift
done
exec go test . -count=1 -timeout=0 -v -run="${run}" -args "${flags[@]}"
