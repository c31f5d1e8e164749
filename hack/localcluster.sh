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


# A real Kubernetes without Docker.
#
# Usage: hack/localcluster.sh run [--node] [--dir DIR] [--image NAME=BINARY]... [-- COMMAND [ARG...]]
#
# Compiles hack/localcluster first, unless it is up to date. Scripts that source this
# file can use its functions.

set -o errexit -o nounset -o pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
command -v go >/dev/null || { echo "$0 needs Go" >&2 && exit 1; }

# Packages that the cluster, the controller and the tests share are compiled only once,
# because all use the same flags: -trimpath is what images are built with. Without inlining
# and debug information, and with one thread for each of many packages, compiling takes a
# third less time. Where the cluster and the tests spend most of their time, functions are
# inlined, which makes the tests a quarter faster. OPTIMIZE=yes is for measurements.
inlining=" -l"
[[ -z "${OPTIMIZE:-}" ]] || inlining=""
compile_flags="$(go env GOFLAGS) -trimpath '-gcflags=all=-dwarf=false -c=1${inlining}'"
for packages in runtime/... internal/runtime/... internal/abi internal/bytealg reflect encoding/json bytes strconv sync/... time unicode/utf8 \
    k8s.io/apimachinery/... k8s.io/apiserver/... k8s.io/kube-openapi/... sigs.k8s.io/... \
    go.etcd.io/... google.golang.org/grpc/... google.golang.org/protobuf/... github.com/google/cel-go/...; do
    compile_flags+=" '-gcflags=${packages}=-dwarf=false -c=1'"
done
cgo=0

# compiling COMMAND [ARG...] runs a command that compiles, with these flags.
compiling() { GOFLAGS="${compile_flags}" CGO_ENABLED="${cgo}" "$@"; }

# stop_jobs ends jobs that are still running in the background, such as downloads.
stop_jobs() { jobs -p | xargs -r kill 2>/dev/null || true; }

# kubectl is not part of the first, because it would take twice as long to start.
programs=(
    ./localcluster
    k8s.io/kubernetes/cmd/kubectl
    github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2
    github.com/containernetworking/plugins/plugins/ipam/host-local
    github.com/containernetworking/plugins/plugins/main/bridge
)
# The other names of the first program, which contains all of them.
components=(etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy containerd)
# Omit packages that are only needed for other storage, other plugins and tracing.
tags="-tags=no_btrfs,no_devmapper,no_tracing,no_zfs,nri_no_wasm"

# go_build WHAT DIR OUTPUT [FLAG...] -- PACKAGE... runs go build in DIR and shows its
# progress.
go_build() {
    local what="$1" dir="$2" output flags=() begin path size line status last=0 every=10 before="" after=$'\n'
    local -i all=0 begun=0 count=0 now
    local -A sizes=()
    output="$3"
    shift 3
    while [[ "$1" != -- ]]; do
        flags+=("$1")
        shift
    done
    shift
    if [[ -t 2 ]]; then
        every=1 before=$'\r\033[K' after=""
    fi
    begin="${SECONDS}"
    # The number of a package's files approximates its compile time.
    while read -r path size; do
        sizes["${path}"]="${size}"
        all+="${size}"
    done < <(compiling go -C "${dir}" list -deps "${flags[@]}" -f '{{if .Stale}}{{.ImportPath}} {{len .GoFiles}}{{end}}' "$@")
    # Garbage collection in the compiler costs more time than the memory is worth.
    { GOGC=off GOMEMLIMIT=1GiB compiling go -C "${dir}" build -v -p="$(($(nproc) + 1))" "${flags[@]}" -o "${output}" "$@" 2>&1 || echo "exit status $?"; } | while true; do
        status=0
        IFS= read -r -t 1 line || status=$?
        if [[ "${status}" == 0 && -n "${sizes["${line:-none}"]:-}" ]]; then
            begun+="${sizes["${line}"]}"
            count+=1
        elif [[ "${status}" == 0 && "${line}" != "go: downloading "* ]]; then
            printf '%s%s\n' "${before}" "${line}" >&2
            [[ "${line}" != "exit status "* ]] || exit 1
        elif [[ "${status}" == 1 ]]; then
            printf '%s' "${before}" >&2
            break
        fi
        now=$((SECONDS - begin))
        # The first packages wait for downloads, so fewer than 2 % would give an estimate of hours.
        if ((now >= last + every && begun * 50 > all)); then
            last="${now}"
            printf '%s%s: %d of %d packages compiled in %d s, about %d s left%s' "${before}" "${what}" "${count}" "${#sizes[@]}" \
                "${now}" $((now * (all - begun) / begun)) "${after}" >&2
        fi
    done
}

# build_controller FILE compiles the controller.
build_controller() { go_build "The controller" "${root}" "$1" -- .; }

# install_node_packages installs the Debian packages that a node needs.
install_node_packages() {
    local missing=() program
    for program in runc:runc nft:nftables ip:iproute2 busybox:busybox-static; do
        PATH="${PATH}:/usr/sbin:/sbin" command -v "${program%:*}" >/dev/null || missing+=("${program#*:}")
    done
    if ((${#missing[@]} > 0)); then
        echo "Installing the Debian packages ${missing[*]}" >&2
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}"; } >/dev/null
    fi
}

# version_flags VERSION prints linker flags. Without them, the API server calls itself
# v0.0.0, and kubectl warns.
version_flags() {
    local x="-X k8s.io/component-base/version.git"
    echo "-s -w ${x}Version=$1 ${x}Major=$(cut -d. -f1 <<<"${1#v}") ${x}Minor=$(cut -d. -f2 <<<"$1")"
}

# build_localcluster [CONTROLLER-FILE] sets bin to the folder of the cluster's programs,
# and compiles them if they do not exist. If a file is given, the controller is compiled
# into it first, while the modules of the other programs are being downloaded.
build_localcluster() {
    local dir="${root}/hack/localcluster" version key tmp name modules="" cgo=0
    version="$(sed -n 's/.*k8s.io\/kubernetes \(v[0-9.]*\)$/\1/p' "${dir}/go.mod")"
    key="$({ go env GOVERSION GOARCH && echo "${compile_flags}" && cat "${BASH_SOURCE[0]}" && find "${dir}" -type f | sort | xargs cat; } | sha256sum | cut -c1-10)"
    bin="${XDG_CACHE_HOME:-${HOME}/.cache}/cnat-localcluster/${version}-${key}"
    tmp="${bin}.tmp"
    mkdir -p "${bin%/*}"
    # Only one build at a time. Remove builds that were not used for a month.
    exec 9>"${bin%/*}/lock"
    flock 9
    find "${bin%/*}" -mindepth 1 -maxdepth 1 -name 'v*' -mtime +30 ! -path "${bin}" -exec rm -rf {} +
    if [[ ! -e "${bin}" ]]; then
        rm -rf "${tmp}"
        go -C "${dir}" list -deps "${tags}" "${programs[@]}" >/dev/null 2>&1 &
        modules=$!
    fi
    [[ -z "${1:-}" ]] || build_controller "$1"
    if [[ -z "${modules}" ]]; then
        touch "${bin}"
        exec 9>&-
        return
    fi
    wait "${modules}" || true # go build reports the error
    go_build "Kubernetes ${version}" "${dir}" "${tmp}/" "${tags}" -ldflags="$(version_flags "${version}")" -- "${programs[@]}"
    for name in "${components[@]}"; do
        ln -s localcluster "${tmp}/${name}"
    done
    mv -T "${tmp}" "${bin}"
    exec 9>&-
}

# build_control_plane VERSION sets bin to the folder of a cluster whose API server,
# controller-manager and scheduler have another version, and compiles them if they do not
# exist. The other programs are those of build_localcluster.
build_control_plane() {
    local version="$1" tmp mod mains cgo=0
    build_localcluster
    mains=(k8s.io/kubernetes/cmd/kube-{apiserver,controller-manager,scheduler})
    tmp="${bin}-${version}.tmp"
    exec 9>"${bin%/*}/lock-control-plane" # because this takes minutes
    flock 9
    if [[ ! -e "${bin}-${version}" ]]; then
        go mod download "k8s.io/kubernetes@${version}"
        mod="$(go env GOMODCACHE)/cache/download/k8s.io/kubernetes/@v/${version}.mod"
        rm -rf "${tmp}"
        # As hard links, because localcluster looks for the other programs in its own folder.
        cp -al "${bin}" "${tmp}"
        rm "${mains[@]/#*\//${tmp}/}"
        # The dependencies are those of Kubernetes itself, but its libraries, which are
        # folders of its repository, are modules of their own.
        {
            echo "module localcluster"
            sed -n '/^go /p' "${mod}"
            echo "require k8s.io/kubernetes ${version}"
            sed -n "s#^\t\(k8s.io/[^ ]*\) => ./staging/.*#replace \1 => \1 v0.${version#v1.}#p" "${mod}"
        } >"${tmp}/go.mod"
        # Download the modules. go build reports the error.
        go -C "${tmp}" list -mod=mod -deps "${mains[@]}" >/dev/null 2>&1 || true
        go_build "Kubernetes ${version}" "${tmp}" "${tmp}/" -mod=mod -ldflags="$(version_flags "${version}")" -- "${mains[@]}"
        mv -T "${tmp}" "${bin}-${version}"
    fi
    exec 9>&-
    bin+="-${version}"
    touch "${bin}"
}

if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
    if [[ $# == 0 || "$1" == help || " $* " == *" --help "* ]]; then
        sed -n 's/^# Usage: //p' "$0"
        exit
    fi
    trap stop_jobs EXIT
    trap 'exit 130' INT TERM HUP
    if [[ " $* " == *" --node "* && "$(id -u)" == 0 ]]; then
        install_node_packages
    fi
    build_localcluster
    exec "${bin}/localcluster" "$@"
fi
