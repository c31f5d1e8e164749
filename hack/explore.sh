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


# Checks the promises in every interleaving of two controllers, the kubelet, users and faults,
# with the real decisions and steps: see docs/contributing/architecture.md#proof.
#
# Usage: hack/explore.sh [-faults N] [-edits N] [-crashes N] [-lag N] [-limit N] [-strict] [SCENARIO]
#   hack/explore.sh -limit 1000000 at   one At, and no more than a million states

set -o errexit -o nounset -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
go run ./hack/explore "$@"
