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

// Command localcluster runs a real Kubernetes on this machine: etcd, the API server, the
// controller-manager and the scheduler and, optionally, a node with containerd, kubelet
// and kube-proxy. The binary combines all these programs.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	_ "time/tzdata" // for the time zones of CronJobs

	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins"
	containerd "github.com/containerd/containerd/v2/cmd/containerd/command"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// components maps the names by which this program is called to the main functions of the
// programs that it contains. Linking them once halves the build time.
var components = map[string]func(){
	"etcd":                    func() { etcdmain.Main(os.Args) },
	"kube-apiserver":          func() { exit(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() { exit(controllermanager.NewControllerManagerCommand()) },
	"kube-scheduler":          func() { exit(scheduler.NewSchedulerCommand()) },
	"kube-proxy":              func() { exit(proxy.NewProxyCommand()) },
	"kubelet":                 func() { exit(kubelet.NewKubeletCommand(context.Background())) },
	"containerd": func() {
		if err := containerd.App().Run(context.Background(), os.Args); err != nil {
			fmt.Fprintln(os.Stderr, "containerd:", err)
			os.Exit(1)
		}
	},
}

func exit(command *cobra.Command) { os.Exit(cli.Run(command)) }

func main() {
	name := filepath.Base(os.Args[0])
	if component, ok := components[name]; ok {
		component()
		return
	}
	// Run until the process is stopped or the terminal is closed.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := command().ExecuteContext(ctx)
	var exited *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &exited) && exited.ExitCode() > 0:
		os.Exit(exited.ExitCode())
	default:
		say("localcluster: %v", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "localcluster",
		Short:         "A real Kubernetes on this machine, without Docker",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	o := options{}
	run := &cobra.Command{
		Use:   "run [flags] [-- COMMAND [ARG...]]",
		Short: "Run a cluster for as long as a command runs, or until Ctrl-C",
		Long: "Run a cluster for as long as COMMAND runs, with KUBECONFIG and PATH set for it; without\n" +
			"COMMAND, print what to export, and run until Ctrl-C. Nothing is left behind.",
		RunE: func(c *cobra.Command, args []string) error { return runCluster(c.Context(), o, args) },
	}
	run.Flags().StringVar(&o.dir, "dir", "", "folder of the cluster; its logs stay there (default: a temporary folder)")
	run.Flags().BoolVar(&o.node, "node", false, "with a node that runs containers, which needs root")
	run.Flags().StringArrayVar(&o.images, "image", nil, "NAME=BINARY, an image to make of a static program and to bring to the node")
	load := &cobra.Command{
		Use:   "load-image DIR NAME=BINARY|ARCHIVE...",
		Short: "Make images of static programs, or read them from archives, and bring them to the node of the cluster in DIR",
		Args:  cobra.MinimumNArgs(2),
		RunE:  func(c *cobra.Command, args []string) error { return loadImages(c.Context(), args[0], args[1:]) },
	}
	node := &cobra.Command{
		Use:    "node DIR SUBNET",
		Hidden: true, // The command run starts it in its own namespaces.
		Args:   cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			if os.Getpid() == 1 {
				return runFirst()
			}
			return runNode(c.Context(), args[0], args[1])
		},
	}
	root.AddCommand(run, load, node)
	return root
}

// say reports progress on stderr. Stdout is for output that a shell evaluates.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}
