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


# The book's scenario, end to end: a command that is due in five seconds runs in a real
# container and prints YAY. Then the same with kubectl at.
#
# Usage: hack/demo.sh [--keep] [--in-cluster]
#
# With KUBECONFIG, it uses that cluster, and needs kubectl. Without KUBECONFIG, it compiles
# and starts its own cluster, which requires Linux and root. At the end, it removes everything
# that it has created, unless --keep is given. With --in-cluster, the controller runs in the
# cluster with its manifests; in a cluster of KUBECONFIG, its image must be available.

set -o errexit -o nounset -o pipefail

if [[ -f "${KUBECONFIG:-}" ]]; then
    KUBECONFIG="$(cd "$(dirname "${KUBECONFIG}")" && pwd)/$(basename "${KUBECONFIG}")"
fi
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

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() {
    printf '\033[1m$ %s\033[0m\n' "$*"
    "$@"
}
fail() {
    echo "hack/demo.sh: $*" >&2
    exit 1
}

# own_cluster runs the demo in its own cluster.
own_cluster() {
    local arguments=(--node) controller="${tmp}/cnat-controller" packages exports
    if [[ "$(uname -s)" != Linux || "$(id -u)" != 0 ]]; then
        fail "starting a cluster requires Linux and root. Set KUBECONFIG to use an existing one, for example from kind or minikube: KUBECONFIG=~/.kube/config hack/demo.sh"
    fi
    say "Compiling Kubernetes and the controller (the first time: some minutes)"
    # shellcheck source=hack/localcluster.sh
    source hack/localcluster.sh
    install_node_packages &
    packages=$!
    build_localcluster "${controller}"
    # Build it now, because it shares most of its packages with the cluster's kubectl.
    go_build "kubectl at" "${root}" "${tmp}/kubectl-at" -- ./cmd/kubectl-at
    wait "${packages}"
    if [[ -n "${in_cluster}" ]]; then
        # The steps of the Dockerfile, without Docker.
        arguments+=(--image "$(sed -n 's/^ *image: //p' artifacts/deploy/deployment.yaml)=${controller}")
    fi
    say "Starting a cluster with a node"
    export CNAT_DEMO_DIR="${tmp}"
    if [[ -z "${keep}" ]]; then
        "${bin}/localcluster" run "${arguments[@]}" -- hack/demo.sh "$@"
        return
    fi
    exec 3< <(exec setsid "${bin}/localcluster" run "${arguments[@]}" 2>"${tmp}/cluster.log")
    cluster=$!
    exports="$(cat <&3)"
    [[ -n "${exports}" ]] || { cat "${tmp}/cluster.log" >&2 && return 1; }
    (
        eval "${exports}"
        hack/demo.sh "$@"
    ) || return 1
    say "The cluster is left running. To use it:"
    echo "${exports}"
    echo "export PATH=\"${tmp}:\${PATH}\" # kubectl at"
    say "To end it:"
    echo "kill ${cluster}; rm -r ${tmp}"
    cluster="" tmp=""
}

finish_own() {
    trap - EXIT
    trap '' INT TERM HUP
    stop_jobs
    if [[ -n "${cluster}" ]]; then
        kill "${cluster}" 2>/dev/null || true
        while kill -0 "${cluster}" 2>/dev/null; do sleep 0.1; done
    fi
    [[ -z "${tmp}" ]] || rm -rf "${tmp}"
}

cluster=""
tmp="${CNAT_DEMO_DIR:-$(mktemp -d)}"
if [[ -z "${KUBECONFIG:-}" ]]; then
    stop_jobs() { :; } # until hack/localcluster.sh is sourced
    trap finish_own EXIT
    trap 'exit 130' INT TERM HUP
    own_cluster "$@"
    exit
fi

# From here on, a cluster is running.
controller=""
watch=""
crd_is_ours=""
at_is_ours=""
our_ats=()
deployment_is_ours=""
log="${tmp}/controller.log"

finish() {
    local code=$?
    trap - EXIT
    trap '' INT TERM HUP
    [[ -z "${watch}" ]] || kill "${watch}" 2>/dev/null || true
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
    if [[ -z "${CNAT_DEMO_DIR:-}" ]]; then
        [[ -z "${at_is_ours}" ]] || kubectl delete --timeout=60s --ignore-not-found --cascade=foreground -f artifacts/examples/cnat-example.yaml || code=1
        ((${#our_ats[@]} == 0)) || kubectl delete --timeout=60s --ignore-not-found --cascade=foreground "${our_ats[@]}" || code=1
        [[ -z "${deployment_is_ours}" ]] || kubectl delete --timeout=60s --ignore-not-found --recursive -f artifacts/deploy || code=1
        [[ -z "${crd_is_ours}" ]] || kubectl delete --timeout=60s --ignore-not-found -f artifacts/examples/cnat-crd.yaml -f artifacts/deploy/policy || code=1
    fi
    if [[ -n "${controller}" ]]; then
        kill "${controller}" 2>/dev/null || true
        wait "${controller}" || true
    fi
    [[ -n "${CNAT_DEMO_DIR:-}" ]] || rm -rf "${tmp}"
    exit "${code}"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

command -v kubectl >/dev/null || fail "with KUBECONFIG it needs kubectl"
say "Using the cluster of KUBECONFIG=${KUBECONFIG}"
namespace="$(kubectl config view --minify --output 'jsonpath={..namespace}')"
namespace="${namespace:-default}"
installed="$(kubectl get crd --ignore-not-found --output=name ats.cnat.programming-kubernetes.info)" ||
    fail "cannot find out whether the CRD is installed"
if [[ -n "${installed}" ]]; then
    [[ -z "$(kubectl get at --ignore-not-found example-at)" ]] || fail "there is an At example-at in namespace ${namespace} already"
else
    crd_is_ours=yes
fi

if [[ ! -e "${tmp}/kubectl-at" ]]; then
    say "Building kubectl at"
    # shellcheck source=hack/localcluster.sh
    source hack/localcluster.sh
    run compiling go build -o "${tmp}/kubectl-at" ./cmd/kubectl-at
fi
if [[ -z "${in_cluster}" ]]; then
    binary="${tmp}/cnat-controller"
    if [[ ! -e "${binary}" ]]; then
        say "Building the controller"
        # shellcheck source=hack/localcluster.sh
        source hack/localcluster.sh
        run compiling go build -o "${binary}" .
    fi
    say "Starting the controller"
    # In its own process group, because running commands must be counted after Ctrl-C,
    # too. Its ports may be in use.
    set -o monitor
    "${binary}" -v=2 -namespace="${namespace}" -metrics-bind-address= -health-probe-bind-address= >"${log}" 2>&1 &
    controller=$!
    set +o monitor
    say "Installing the CRDs and the policies, and an At that is due in five seconds"
    run kubectl apply -f artifacts/examples/cnat-crd.yaml
    # Others may have left them out on purpose.
    [[ -z "${crd_is_ours}" ]] || run kubectl apply -f artifacts/deploy/policy
else
    [[ -z "$(kubectl get namespace --ignore-not-found --output=name cnat-system)" ]] || fail "there is a namespace cnat-system already"
    # First, because the API server's admission takes some seconds to discover a new kind.
    say "Installing the CRD"
    run kubectl apply -f artifacts/examples/cnat-crd.yaml
    say "Installing the controller"
    deployment_is_ours=yes
    run kubectl apply -f artifacts/install.yaml
    run kubectl rollout status --namespace=cnat-system --timeout=10m deployment/cnat-controller
    run kubectl get --namespace=cnat-system deployments,pods,leases
    say "An At that is due in five seconds"
fi
# kubectl wait does not work: it fails on a CRD whose status has no conditions yet.
for ((i = 0; i < 120; i++)); do
    ! kubectl get at >/dev/null 2>&1 || break
    sleep 0.5
done
seconds="$(($(date +%s) + 5))"
due="$(date -u -d "@${seconds}" +%Y-%m-%dT%H:%M:%SZ 2>/dev/null || date -u -r "${seconds}" +%Y-%m-%dT%H:%M:%SZ)"
at_is_ours=yes
edit="s/2019-04-12T10:12:00Z/${due}/"
printf '\033[1m$ sed %s artifacts/examples/cnat-example.yaml | kubectl apply -f -\033[0m\n' "${edit}"
sed "${edit}" artifacts/examples/cnat-example.yaml | kubectl apply -f -

say "Watching it"
printf '\033[1m$ kubectl get at example-at -w\033[0m\n'
mkfifo "${tmp}/watch"
kubectl get at example-at -w --request-timeout=10m >"${tmp}/watch" &
watch=$!
while IFS= read -r line; do
    echo "${line}"
    if [[ "${line}" == *" DONE "* ]]; then
        break
    fi
done <"${tmp}/watch"
kill "${watch}" 2>/dev/null || true
watch=""

say "What ran"
run kubectl get at,pods
printf '\033[1m$ kubectl logs example-at-pod\033[0m\n'
output="$(kubectl logs example-at-pod)"
echo "${output}"
[[ "${output}" == YAY ]] || fail "the command's output is not YAY"

# In a cluster that is not the demo's own, other Ats may have these names.
suffix=""
[[ -n "${CNAT_DEMO_DIR:-}" ]] || suffix="-$$"

say "From the command line"
export PATH="${tmp}:${PATH}" # kubectl finds kubectl-at there
run kubectl at now + 5 seconds --name "yay${suffix}" --logs -- echo YAY 2>&1 | tee "${tmp}/second" || true # checked below
our_ats+=("$(sed -n 's/ created$//p' "${tmp}/second")")
grep -qx YAY "${tmp}/second" || fail "the output of kubectl at has no YAY"

say "A time means what a person means, or it is refused"
run kubectl at explain tomorrow 09:00 Europe/Berlin
if run kubectl at now + 01:30 -- echo YAY; then
    fail "a time with two meanings is not refused"
fi

say "Once on every node"
name="every-node${suffix}"
our_ats+=("at/${name}")
run kubectl at now --nodes all --name "${name}" --wait -- echo YAY
run kubectl get at --selector="cnat.programming-kubernetes.info/at-name=${name}" --output=wide

# A rehearsal needs minutes before the time.
night=02:00
[[ "$(date +%H)" != 01 ]] || night=03:00

say "Tonight at 2 am, as a manifest"
run kubectl at "${night}" --name backup --retries 2 --active-deadline 10m --dry-run=client --output=yaml -- ./backup

say "What would fail at 2 am is reported now"
run kubectl at "${night}" --name "shop-backup${suffix}" --retries 2 --env-from secret/shop-db --rehearse --check -- ./backup 2>&1 | tee "${tmp}/night" || true # checked below
our_ats+=("$(sed -n 's/ created$//p' "${tmp}/night")")
grep -q 'secret "shop-db" not found' "${tmp}/night" || fail "the missing Secret is not reported"

say "What starts until tomorrow, and what will not, in one table"
our_ats+=("cronat/tidy${suffix}" "freeze/tidy${suffix}")
run kubectl at every "30 2 * * *" --name "tidy${suffix}" -- ./tidy
run kubectl at freeze "tidy${suffix}" "cronat/tidy${suffix}" until "+ 3 days" --reason "we are moving"
run kubectl at agenda 2>&1 | tee "${tmp}/agenda" || true # checked below
grep -q 'would fail.*secret "shop-db" not found' "${tmp}/agenda" || fail "the agenda does not say what would fail"
grep -q "skipped: Freeze tidy${suffix} .*we are moving" "${tmp}/agenda" || fail "the agenda does not say what is skipped"

# In its own cluster, everything ends with the cluster, except a controller on this machine.
if [[ -n "${keep}" && (-z "${CNAT_DEMO_DIR:-}" || -n "${controller}") ]]; then
    say "This is left running. To remove it:"
    if [[ -z "${CNAT_DEMO_DIR:-}" ]]; then
        echo "kubectl delete --cascade=foreground -f artifacts/examples/cnat-example.yaml"
        echo "kubectl delete --cascade=foreground ${our_ats[*]}"
        [[ -z "${deployment_is_ours}" ]] || echo "kubectl delete --recursive -f artifacts/deploy"
        [[ -z "${crd_is_ours}" ]] || echo "kubectl delete -f artifacts/examples/cnat-crd.yaml -f artifacts/deploy/policy"
    fi
    [[ -z "${controller}" ]] || echo "kill ${controller} # its log is ${log}"
    [[ -n "${CNAT_DEMO_DIR:-}" ]] || echo "rm -r ${tmp}"
fi
