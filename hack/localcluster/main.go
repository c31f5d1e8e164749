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

// Command localcluster builds a real Kubernetes from Go modules and runs it on
// this machine: etcd, the API server, the controller-manager and the scheduler,
// and on request a node with containerd, kubelet and kube-proxy.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
)

const usage = `Usage: localcluster COMMAND

  build [--control-plane]       build what the cache does not have (the first time: some minutes)
  up [--node] [--dir DIR] [--image IMAGE]...
                                start the control plane, with --node (as root) a node too, and
                                print what to export: eval "$(localcluster up)"
  status [--dir DIR]            a line per component; fails unless all run
  load-image [--dir DIR] IMAGE...
                                bring images into the node
  down [--dir DIR]              stop everything and remove the data; DIR/logs stays

An IMAGE is NAME=BINARY, to make one of a static binary, or the path of an image archive.
DIR is by default the folder cnat-localcluster/run in the user's cache folder.
`

var errUsage = errors.New("usage")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// Only the first signal is taken for a wish to clean up.
	context.AfterFunc(ctx, stop)
	switch err := run(ctx, os.Args[1:]); {
	case errors.Is(err, errUsage):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "localcluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return errUsage
	}
	command, args := args[0], args[1:]
	flags := flag.NewFlagSet(command, flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	var (
		dir              string
		onlyControlPlane bool
		node             bool
		images           []string
	)
	if slices.Contains([]string{"up", "down", "status", "load-image"}, command) {
		flags.StringVar(&dir, "dir", "", "")
	}
	switch command {
	case "build":
		flags.BoolVar(&onlyControlPlane, "control-plane", false, "")
	case "up":
		flags.BoolVar(&node, "node", false, "")
		flags.Func("image", "", func(s string) error { images = append(images, s); return nil })
	case "down", "status", "load-image":
	case "help", "-h", "-help", "--help":
		fmt.Print(usage)
		return nil
	default:
		fmt.Fprintf(os.Stderr, "unknown command %q\n%s", command, usage)
		return errUsage
	}
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return errUsage
	}
	if (command == "load-image") != (flags.NArg() > 0) {
		fmt.Fprintf(os.Stderr, "%s: wrong arguments %q\n%s", command, flags.Args(), usage)
		return errUsage
	}

	switch command {
	case "build":
		components := slices.Concat(controlPlane, nodeComponents)
		if onlyControlPlane {
			components = controlPlane
		}
		bin, err := binDir()
		if err != nil {
			return err
		}
		if err := build(ctx, bin, components); err != nil {
			return err
		}
		fmt.Println(bin)
	case "up":
		if len(images) > 0 && !node {
			return errors.New("--image needs --node: only a node runs containers")
		}
		if node {
			if err := needNode(); err != nil {
				return err
			}
		}
		return up(ctx, dir, node, images)
	case "down":
		return down(dir)
	case "status":
		all, err := status(dir)
		if err == nil && !all {
			err = errors.New("not everything runs")
		}
		return err
	case "load-image":
		c, err := newCluster(dir)
		if err != nil {
			return err
		}
		if !c.state.Node || len(c.missing()) > 0 {
			return fmt.Errorf("no node runs in %s: start one with up --node", c.dir)
		}
		return c.loadImages(ctx, flags.Args())
	}
	return nil
}

// say tells of the progress. Stdout is for what a shell evaluates.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
