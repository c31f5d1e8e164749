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

# Generates, from the types in pkg/apis: deepcopy functions, pkg/generated
# (clientset, listers, informers, apply configurations) and the CRD; from the Go
# distribution, the names of the time zones; from artifacts/deploy, artifacts/base and
# install.yaml.

set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# kube_codegen.sh installs the generators into GOBIN: keep that out of the user's.
GOBIN="$(mktemp -d)"
export GOBIN
trap 'rm -rf "${GOBIN}"' EXIT

go mod download k8s.io/code-generator
codegen="$(go list -m -f '{{.Dir}}' k8s.io/code-generator)"
# shellcheck source=/dev/null
source "${codegen}/kube_codegen.sh"

kube::codegen::gen_helpers \
    --boilerplate hack/boilerplate.go.txt \
    pkg/apis

kube::codegen::gen_client \
    --with-watch \
    --with-applyconfig \
    --output-dir pkg/generated \
    --output-pkg programming-kubernetes.info/cnat-controller/pkg/generated \
    --boilerplate hack/boilerplate.go.txt \
    pkg/apis

go -C hack/tools/controller-gen build -o "${GOBIN}/" sigs.k8s.io/controller-tools/cmd/controller-gen ./slim
"${GOBIN}/controller-gen" crd:generateEmbeddedObjectMeta=true paths=./pkg/apis/... output:crd:stdout |
    "${GOBIN}/slim" >artifacts/examples/cnat-crd.yaml.new
mv artifacts/examples/cnat-crd.yaml.new artifacts/examples/cnat-crd.yaml

go run ./hack/tools/zones "$(go env GOROOT)/lib/time/zoneinfo.zip" >pkg/zones/zones.txt.new
mv pkg/zones/zones.txt.new pkg/zones/zones.txt

# The version has one source. The manifests that are applied as one come of those that
# are written.
version="$(sed -n 's/^const Version = "\(.*\)"$/\1/p' pkg/version/version.go)"
find artifacts Dockerfile README.md -type f ! -name install.yaml -exec \
    sed -i -E "s#(app.kubernetes.io/version: |cnat-controller:)v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?#\1${version}#" {} +
sed -i -E "s/^version: .*/version: ${version#v}/; s/^appVersion: .*/appVersion: ${version}/" artifacts/chart/Chart.yaml
{
    echo "# What artifacts/deploy and artifacts/namespaced share. Made by hack/update-codegen.sh."
    awk 'BEGIN { RS = "---\n" }
        /(^|\n)kind: (Deployment|NetworkPolicy|PodDisruptionBudget|Role|RoleBinding|ServiceAccount)\n/ { printf "---\n%s", $0 }' \
        artifacts/deploy/*.yaml
} >artifacts/base/base.yaml.new
mv artifacts/base/base.yaml.new artifacts/base/base.yaml
go -C hack/tools/kustomize build -o "${GOBIN}/" sigs.k8s.io/kustomize/kustomize/v5
{
    echo "# All of artifacts/deploy and the CRD in one file. Made by hack/update-codegen.sh."
    "${GOBIN}/kustomize" build artifacts/deploy
} >artifacts/install.yaml.new
mv artifacts/install.yaml.new artifacts/install.yaml
