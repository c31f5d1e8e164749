//go:build linux

/*
Copyright The cnat Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package main

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// The program carries its own go.mod and go.sum, so that a built one works
// from any folder, and the versions have a single home.
var (
	//go:embed go.mod
	goMod []byte
	//go:embed go.sum
	goSum []byte
)

// component is one program of the cluster.
type component struct {
	name, pkg string
}

var controlPlane = []component{
	{"etcd", "go.etcd.io/etcd/server/v3"},
	{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"},
	{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"},
	{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"},
	{"kubectl", "k8s.io/kubernetes/cmd/kubectl"},
}

var nodeComponents = []component{
	{"kubelet", "k8s.io/kubernetes/cmd/kubelet"},
	{"kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"},
	{"containerd", "github.com/containerd/containerd/v2/cmd/containerd"},
	{"containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"},
	{"ctr", "github.com/containerd/containerd/v2/cmd/ctr"},
	{"bridge", "github.com/containernetworking/plugins/plugins/main/bridge"},
	{"host-local", "github.com/containernetworking/plugins/plugins/ipam/host-local"},
}

// kubernetesVersion is that of go.mod, for example v1.36.3.
func kubernetesVersion() string {
	return string(regexp.MustCompile(`\sk8s\.io/kubernetes (v\S+)`).FindSubmatch(goMod)[1])
}

func buildFlags() []string {
	// Without these the API server calls itself v0.0.0, and kubectl warns.
	v := kubernetesVersion()
	part := strings.SplitN(strings.TrimPrefix(v, "v"), ".", 3)
	const version = " -X k8s.io/component-base/version."
	return []string{"-mod=readonly", "-ldflags=-s -w" +
		version + "gitVersion=" + v + version + "gitMajor=" + part[0] + version + "gitMinor=" + part[1]}
}

// cacheRoot is where binaries of all versions, and the default cluster, live.
func cacheRoot() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache folder for the binaries, set HOME or XDG_CACHE_HOME: %w", err)
	}
	return filepath.Join(dir, "cnat-localcluster"), nil
}

// binDir is the folder of the binaries that belong to this go.mod.
func binDir() (string, error) {
	root, err := cacheRoot()
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	for _, part := range [][]byte{goMod, goSum, []byte(strings.Join(buildFlags(), " "))} {
		hash.Write(part)
	}
	return filepath.Join(root, fmt.Sprintf("%s-%.5x", kubernetesVersion(), hash.Sum(nil))), nil
}

// build makes those of the components that bin does not have yet.
func build(ctx context.Context, bin string, components []component) error {
	var missing []component
	for _, c := range components {
		if _, err := os.Stat(filepath.Join(bin, c.name)); errors.Is(err, os.ErrNotExist) {
			missing = append(missing, c)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if _, err := exec.LookPath("go"); err != nil {
		return fmt.Errorf("building needs Go: %w", err)
	}
	src := filepath.Join(bin, "src")
	if err := os.MkdirAll(src, 0o755); err != nil {
		return err
	}
	for file, content := range map[string][]byte{"go.mod": goMod, "go.sum": goSum} {
		if err := os.WriteFile(filepath.Join(src, file), content, 0o644); err != nil {
			return err
		}
	}
	say("building Kubernetes %s into %s (the first time takes some minutes)", kubernetesVersion(), bin)
	for i, c := range missing {
		fmt.Fprintf(os.Stderr, "[%d/%d] %s ", i+1, len(missing), c.name)
		start := time.Now()
		if err := buildOne(ctx, src, filepath.Join(bin, c.name), c.pkg); err != nil {
			fmt.Fprintln(os.Stderr)
			return err
		}
		fmt.Fprintf(os.Stderr, "%.0fs\n", time.Since(start).Seconds())
	}
	return nil
}

// buildOne builds under a temporary name: whatever bears the final name is whole.
func buildOne(ctx context.Context, src, target, pkg string) error {
	tmp := fmt.Sprintf("%s.%d.tmp", target, os.Getpid())
	defer func() { _ = os.Remove(tmp) }()
	cmd := exec.CommandContext(ctx, "go", append(append([]string{"build"}, buildFlags()...), "-o", tmp, pkg)...)
	cmd.Dir = src
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	output, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return fmt.Errorf("building %s: interrupted; the next build goes on from here", pkg)
	}
	if err != nil {
		return fmt.Errorf("building %s: %w\n%s", pkg, err, output)
	}
	return os.Rename(tmp, target)
}
