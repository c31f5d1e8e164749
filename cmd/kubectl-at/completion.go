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
	"math"
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
		Long: `Print the script that kubectl uses to complete kubectl at: names, namespaces, images. It must
be executable, in the PATH, and named kubectl_complete-at. See kubectl completion --help for
how to turn on completion in your shell.`,
		Example: `  kubectl at completion-script > ~/bin/kubectl_complete-at
  chmod +x ~/bin/kubectl_complete-at`,
		Args: cobra.NoArgs,
		Run:  func(*cobra.Command, []string) { fmt.Fprint(c.Out, completionScript) },
	}
}

// timeWords are words that a time can begin with.
var timeWords = []string{"now", "noon", "midnight", "teatime", "today", "tomorrow", "in", "next",
	"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"}

// scheduleWords are the schedules that consist of a word.
var scheduleWords = []string{"@hourly", "@daily", "@weekly", "@monthly", "@yearly"}

// addCompletions sets the completions of arguments and flags.
func (c *cli) addCompletions(root *cobra.Command) {
	root.ValidArgsFunction = completeFirst(timeWords)
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "rm", "suspend", "resume":
			cmd.ValidArgsFunction = c.completeNames(math.MaxInt, "ats", "cronats")
		case "show", "run-now", "check":
			cmd.ValidArgsFunction = c.completeNames(1, "ats", "cronats")
		case "logs", "move", "wait":
			cmd.ValidArgsFunction = c.completeNames(1, "ats")
		case "every":
			cmd.ValidArgsFunction = completeFirst(scheduleWords)
			c.addFlagCompletions(cmd)
			completeWords(cmd, "concurrency", concurrencyPolicies...)
		}
	}
	c.addFlagCompletions(root)
	c.completeObjects(root, "namespace", name, "namespaces")
	completeWords(root, "tz", zones.Names()...)
}

// addFlagCompletions sets the completions for the flags of a command that creates an object.
func (c *cli) addFlagCompletions(cmd *cobra.Command) {
	sources := []string{"cronjobs", "jobs", "deployments", "statefulsets", "daemonsets", "ats", "cronats"}
	c.completeObjects(cmd, "from", kindAndName, sources...)
	c.completeObjects(cmd, "image", func(info *resource.Info) (images []string) {
		from, err := sourceOf(info.Object)
		if wanted := cmd.Flag("from").Value.String(); err != nil || from.spec.Template == nil || wanted != "" && !isNamed(info, wanted) {
			return nil
		}
		for _, container := range from.spec.Template.Spec.Containers {
			images = append(images, answer.OneLine(container.Image))
		}
		return images
	}, sources...)
	c.completeObjects(cmd, "node", name, "nodes")
	c.completeObjects(cmd, "restart", kindAndName, "deployments", "statefulsets", "daemonsets")
	completeWords(cmd, "nodes", allNodes)
	completeWords(cmd, "dry-run", "none", "client", "server")
}

func completeWords(cmd *cobra.Command, flag string, words ...string) {
	// This cannot fail: the flag exists and has no completion yet.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// completeObjects completes a flag with what words returns for the objects of some kinds.
func (c *cli) completeObjects(cmd *cobra.Command, flag string, words func(*resource.Info) []string, resources ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, begun string) (found []string, _ cobra.ShellCompDirective) {
		infos, err := c.listAll(resources)
		for _, info := range infos {
			found = append(found, words(info)...)
		}
		return completions(begun, found, err)
	})
}

// listAll returns the objects of some kinds, except for those that the user may not list.
func (c *cli) listAll(resources []string) (infos []*resource.Info, err error) {
	if err := c.connect(); err != nil {
		return nil, err
	}
	for _, kind := range resources {
		found, failed := c.list(kind, "")
		infos, err = append(infos, found...), cmp.Or(err, failed)
	}
	if len(infos) > 0 {
		return infos, nil
	}
	return nil, err
}

// isNamed reports whether KIND/NAME is an object.
func isNamed(info *resource.Info, text string) bool {
	kind, name := reference(text)
	return kind == info.Mapping.GroupVersionKind.Kind && name == info.Name
}

func name(info *resource.Info) []string { return []string{info.Name} }

func kindAndName(info *resource.Info) []string {
	return []string{strings.ToLower(info.Mapping.GroupVersionKind.Kind) + "/" + info.Name}
}

// completeFirst completes the first argument with one of some words.
func completeFirst(words []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completions(begun, words, nil)
	}
}

// completions returns the candidates that complete the given word.
func completions(begun string, found []string, err error) ([]string, cobra.ShellCompDirective) {
	if err != nil {
		cobra.CompErrorln(err.Error())
		return nil, cobra.ShellCompDirectiveError
	}
	found = slices.DeleteFunc(slices.Clone(found), func(word string) bool { return !strings.HasPrefix(word, begun) })
	slices.Sort(found)
	return slices.Compact(found), cobra.ShellCompDirectiveNoFileComp
}

// completeNames completes the names of Ats and, if they are accepted, of CronAts, for at
// most max arguments.
func (c *cli) completeNames(max int, resources ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= max {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		infos, err := c.listAll(resources)
		var names []string
		for _, info := range infos {
			name, description := info.Name, ""
			switch object := info.Object.(type) {
			case *v1alpha1.At:
				description = stateLine(object, c.now())
			case *v1alpha1.CronAt:
				name, description = ref(object), object.Spec.Schedule
			}
			if !slices.Contains(args, name) {
				names = append(names, name+"\t"+answer.OneLine(description))
			}
		}
		return completions(begun, names, err)
	}
}
