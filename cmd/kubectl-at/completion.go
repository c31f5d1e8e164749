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
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

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
			cmd.ValidArgsFunction = c.completeNames(math.MaxInt, true)
		case "show", "run-now":
			cmd.ValidArgsFunction = c.completeNames(1, true)
		case "logs", "move", "wait":
			cmd.ValidArgsFunction = c.completeNames(1, false)
		case "every":
			cmd.ValidArgsFunction = completeFirst(scheduleWords)
			c.addFlagCompletions(cmd)
			_ = cmd.RegisterFlagCompletionFunc("concurrency", cobra.FixedCompletions(concurrencyPolicies, cobra.ShellCompDirectiveNoFileComp))
		}
	}
	c.addFlagCompletions(root)
	c.completeFlag(root, "namespace", c.namespaceNames)
	_ = root.RegisterFlagCompletionFunc("tz", cobra.FixedCompletions(zones.Names(), cobra.ShellCompDirectiveNoFileComp))
}

// addFlagCompletions sets the completions for the flags of a command that creates an
// object.
func (c *cli) addFlagCompletions(cmd *cobra.Command) {
	c.completeFlag(cmd, "from", c.sources)
	c.completeFlag(cmd, "image", c.images)
	c.completeFlag(cmd, "node", c.nodeNames)
	c.completeFlag(cmd, "restart", c.restartTargets)
	// This cannot fail: the flag exists and has no completion yet.
	_ = cmd.RegisterFlagCompletionFunc("nodes", cobra.FixedCompletions([]string{allNodes}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("dry-run", cobra.FixedCompletions([]string{"none", "client", "server"}, cobra.ShellCompDirectiveNoFileComp))
}

// completeFlag completes a flag with what find finds in the cluster.
func (c *cli) completeFlag(cmd *cobra.Command, name string, find func(*cobra.Command) ([]string, error)) {
	_ = cmd.RegisterFlagCompletionFunc(name, func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		if err := c.connect(); err != nil {
			return completions(begun, nil, err)
		}
		found, err := find(cmd)
		return completions(begun, found, err)
	})
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
func (c *cli) completeNames(max int, cronAts bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= max {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names, err := c.namesExcept(cmd.Context(), args, cronAts)
		return completions(begun, names, err)
	}
}

// namesExcept returns the names of Ats and, if they are accepted, of CronAts, with their
// descriptions, except for those that are already among the arguments.
func (c *cli) namesExcept(ctx context.Context, args []string, cronAts bool) (names []string, err error) {
	if err := c.connect(); err != nil {
		return nil, err
	}
	add := func(name, description string) {
		if !slices.Contains(args, name) {
			names = append(names, name+"\t"+answer.OneLine(description))
		}
	}
	list, err := c.list(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		add(list.Items[i].Name, stateLine(&list.Items[i], c.now()))
	}
	if !cronAts {
		return names, nil
	}
	found, err := c.listCronAts(ctx, metav1.ListOptions{})
	for i := range found {
		add(refCronAt(&found[i]), found[i].Spec.Schedule)
	}
	return names, err
}

// names returns the names of the objects that list lists, with a prefix.
func names[L runtime.Object](cmd *cobra.Command, prefix string, list func(context.Context, metav1.ListOptions) (L, error)) (names []string, err error) {
	err = each(cmd.Context(), metav1.ListOptions{}, list, func(item object) { names = append(names, prefix+item.GetName()) })
	return names, err
}

func (c *cli) namespaceNames(cmd *cobra.Command) ([]string, error) {
	return names(cmd, "", c.kube.CoreV1().Namespaces().List)
}

func (c *cli) nodeNames(cmd *cobra.Command) ([]string, error) {
	return names(cmd, "", c.kube.CoreV1().Nodes().List)
}

// restartTargets returns the possible values of --restart.
func (c *cli) restartTargets(cmd *cobra.Command) ([]string, error) {
	apps := c.kube.AppsV1()
	deployments, err := names(cmd, "deployment/", apps.Deployments(c.namespace).List)
	if err != nil {
		return nil, err
	}
	statefulSets, err := names(cmd, "statefulset/", apps.StatefulSets(c.namespace).List)
	if err != nil {
		return nil, err
	}
	daemonSets, err := names(cmd, "daemonset/", apps.DaemonSets(c.namespace).List)
	return slices.Concat(deployments, statefulSets, daemonSets), err
}

// templates returns the Pod templates that --from can copy, by their names in --from.
func (c *cli) templates(cmd *cobra.Command) (map[string]corev1.PodSpec, error) {
	found := map[string]corev1.PodSpec{}
	err := each(cmd.Context(), metav1.ListOptions{}, c.kube.BatchV1().CronJobs(c.namespace).List, func(item *batchv1.CronJob) {
		found["cronjob/"+item.Name] = item.Spec.JobTemplate.Spec.Template.Spec
	})
	if err == nil {
		err = each(cmd.Context(), metav1.ListOptions{}, c.kube.BatchV1().Jobs(c.namespace).List, func(item *batchv1.Job) { found["job/"+item.Name] = item.Spec.Template.Spec })
	}
	if err == nil {
		err = each(cmd.Context(), metav1.ListOptions{}, c.kube.AppsV1().Deployments(c.namespace).List, func(item *appsv1.Deployment) { found["deployment/"+item.Name] = item.Spec.Template.Spec })
	}
	return found, err
}

func (c *cli) sources(cmd *cobra.Command) ([]string, error) {
	templates, err := c.templates(cmd)
	return slices.Collect(maps.Keys(templates)), err
}

// images returns the images of the object in --from or, without it, of all possible
// objects.
func (c *cli) images(cmd *cobra.Command) ([]string, error) {
	templates, err := c.templates(cmd)
	from := cmd.Flag("from").Value.String()
	if kind, name := (&podFlags{from: from}).source(); kind != "" {
		from = kind + "/" + name
	}
	var images []string
	for name, spec := range templates {
		if from != "" && name != from {
			continue
		}
		for _, container := range spec.Containers {
			images = append(images, answer.OneLine(container.Image))
		}
	}
	return images, err
}
