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
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/cli-runtime/pkg/resource"

	"programming-kubernetes.info/cnat-controller/cmd/kubectl-at/timespec"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/freeze"
)

// controllerNamespace is the namespace of the controller in the manifests.
const controllerNamespace = "cnat-system"

// findController returns the namespace of the controller, whose Freezes can hold everywhere. If the user
// cannot find it, that is the one in the manifests.
func (c *cli) findController() string {
	found, _ := listOf[*appsv1.Deployment](c.in(metav1.NamespaceAll), "deployments", "app.kubernetes.io/name=cnat-controller")
	if len(found) != 1 {
		return controllerNamespace
	}
	return found[0].Namespace
}

// freezing has the flags and the arguments of kubectl at freeze.
type freezing struct {
	*writer
	reason   string
	selector string
	all      bool

	name        string
	objects     []string
	from, until []string // words of times
}

func (c *cli) freezeCommand() *cobra.Command {
	f := freezing{}
	cmd := &cobra.Command{
		Use:        "freeze [NAME] [cronat/NAME...] [from TIME] until TIME",
		SuggestFor: []string{"block", "lock", "maintenance", "skip"},
		Short:      "Let nothing start until a time",
		Long: `Let nothing start until a time, or from one time until another: in the namespace, with -A in all
of them, with -l only the Ats and CronAts with these labels, or only those that are named. What runs
goes on. An At that is due waits, unless it has a starting deadline. A CronAt skips its times. See kubectl
at --help for the syntax of TIME.`,
		Example: `  kubectl at freeze until monday 06:00 --reason "Migration, ask #ops"
  kubectl at freeze christmas from 23 dec 16:00 until 2 jan 06:00 -A
  kubectl at freeze cronat/nightly until friday
  kubectl at freeze shop -l app=shop until tomorrow 08:00`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cmp.Or(f.split(args), f.validate()); err != nil {
				return err
			}
			return f.run(cmd.Context())
		},
	}
	f.writer = c.addWriter(cmd, "created")
	cmd.Flags().StringVar(&f.reason, "reason", "", "What people see who wait, such as \"Change freeze, ask #ops\"")
	cmd.Flags().StringVarP(&f.selector, "selector", "l", "", "Only Ats and CronAts with these labels, such as app=shop, and what they create")
	cmd.Flags().BoolVarP(&f.all, "all-namespaces", "A", false, "In all namespaces: write the Freeze to the namespace of the controller, which is "+controllerNamespace+" if you cannot see it, or to that of -n")
	return cmd
}

// split reads the arguments.
func (f *freezing) split(args []string) error {
	until := slices.Index(args, "until")
	if until < 0 || until == len(args)-1 {
		return usageError("write until when nothing starts, such as until monday 06:00")
	}
	from := slices.Index(args[:until], "from")
	if from < 0 {
		from = until
	} else if f.from = args[from+1 : until]; len(f.from) == 0 {
		return usageError("write a time after from, such as from friday 18:00 until monday 06:00")
	}
	f.until = args[until+1:]
	for _, arg := range args[:from] {
		switch kind, _ := reference(arg); {
		case kind == v1alpha1.AtKind || kind == v1alpha1.CronAtKind:
			f.objects = append(f.objects, arg)
		case strings.Contains(arg, "/"):
			return usageError("%q is not a name: write at/NAME for an At, cronat/NAME for a CronAt", arg)
		case f.name != "":
			return usageError("a Freeze has one name, not %s and %s: write at/NAME for an At, cronat/NAME for a CronAt", f.name, arg)
		default:
			f.name = arg
		}
	}
	if len(f.objects) > 0 && (f.selector != "" || f.all) {
		return usageError("names of Ats and CronAts cannot be combined with -l or -A")
	}
	return nil
}

func (f *freezing) run(ctx context.Context) error {
	from, until, err := f.window()
	if err != nil {
		return err
	}
	selector, err := f.selects()
	if err != nil {
		return err
	}
	seconds := func(t time.Time) v1alpha1.FreezeTime { return v1alpha1.FreezeTime(t.Format(time.RFC3339)) }
	object := &v1alpha1.Freeze{
		ObjectMeta: metav1.ObjectMeta{Name: f.name},
		Spec:       v1alpha1.FreezeSpec{Windows: []v1alpha1.FreezeWindow{{From: seconds(from), Until: seconds(until)}}, Reason: f.reason, Selector: selector},
	}
	if f.name == "" {
		object.GenerateName = "freeze-"
	}
	if object.Namespace, _, err = f.config.ToRawKubeConfigLoader().Namespace(); err != nil {
		return err
	}
	if f.all && !f.flags.Changed("namespace") {
		object.Namespace = f.findController()
		f.say("in namespace %s: only in that of the controller, a Freeze holds everywhere", object.Namespace)
	}
	if !f.all {
		// In the namespace of the controller, it would otherwise hold everywhere.
		object.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: object.Namespace}}
	}
	if err := f.create(ctx, object); err != nil {
		return err
	}
	verb := "nothing starts"
	if f.dryRun != "none" {
		verb = "nothing would start"
	}
	if from.After(f.began) {
		verb += " from " + when(from, f.local(), f.began)
	}
	f.announce(verb+" until", until, "")
	return nil
}

// window returns the window of the times, in the user's zone.
func (f *freezing) window() (from, until time.Time, err error) {
	var t timespec.Time
	from = f.began.In(f.local())
	if len(f.from) > 0 {
		if t, err = f.parseTime(f.from, timespec.Options{AllowPast: true}); err != nil {
			return from, until, err
		}
		from = t.Instant.In(f.local())
	}
	after := *f.cli
	after.began = later(from, f.began) // "until monday" is the first one after from.
	if t, err = after.parseTime(f.until, timespec.Options{AllowPast: true}); err != nil {
		return from, until, err
	}
	if until = t.Instant.In(f.local()); !until.After(from) {
		err = usageError("the Freeze would end at %s, before it begins at %s: write a later time after until", until.Format(longTime), from.Format(longTime))
	}
	return from, until, err
}

// selects returns the selector of -l, or of the named objects.
func (f *freezing) selects() (*metav1.LabelSelector, error) {
	if f.selector != "" {
		selector, err := metav1.ParseToLabelSelector(f.selector)
		if err != nil {
			return nil, usageError("--selector is %q: %w", f.selector, err)
		}
		return selector, nil
	}
	if len(f.objects) == 0 {
		return nil, nil
	}
	requirement := metav1.LabelSelectorRequirement{Operator: metav1.LabelSelectorOpIn}
	for _, arg := range f.objects {
		kind, name := reference(arg)
		key := v1alpha1.LabelAtName
		if kind == v1alpha1.CronAtKind {
			key = v1alpha1.LabelCronAtName
		}
		switch {
		case len(name) > validation.LabelValueMaxLength:
			return nil, usageError("%s has a name of more than %d characters: give it a label, and select it with -l", arg, validation.LabelValueMaxLength)
		case requirement.Key != "" && requirement.Key != key:
			return nil, usageError("a Freeze of single objects is of Ats or of CronAts, not of both: write two")
		}
		requirement.Key, requirement.Values = key, append(requirement.Values, name)
	}
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{requirement}}, nil
}

func (c *cli) unfreezeCommand() *cobra.Command {
	all := false
	cmd := &cobra.Command{
		Use:        "unfreeze NAME...",
		Aliases:    []string{"thaw"},
		SuggestFor: []string{"unblock", "unlock"},
		Short:      "Delete Freezes",
		Long: `Delete Freezes of the namespace, or with -A those that hold in all namespaces. What waits for them
starts, unless another Freeze holds. Times that a CronAt has skipped do not run.`,
		Example: `  kubectl at unfreeze freeze-x2b4f
  kubectl at unfreeze christmas -A`,
	}
	c.forEach(cmd, "deleted", func(arg string) (*resource.Info, error) {
		err := c.connect()
		if err != nil {
			return nil, err
		}
		if all && !c.flags.Changed("namespace") {
			c.namespace = c.findController()
		}
		return c.one("freezes", arg)
	}, (*writer).remove)
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "Those in the namespace of the controller, which is "+controllerNamespace+" if you cannot see it, or in that of -n")
	return cmd
}

// later returns the later one of two instants.
func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// freezes returns the Freezes of a namespace, or of all of them, and of the whole cluster, as far as the
// user may read them.
func (c *cli) freezes(namespace string) *freeze.Set {
	controller := c.findController()
	var found []*freeze.Freeze
	var labelsOf map[string]labels.Set
	for _, from := range slices.Compact([]string{namespace, controller}) {
		all, _ := listOf[*v1alpha1.Freeze](c.in(from), "freezes", "")
		for _, one := range all {
			ready, _ := freeze.New(one) // What cannot be read holds nothing.
			found = append(found, ready)
			if from == controller && one.Spec.NamespaceSelector != nil && labelsOf == nil {
				labelsOf = c.labelsOfNamespaces(namespace)
			}
		}
	}
	return freeze.NewSet(controller, found, labelsOf)
}

// labelsOfNamespaces returns the labels of a namespace, or of all of them. A user who may not read them has
// Freezes announced that select namespaces by name, but not by other labels.
func (c *cli) labelsOfNamespaces(name string) map[string]labels.Set {
	found := c.find().ResourceNames("namespaces", name)
	if name == metav1.NamespaceAll {
		found = c.find().ResourceTypes("namespaces").SelectAllParam(true)
	}
	infos, _ := found.Flatten().Do().Infos()
	all := map[string]labels.Set{}
	for _, info := range infos {
		all[info.Name] = info.Object.(*corev1.Namespace).Labels
	}
	return all
}

// announceFreeze prints which Freeze would keep an At or the next At of a CronAt from starting. It
// is a service: a Freeze that the user may not read is not announced.
func (w *writer) announceFreeze(object object, instant time.Time) {
	if w.isClient() {
		return
	}
	hold := w.freezes(object.GetNamespace()).Holding(freeze.NewSubject(object), instant)
	if hold == nil {
		return
	}
	what := "would wait"
	if _, isCronAt := object.(*v1alpha1.CronAt); isCronAt {
		what = "would skip that time"
	}
	w.say("%s: %s", what, hold)
}
