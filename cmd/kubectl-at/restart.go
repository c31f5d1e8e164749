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
	"strings"

	"github.com/spf13/cobra"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// restartKinds maps the names that kubectl accepts to the kinds of workloads that can be
// restarted.
var restartKinds = map[string]v1alpha1.RestartKind{
	"deployment": v1alpha1.RestartDeployment, "deployments": v1alpha1.RestartDeployment, "deploy": v1alpha1.RestartDeployment,
	"statefulset": v1alpha1.RestartStatefulSet, "statefulsets": v1alpha1.RestartStatefulSet, "sts": v1alpha1.RestartStatefulSet,
	"daemonset": v1alpha1.RestartDaemonSet, "daemonsets": v1alpha1.RestartDaemonSet, "ds": v1alpha1.RestartDaemonSet,
}

// parseRestart returns the workload of --restart.
func parseRestart(text string) (*v1alpha1.AtRestart, error) {
	kind, name, _ := strings.Cut(text, "/")
	kind, _ = strings.CutSuffix(strings.ToLower(kind), ".apps")
	if restartKinds[kind] == "" || name == "" {
		return nil, usageError("--restart is %q: write deployment/NAME, statefulset/NAME or daemonset/NAME", text)
	}
	return &v1alpha1.AtRestart{Kind: restartKinds[kind], Name: name}, nil
}

// validateRestart rejects flags that apply to a command together with --restart.
func (r *run) validateRestart(cmd *cobra.Command, w *wait) error {
	if !cmd.Flags().Changed("restart") {
		return nil
	}
	if cmd.ArgsLenAtDash() >= 0 {
		return usageError("--restart does not run a command: remove what follows --")
	}
	for _, flag := range []string{"from", "filename", "image", "env", "node", "nodes", "retries"} {
		if cmd.Flags().Changed(flag) {
			return usageError("--%s applies to a command, but --restart runs none: remove one of the two", flag)
		}
	}
	if w.logs {
		return errLogsOfRestart
	}
	_, err := parseRestart(r.restart)
	return err
}

// errLogsOfRestart and errLogsOfNodes say what to use instead of --logs.
var (
	errLogsOfRestart = usageError("--logs prints the output of a command, but a restart has none: use --wait")
	errLogsOfNodes   = usageError("--logs follows a single run, but there is one on each node: use --wait, and print the output of a node with kubectl at logs NAME-NODE")
)

// errLogs returns why --logs cannot follow a run, or nil if it can.
func errLogs(spec *v1alpha1.RunSpec) error {
	switch {
	case spec.Nodes != nil:
		return errLogsOfNodes
	case spec.Restart != nil:
		return errLogsOfRestart
	}
	return nil
}

// targetOf returns the name of the workload to restart, as kubectl prints it, or "" if
// there is none.
func targetOf(spec *v1alpha1.RunSpec) string {
	if spec.Restart == nil {
		return ""
	}
	return strings.ToLower(string(spec.Restart.Kind)) + "/" + spec.Restart.Name
}
