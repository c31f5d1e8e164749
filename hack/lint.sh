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


# Runs the linters of .golangci.yaml on the modules of this repository, actionlint on its
# workflows, krew's validation on the manifest of kubectl at, OLM's on the bundle, and the tests
# of promcheck: the queries of the dashboard and the alerts, and when the alerts fire; and those of
# the health checks for Argo CD and Flux. Also checks
# the manifests of the Prometheus operator and of cert-manager against their types.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Use its flags, because the linters compile the code that they check.
# shellcheck source=hack/localcluster.sh
source hack/localcluster.sh

bin="$(mktemp -d)"
trap 'rm -rf "${bin}"' EXIT
echo "Building golangci-lint (takes some minutes the first time)"
compiling go -C hack/tools/golangci-lint build -o "${bin}/golangci-lint" github.com/golangci/golangci-lint/v2/cmd/golangci-lint

for tag in integration e2e; do
    compiling "${bin}/golangci-lint" run --build-tags="${tag}"
done
# Also files for neither tag, and generated ones, which the linters skip.
compiling go vet ./...
for module in hack/localcluster hack/tools/controller-gen hack/tools/crcheck hack/tools/health hack/tools/olm hack/tools/promcheck; do
    (cd "${module}" && compiling "${bin}/golangci-lint" run --config="${root}/.golangci.yaml")
done

go -C hack/tools/actionlint build -o "${bin}/actionlint" github.com/rhysd/actionlint/cmd/actionlint
"${bin}/actionlint" .github/workflows/*.yaml

go -C hack/tools/krew build -o "${bin}/validate-krew-manifest" sigs.k8s.io/krew/cmd/validate-krew-manifest
# Fill it in like hack/build-plugin.sh; the checksums do not belong to real archives.
sed -e 's#URL/#https://example.org/#' -e "s#VERSION#$(sed -n 's/^const Version = "\(.*\)"$/\1/p' pkg/version/version.go)#" \
    -e "s#SHA256_[a-z0-9_]*#$(printf '%064d' 0)#" artifacts/krew/at.yaml >"${bin}/at.yaml"
"${bin}/validate-krew-manifest" -skip-install -manifest "${bin}/at.yaml"

compiling hack/build-packages.sh "${bin}/packages" "example.org/cnat-controller@sha256:$(printf '%064d' 0)"
compiling go -C hack/tools/helm run helm.sh/helm/v4/cmd/helm template cnat "${bin}"/packages/cnat-*.tgz --set=monitoring.enabled=true,metrics.certificate=true |
    compiling go -C hack/tools/crcheck run .

# -count=1, because the test cache does not detect changes to files outside the module.
compiling go -C hack/tools/promcheck test -count=1 ./...
compiling go -C hack/tools/health test -count=1 ./...
