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
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/resource"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/zones"
)

// completionScript is the script that kubectl calls to complete the words after kubectl
// at.
const completionScript = `#!/bin/sh
exec kubectl at __complete "$@"
`

func (c *cli) completionScriptCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion-script",
		Short: "Print the completion script of kubectl at",
		Long: `Print the script that kubectl uses to complete kubectl at: names, namespaces, zones. It must
be executable, in the PATH, and named kubectl_complete-at. See kubectl completion --help for
how to turn on completion in your shell.`,
		Example: `  kubectl at completion-script > ~/bin/kubectl_complete-at
  chmod +x ~/bin/kubectl_complete-at`,
		Args: cobra.NoArgs,
		Run:  func(*cobra.Command, []string) { fmt.Fprint(c.Out, completionScript) },
	}
}

// timeWords are words that a time can begin with.
var timeWords = strings.Fields("now noon midnight teatime today tomorrow in next monday tuesday wednesday thursday friday saturday sunday")

// scheduleWords are the schedules that consist of a word.
var scheduleWords = strings.Fields("@hourly @daily @weekly @monthly @yearly")

// addCompletions sets the completions of arguments and flags. The shell chooses those that begin as the word does.
func (c *cli) addCompletions(root *cobra.Command) {
	root.ValidArgsFunction = completeWords(timeWords...)
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "rm", "suspend", "resume", "show", "run-now", "check":
			cmd.ValidArgsFunction = c.complete(c.nameAndState, "ats", "cronats")
		case "logs", "move", "wait":
			cmd.ValidArgsFunction = c.complete(c.nameAndState, "ats")
		case "unfreeze":
			cmd.ValidArgsFunction = c.complete(name, "freezes")
		case "every":
			cmd.ValidArgsFunction = completeWords(scheduleWords...)
			c.addFlagCompletions(cmd)
			completeFlag(cmd, "concurrency", completeWords(concurrencyPolicies...))
		}
	}
	c.addFlagCompletions(root)
	completeFlag(root, "namespace", c.complete(name, "namespaces"))
	completeFlag(root, "tz", completeWords(zones.Names()...))
}

// addFlagCompletions sets the completions for the flags of a command that creates an object.
func (c *cli) addFlagCompletions(cmd *cobra.Command) {
	workloads := []string{"deployments", "statefulsets", "daemonsets"}
	sources := append([]string{"cronjobs", "jobs", "ats", "cronats"}, workloads...)
	completeFlag(cmd, "from", c.complete(kindAndName, sources...))
	completeFlag(cmd, "node", c.complete(name, "nodes"))
	completeFlag(cmd, "restart", c.complete(kindAndName, workloads...))
	completeFlag(cmd, "nodes", completeWords(allNodes))
	completeFlag(cmd, "dry-run", completeWords("none", "client", "server"))
}

func completeFlag(cmd *cobra.Command, flag string, complete cobra.CompletionFunc) {
	_ = cmd.RegisterFlagCompletionFunc(flag, complete) // The flag exists, and has no completion yet.
}

func completeWords(words ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
}

// complete completes arguments with what word returns for the objects of some kinds, except
// for those that the user may not list.
func (c *cli) complete(word func(*resource.Info) string, kinds ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) (found []string, _ cobra.ShellCompDirective) {
		err := c.connect()
		for _, kind := range kinds {
			infos, failed := c.list(kind, "")
			err = cmp.Or(err, failed)
			for _, info := range infos {
				found = append(found, word(info))
			}
		}
		if err != nil && len(found) == 0 {
			c.say("%v", err)
			return nil, cobra.ShellCompDirectiveError
		}
		found = slices.DeleteFunc(found, func(word string) bool {
			name, _, _ := strings.Cut(word, "\t")
			return slices.Contains(args, name)
		})
		slices.Sort(found)
		return slices.Compact(found), cobra.ShellCompDirectiveNoFileComp
	}
}

func name(info *resource.Info) string { return info.Name }

func kindAndName(info *resource.Info) string { return ref(info.Object.(object)) }

// nameAndState returns the name of an At or a CronAt with a description.
func (c *cli) nameAndState(info *resource.Info) string {
	if at, isAt := info.Object.(*v1alpha1.At); isAt {
		return at.Name + "\t" + answer.OneLine(c.stateLine(at))
	}
	cronAt := info.Object.(*v1alpha1.CronAt)
	return ref(cronAt) + "\t" + answer.OneLine(cronAt.Spec.Schedule)
}
