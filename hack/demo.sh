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


# The book's scenario, end to end: a command that is due in five seconds runs in
# a real container and prints YAY.
#
# Usage: hack/demo.sh [--keep] [--in-cluster]
#
# Without KUBECONFIG it builds and starts a cluster of its own, for which it needs
# Linux and root; with KUBECONFIG it uses that cluster, and needs kubectl. At the end it
# takes away what it brought, unless --keep is given. With --in-cluster the controller
# runs in the cluster, as it is deployed; in a cluster of KUBECONFIG, its image must be
# there.

set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

keep=""
in_cluster=""
for arg; do
    case "${arg}" in
    --keep) keep=yes ;;
    --in-cluster) in_cluster=yes ;;
    *)
        echo "Usage: hack/demo.sh [--keep] [--in-cluster]" >&2
        exit 2
        ;;
    esac
done

own_cluster=""
controller=""
watch=""
crd_is_ours=""
at_is_ours=""
deployment_is_ours=""
bin="$(mktemp -d)"
log="${bin}/controller.log"
cluster_dir="${XDG_CACHE_HOME:-${HOME}/.cache}/cnat-localcluster/demo"

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() {
    printf '\033[1m$ %s\033[0m\n' "$*"
    "$@"
}
fail() {
    echo "hack/demo.sh: $*" >&2
    exit 1
}

finish() {
    local code=$?
    trap - EXIT
    if [[ -n "${watch}" ]]; then
        kill "${watch}" 2>/dev/null || true
    fi
    if [[ "${code}" != 0 && -s "${log}" ]]; then
        echo "The end of the controller's log:" >&2
        tail -n 20 "${log}" >&2
    elif [[ "${code}" != 0 && -n "${deployment_is_ours}" ]]; then
        kubectl describe pods --namespace=cnat-system >&2 || true
        kubectl logs --namespace=cnat-system --selector=app.kubernetes.io/name=cnat-controller --prefix --tail=20 >&2 || true
    fi
    if [[ -n "${keep}" && "${code}" == 0 ]]; then
        exit
    fi
    if [[ -n "${own_cluster}" ]]; then
        [[ -z "${controller}" ]] || kill "${controller}" 2>/dev/null || true
        "${bin}/localcluster" down --dir="${cluster_dir}" || code=1
    else
        [[ -z "${at_is_ours}" ]] || kubectl delete --ignore-not-found --cascade=foreground -f artifacts/examples/cnat-example.yaml || code=1
        [[ -z "${deployment_is_ours}" ]] || kubectl delete --ignore-not-found -f artifacts/deploy || code=1
        [[ -z "${crd_is_ours}" ]] || kubectl delete --ignore-not-found -f artifacts/examples/cnat-crd.yaml || code=1
        [[ -z "${controller}" ]] || kill "${controller}" 2>/dev/null || true
    fi
    rm -rf "${bin}"
    exit "${code}"
}
trap finish EXIT
trap 'exit 130' INT TERM

command -v go >/dev/null || fail "needs Go"

if [[ -n "${KUBECONFIG:-}" ]]; then
    command -v kubectl >/dev/null || fail "with KUBECONFIG it needs kubectl"
    say "Using the cluster of KUBECONFIG=${KUBECONFIG}"
elif [[ "$(uname -s)" == Linux && "$(id -u)" == 0 ]]; then
    say "Building and starting a cluster with a node (the first time: some minutes)"
    go -C hack/localcluster build -o "${bin}/localcluster" .
    if "${bin}/localcluster" status --dir="${cluster_dir}" >/dev/null 2>&1; then
        fail "an earlier demo's cluster still runs; end it with: go -C hack/localcluster run . down --dir=${cluster_dir}"
    fi
    exports="$("${bin}/localcluster" up --node --dir="${cluster_dir}")"
    own_cluster=yes
    eval "${exports}"
else
    fail "a cluster of its own needs Linux and root; or set KUBECONFIG to the cluster that is to be used"
fi

namespace="$(kubectl config view --minify --output 'jsonpath={..namespace}')"
namespace="${namespace:-default}"
installed="$(kubectl get crd --ignore-not-found --output=name ats.cnat.programming-kubernetes.info)" ||
    fail "cannot tell whether the CRD is installed"
if [[ -n "${installed}" ]]; then
    [[ -z "$(kubectl get at --ignore-not-found example-at)" ]] || fail "there is an At example-at in namespace ${namespace} already"
else
    crd_is_ours=yes
fi

# As the cluster was built, so that what they share is compiled once.
build=(env CGO_ENABLED=0 go build -o "${bin}/cnat-controller" .)
if [[ -z "${in_cluster}" ]]; then
    say "Building and starting the controller"
    run "${build[@]}"
    # Its ports may be taken, by another controller, or by anything.
    "${bin}/cnat-controller" -v=2 -namespace="${namespace}" -metrics-bind-address= -health-probe-bind-address= >"${log}" 2>&1 &
    controller=$!
    say "Installing the CRD, and an At that is due in five seconds"
    run kubectl apply -f artifacts/examples/cnat-crd.yaml
else
    [[ -z "$(kubectl get namespace --ignore-not-found --output=name cnat-system)" ]] || fail "there is a namespace cnat-system already"
    # First, for it takes the API server's admission some seconds to know of a new kind.
    say "Installing the CRD"
    run kubectl apply -f artifacts/examples/cnat-crd.yaml
    if [[ -n "${own_cluster}" ]]; then
        say "Building the image: the steps of the Dockerfile, without Docker"
        run "${build[@]}"
        image="$(sed -n 's/^ *image: //p' artifacts/deploy/deployment.yaml)"
        run "${bin}/localcluster" load-image --dir="${cluster_dir}" "${image}=${bin}/cnat-controller"
    fi
    say "Installing the controller"
    deployment_is_ours=yes
    run kubectl apply -f artifacts/install.yaml
    run kubectl rollout status --namespace=cnat-system --timeout=2m deployment/cnat-controller
    run kubectl get --namespace=cnat-system deployments,pods,leases
    say "An At that is due in five seconds"
fi
# Not kubectl wait: it fails on a CRD whose status has no conditions yet.
for ((i = 0; i < 60; i++)); do
    ! kubectl get at >/dev/null 2>&1 || break
    sleep 1
done
due="$(date --utc --date='5 seconds' +%Y-%m-%dT%H:%M:%SZ)"
at_is_ours=yes
edit="s/2019-04-12T10:12:00Z/${due}/"
printf '\033[1m$ sed %s artifacts/examples/cnat-example.yaml | kubectl apply -f -\033[0m\n' "${edit}"
sed "${edit}" artifacts/examples/cnat-example.yaml | kubectl apply -f -

say "Watching it"
printf '\033[1m$ kubectl get at example-at -w\033[0m\n'
exec 3< <(exec timeout 120 kubectl get at example-at -w)
watch=$!
while IFS= read -r line <&3; do
    echo "${line}"
    if [[ "${line}" == *" DONE "* ]]; then
        break
    fi
done
kill "${watch}" 2>/dev/null || true
watch=""

say "What ran"
run kubectl get at,pods
printf '\033[1m$ kubectl logs example-at-pod\033[0m\n'
output="$(kubectl logs example-at-pod)"
echo "${output}"
[[ "${output}" == YAY ]] || fail "the command's output is not YAY"

if [[ -n "${keep}" ]]; then
    say "All is left running. To use it:"
    [[ -z "${own_cluster}" ]] || echo "${exports}"
    [[ -z "${controller}" ]] || echo "tail -f ${log}"
    say "To end it:"
    [[ -z "${controller}" ]] || echo "kill ${controller}"
    if [[ -n "${own_cluster}" ]]; then
        echo "${bin}/localcluster down --dir=${cluster_dir}"
    else
        echo "kubectl delete -f artifacts/examples/cnat-example.yaml"
        [[ -z "${deployment_is_ours}" ]] || echo "kubectl delete -f artifacts/deploy"
        [[ -z "${crd_is_ours}" ]] || echo "kubectl delete -f artifacts/examples/cnat-crd.yaml"
    fi
    echo "rm -r ${bin}"
fi
