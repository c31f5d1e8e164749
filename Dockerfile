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

# The builder runs on the machine's own architecture and cross-compiles:
#   docker buildx build --platform linux/amd64,linux/arm64 -t cnat-controller:v0.1.0 .
# Its Go is that of all binaries: hack/update-codegen.sh copies the version to each go.mod. A release
# needs its digest, too.
FROM --platform=$BUILDPLATFORM golang:1.26.8 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY *.go ./
COPY signals signals
COPY pkg pkg
ARG TARGETOS
ARG TARGETARCH
# The commit, which the binary reports as its revision.
ARG REVISION
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath \
    -ldflags="-s -w -X programming-kubernetes.info/cnat-controller/pkg/version.revision=$REVISION" -o /cnat-controller .

# Nothing but the binary: it brings what it needs, and the API server's CA comes
# with the service account.
FROM scratch
COPY --from=build /cnat-controller /cnat-controller
USER 65532:65532
ENTRYPOINT ["/cnat-controller"]
