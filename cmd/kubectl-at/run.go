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
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// run has the flags that describe the run, which At and CronAt have in common.
type run struct {
	*cli
	output *output

	name             string
	suspend          bool
	retries          int32
	activeDeadline   seconds
	startingDeadline seconds
	ttl              seconds
	restart          string
	pod              podFlags
	nodes            nodeFlags
}

// addRun adds the flags to a command that creates an object.
func (c *cli) addRun(cmd *cobra.Command) *run {
	r := &run{cli: c, output: addOutput(cmd, "created"), activeDeadline: seconds{least: 1}, ttl: seconds{most: math.MaxInt32}}
	flags := cmd.Flags()
	flags.StringVar(&r.name, "name", "", "Name of the new object (default: derived from the command)")
	flags.BoolVar(&r.suspend, "suspend", false, "Create it suspended: nothing starts until kubectl at resume")
	flags.Int32Var(&r.retries, "retries", 0, "Number of retries after a failure")
	flags.Var(&r.activeDeadline, "active-deadline", "Maximum duration of the run, including all attempts")
	flags.Var(&r.startingDeadline, "starting-deadline", "Maximum delay of the start; after it, the run fails without starting")
	flags.Var(&r.ttl, "ttl", "Delete the At and its Pods this long after its end")
	flags.StringVar(&r.restart, "restart", "", "Restart deployment/NAME, statefulset/NAME or daemonset/NAME, like kubectl rollout restart, instead of running a command")
	r.pod.addFlags(flags)
	r.nodes.addFlags(flags)
	return r
}

func (r *run) validate(cmd *cobra.Command, command []string, w *wait) error {
	if err := cmp.Or(r.output.validate(), w.validate(r.output)); err != nil {
		return err
	}
	if r.retries < 0 {
		return usageError("--retries is %d: it must not be negative", r.retries)
	}
	if problems := validation.IsDNS1123Subdomain(r.name); cmd.Flags().Changed("name") && len(problems) > 0 {
		return usageError("--name is %q: %s", r.name, strings.Join(problems, "; "))
	}
	if err := cmp.Or(r.validateRestart(cmd, w), r.nodes.validate(w), r.pod.validate()); err != nil {
		return err
	}
	if cmd.ArgsLenAtDash() >= 0 && strings.TrimSpace(strings.Join(command, "")) == "" {
		return usageError("there is no command after --: write one, or remove --")
	}
	return nil
}

// describe returns the metadata and the run for the flags, and the object from which the
// Pod was copied.
func (r *run) describe(ctx context.Context, command []string) (metav1.ObjectMeta, v1alpha1.RunSpec, source, error) {
	var from source
	metadata := metav1.ObjectMeta{Name: r.name}
	spec := v1alpha1.RunSpec{Command: shellCommand(command), ActiveDeadlineSeconds: r.activeDeadline.value}
	namespace, isGiven, err := r.config.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return metadata, spec, from, err
	}
	if !r.output.isClient() || isGiven { // Like kubectl create. Otherwise the output fits any namespace.
		metadata.Namespace = namespace
	}
	if err := r.nodes.apply(&spec); err != nil {
		return metadata, spec, from, err
	}
	if r.retries > 0 {
		spec.BackoffLimit = ptr.To(r.retries)
	}
	if r.ttl.value != nil {
		spec.TTLSecondsAfterFinished = ptr.To(int32(*r.ttl.value))
	}
	if r.restart != "" {
		spec.Restart, err = parseRestart(r.restart)
	} else {
		spec.Template, from, err = r.podTemplate(ctx)
	}
	if err != nil {
		return metadata, spec, from, err
	}
	if spec.Command == "" && spec.Restart == nil && !r.pod.runs() {
		if spec.Command, err = r.readCommand(ctx); err != nil {
			return metadata, spec, from, err
		}
	}
	if metadata.Name == "" {
		what := spec.Command
		switch {
		case spec.Restart != nil:
			what = "restart-" + spec.Restart.Name
		case from.name != "":
			what = from.name
		}
		metadata.Name = generateName(what)
	}
	return metadata, spec, from, nil
}

// readCommand reads the command from standard input.
func (r *run) readCommand(ctx context.Context) (string, error) {
	const missing = "there is no command: write it after --, or pipe it into the standard input"
	if isTerminal(r.In) {
		return "", usageError(missing)
	}
	lines, err := interruptible(ctx, func() ([]byte, error) { return io.ReadAll(r.In) })
	if err != nil {
		return "", fmt.Errorf("read the command from standard input: %w", err)
	}
	if strings.TrimSpace(string(lines)) == "" {
		return "", usageError(missing)
	}
	return strings.TrimRight(string(lines), "\n"), nil
}

// interruptible reads something that might take forever, until a signal arrives.
func interruptible(ctx context.Context, read func() ([]byte, error)) ([]byte, error) {
	var content []byte
	done := make(chan error, 1)
	go func() {
		var err error
		content, err = read()
		done <- err
	}()
	select {
	case err := <-done:
		return content, err
	case <-ctx.Done():
		return nil, withCode(exitInterrupted, "interrupted: nothing was created")
	}
}

// hasInput reports whether standard input is a program or a file.
func hasInput(stream any) bool {
	file, ok := stream.(*os.File)
	if !ok {
		return true
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice == 0
}

func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
