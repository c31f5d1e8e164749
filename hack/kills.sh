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


# Finds out which tests notice each mutant, and updates the table in docs/contributing/kills.md.
#
# Usage: hack/kills.sh [-run PATTERN] [-unit]
#   hack/kills.sh -run '^explore: .* released'   only these rows
#   hack/kills.sh -unit                          only the unit tests of all
#
# hack/kills/mutants.txt has the mutants of the explorer and of the simulation as changes of the
# source, for the unit tests.

set -o errexit -o nounset -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
go run ./hack/kills "$@"
