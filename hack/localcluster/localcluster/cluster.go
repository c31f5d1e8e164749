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
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"programming-kubernetes.info/cnat-controller/hack/localcluster/image"
)

// startLimit bounds each step of a start.
const startLimit = 10 * time.Minute

type options struct {
	dir    string
	node   bool
	images []string
}

// cluster is a cluster with its data in dir.
type cluster struct {
	dir        string
	bin        string // folder of the programs
	began      time.Time
	components sync.WaitGroup
	fail       context.CancelCauseFunc // stops the cluster
}

// data lists everything that a cluster writes into its folder, besides logs. Nothing else
// is removed.
var data = []string{"pki", "config", "etcd", "audit.log", "admin.kubeconfig", nodePID}

func newCluster(ctx context.Context, dir string) (*cluster, context.Context, error) {
	self, err := os.Executable()
	ctx, fail := context.WithCancelCause(ctx)
	return &cluster{dir: dir, bin: filepath.Dir(self), began: time.Now(), fail: fail}, ctx, err
}

func (c *cluster) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}

func (c *cluster) logFile(name string) string { return c.path("logs", name+".log") }

// runCluster runs a cluster for as long as the command runs, or until ctx is done.
func runCluster(ctx context.Context, o options, command []string) (err error) {
	if o.node && os.Geteuid() != 0 {
		return errors.New("a node needs root, for namespaces and cgroups: run it as root, or leave out --node for the control plane alone")
	}
	if len(o.images) > 0 && !o.node {
		return errors.New("--image needs --node: only a node runs containers")
	}
	interrupted := ctx
	temporary := o.dir == ""
	if temporary {
		o.dir, err = os.MkdirTemp("", "localcluster-")
	} else {
		o.dir, err = filepath.Abs(o.dir)
	}
	if err != nil {
		return err
	}
	unlock, err := prepareDir(o.dir)
	if err != nil {
		return err
	}
	defer unlock()
	c, running, err := newCluster(context.WithoutCancel(ctx), o.dir)
	if err != nil {
		return err
	}
	environment := os.Environ()
	exports := []string{"KUBECONFIG=" + c.path("admin.kubeconfig"), "PATH=" + c.bin + ":" + os.Getenv("PATH"), "NO_PROXY=" + networks + cmp.Or(os.Getenv("NO_PROXY"), os.Getenv("no_proxy"))}
	for _, variable := range environment {
		// A proxy for the Internet would intercept the requests between the components.
		if name, _, _ := strings.Cut(variable, "="); strings.HasSuffix(strings.ToLower(name), "_proxy") {
			_ = os.Unsetenv(name)
		}
	}
	if err := c.removeData(); err != nil { // left behind by a killed cluster
		return err
	}
	defer func() {
		c.fail(nil)
		c.components.Wait()
		err = errors.Join(err, removeCgroups(), c.removeData())
		if temporary && (err == nil || interrupted.Err() != nil) {
			err = errors.Join(err, os.RemoveAll(c.dir))
		} else if temporary {
			say("the logs are in %s", c.path("logs"))
		}
	}()
	disarm := context.AfterFunc(ctx, func() { c.fail(errors.New("interrupted")) })
	if err := c.startAll(running, o); err != nil {
		return err
	}
	disarm()
	say("%4.1fs the cluster is ready", time.Since(c.began).Seconds())
	if len(command) == 0 {
		for _, variable := range exports {
			name, value, _ := strings.Cut(variable, "=")
			fmt.Printf("export %s='%s'\n", name, value)
		}
		_ = os.Stdout.Close() // so that a reader sees the end of the output
		select {
		case <-ctx.Done():
		case <-running.Done():
		}
		return context.Cause(running)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(running, cancel)()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(environment, exports...)
	// The command may need to clean up, even if this process is killed.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	return errors.Join(cmd.Run(), context.Cause(running))
}

// prepareDir creates the folder of a cluster and locks it until unlock is called or this
// process ends. It refuses a folder with other contents.
func prepareDir(dir string) (unlock func(), err error) {
	if strings.ContainsAny(dir, " \t\n\"'\\$,:") {
		return nil, fmt.Errorf("%q cannot be used, because the components' flags do not accept such characters in a path: choose another folder with --dir", dir)
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, entry := range entries {
		if entry.Name() != "logs" && !slices.Contains(data, entry.Name()) {
			return nil, fmt.Errorf("%s is not a cluster's folder, because it contains %q: choose an empty one with --dir", dir, entry.Name())
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "logs"), 0o700); err != nil {
		return nil, err
	}
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("a cluster is running in %s: stop it, or choose another folder with --dir", dir)
	}
	return func() { _ = file.Close() }, nil
}

func (c *cluster) removeData() error {
	var errs []error
	for _, name := range data {
		errs = append(errs, os.RemoveAll(c.path(name)))
	}
	return errors.Join(errs...)
}

//go:embed config
var config embed.FS

// writeConfig writes the components' configuration files.
func (c *cluster) writeConfig(subnet, address string) error {
	return fs.WalkDir(config, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return errors.Join(err, os.MkdirAll(c.path(path), 0o700))
		}
		text, err := config.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(c.path(path), []byte(os.Expand(string(text), func(name string) string {
			return map[string]string{
				"BIN": c.bin, "CONFIG": c.path("config"), "PKI": c.path("pki"), "SUBNET": subnet, "NODEIP": address,
				"CGROUP": cgroupPath(os.Getpid()), "SOCKET": containerdSocket, "PAUSE": pauseImage,
			}[name]
		})), 0o600)
	})
}

// startAll starts the components, which run until ctx is done, and waits until Pods can
// be created and, if there is a node, run.
func (c *cluster) startAll(ctx context.Context, o options) error {
	host, address, subnet := "127.0.0.1", "127.0.0.1", ""
	if o.node {
		var err error
		if subnet, err = freeSubnet(); err != nil {
			return err
		}
		host, address = subnet+".1", subnet+nodeAddress
	}
	ports, err := freePorts(5)
	if err != nil {
		return err
	}
	if err := errors.Join(c.writeConfig(subnet, address), c.writeKeys(host, address, ports[0])); err != nil {
		return err
	}
	if o.node {
		if err := c.startNode(ctx, subnet); err != nil {
			return err
		}
	}
	c.startControlPlane(ctx, host, o.node, ports)
	clientConfig, err := clientcmd.BuildConfigFromFlags("", c.path("admin.kubeconfig"))
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(clientConfig)
	if err != nil {
		return err
	}
	if o.node {
		images := image.Images{}
		err := addBusybox(ctx, images)
		for _, spec := range o.images {
			err = errors.Join(err, images.AddProgram(spec))
		}
		if err != nil {
			return err
		}
		if err := importImages(ctx, c.dir, images); err != nil {
			return fmt.Errorf("%w: see %s", err, c.logFile("containerd"))
		}
	}
	err = c.await(ctx, "kube-apiserver", "the API server is ready", func(ctx context.Context) error {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
	if err != nil {
		return err
	}
	// Without the service account, Pods are refused.
	err = c.await(ctx, "kube-controller-manager", "Pods can be created", func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	if err != nil || !o.node {
		return err
	}
	return c.awaitNode(ctx, client, address)
}

// command returns a process of the cluster. It is killed when ctx is done, because the
// data is not kept, and when this process ends.
func (c *cluster) command(ctx context.Context, log *os.File, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, name), args...)
	cmd.Dir = c.dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "GOGC=200") // time is scarcer than memory
	// Ctrl-C must not reach it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// start runs a component until ctx is done. Like systemd, it restarts a component that
// ends, unless that happens too often.
func (c *cluster) start(ctx context.Context, name string, args ...string) {
	log, err := os.Create(c.logFile(name))
	if err != nil {
		c.fail(err)
		return
	}
	c.components.Go(func() {
		defer log.Close()
		const soon, most = 5 * time.Second, 6
		for failures := 0; failures < most; {
			began := time.Now()
			err := c.command(ctx, log, name, args...).Run()
			if ctx.Err() != nil {
				return
			}
			say("%s ended: %v", name, err)
			failures++
			if time.Since(began) > soon {
				failures = 0
			}
			time.Sleep(200 * time.Millisecond)
		}
		c.fail(fmt.Errorf("%s keeps crashing: see %s", name, c.logFile(name)))
	})
}

// await repeats check until it succeeds. If check does not succeed in time, the error
// points to the log of the named component.
func (c *cluster) await(ctx context.Context, name, what string, check func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, startLimit, true, func(ctx context.Context) (bool, error) {
		last = check(ctx)
		return last == nil, nil
	})
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("not after %v: %s: %w: see %s", startLimit, what, last, c.logFile(name))
	}
	say("%4.1fs %s", time.Since(c.began).Seconds(), what)
	return nil
}
