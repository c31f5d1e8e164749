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
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// maxCommand is the length to which a command is shortened in the list.
const maxCommand = 40

// listing has the flags of a command that prints tables, or objects for programs.
type listing struct {
	*cli
	flags    *genericclioptions.PrintFlags
	formats  []string // more values of -o
	table    printers.PrintOptions
	selector string
}

func (c *cli) addListing(cmd *cobra.Command, flags *genericclioptions.PrintFlags, formats ...string) *listing {
	l := &listing{cli: c, flags: flags, formats: formats}
	l.flags.AddFlags(cmd)
	cmd.Flags().BoolVarP(&l.table.WithNamespace, "all-namespaces", "A", false, "Of all namespaces")
	cmd.Flags().StringVarP(&l.selector, "selector", "l", "", "Only objects with these labels, such as app=shop")
	cmd.Flags().BoolVar(&l.table.NoHeaders, "no-headers", false, "Print tables without headers")
	return l
}

// begin validates the flags, and connects. It returns the printer for -o, or nil for one of the formats or a table.
func (l *listing) begin() (printers.ResourcePrinter, error) {
	if _, err := labels.Parse(l.selector); err != nil {
		return nil, usageError("--selector is %q: %w", l.selector, err)
	}
	format := *l.flags.OutputFormat
	l.table.Wide = format == "wide"
	var printer printers.ResourcePrinter
	if format != "" && !slices.Contains(l.formats, format) {
		var err error
		if printer, err = l.flags.ToPrinter(); err != nil {
			return nil, usageError("%w, or %s. Other formats: %s", err, strings.Join(l.formats, ", "), l.kubectl("get at -o FORMAT"))
		}
	}
	err := l.connect()
	if l.table.WithNamespace {
		l.namespace = metav1.NamespaceAll
	}
	return printer, err
}

func (c *cli) listCommand() *cobra.Command {
	all := false
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls", "get", "atq"},
		Short:   "List what is scheduled, in order of time",
		Long: `List scheduled and running Ats in order of time, and then the CronAts. With --all, list finished
Ats, too, and the Ats of the nodes on which an At of --nodes runs.`,
		Example: `  kubectl at list
  kubectl at list -A --all -o wide`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError("a list has no names: write %s", c.kubectl("at show %s", args[0]))
			}
			return nil
		},
	}
	l := c.addListing(cmd, genericclioptions.NewPrintFlags("").WithTypeSetter(kinds), "wide")
	cmd.Flag("output").Usage += " And wide."
	cmd.Flags().BoolVar(&l.table.ShowLabels, "show-labels", false, "Print the labels in a further column")
	cmd.Flags().BoolVar(&all, "all", false, "Also list finished Ats and the Ats of nodes")
	cmd.RunE = func(*cobra.Command, []string) error {
		printer, err := l.begin()
		if err != nil {
			return err
		}
		ats, err := c.listAts(l.selector)
		if err != nil {
			return err
		}
		if !all {
			ats = slices.DeleteFunc(ats, func(at *v1alpha1.At) bool { return at.Status.Phase == v1alpha1.PhaseDone || plan.ParentName(at) != "" })
		}
		cronAts, err := c.listCronAts(l.selector)
		if err != nil {
			return err
		}
		if printer == nil {
			return c.printTables(ats, cronAts, l.table)
		}
		list := &corev1.List{Items: []runtime.RawExtension{}} // not null in JSON
		add := func(object runtime.Object) { list.Items = append(list.Items, runtime.RawExtension{Object: object}) }
		for _, at := range ats {
			add(at)
		}
		for _, cronAt := range cronAts {
			add(cronAt)
		}
		if *l.flags.OutputFormat == "name" { // It prints no lists.
			return meta.EachListItem(list, func(item runtime.Object) error { return printer.PrintObj(item, c.Out) })
		}
		return printer.PrintObj(list, c.Out)
	}
	return cmd
}

// instantOf returns when an At is due; invalid schedules come first.
func instantOf(at *v1alpha1.At) time.Time {
	instant, _ := plan.Instant(&at.Spec)
	return instant
}

// printTables prints the Ats, and the CronAts if there are any.
func (c *cli) printTables(ats []*v1alpha1.At, cronAts []*v1alpha1.CronAt, table printers.PrintOptions) error {
	if len(ats) == 0 && len(cronAts) == 0 {
		c.say("Nothing is scheduled. %s also shows what is done, %s all namespaces.", c.kubectl("at list --all"), c.kubectl("at list -A"))
	}
	err := c.printTable("", ats, table)
	if len(ats) > 0 && len(cronAts) > 0 {
		fmt.Fprintln(c.Out)
	}
	return cmp.Or(err, c.printCronAts(cronAts, table))
}

func (c *cli) printTable(title string, ats []*v1alpha1.At, options printers.PrintOptions) error {
	table := newTable("Name", "When", "In", "Phase", "Reason", "Command", "wide", "Exit", "Pod", "Node", "Rehearsed", "Requester")
	for _, at := range ats {
		when, in := at.Spec.Schedule, ""
		if instant, err := plan.Instant(&at.Spec); err == nil {
			when, in = c.shown(instant), fromNow(instant, c.now())
		}
		pod := ptr.Deref(at.Status.Pod, v1alpha1.AtPod{})
		table.add(at, at.Name, when, in, string(at.Status.Phase), c.reasonOf(at),
			clip(commandOf(&at.Spec.RunSpec), maxCommand), exitCodeOf(at.Status.ExitCode), pod.Name, pod.NodeName, c.rehearsed(at),
			at.Annotations[v1alpha1.AnnotationRequester],
		)
	}
	return table.print(c, title, options)
}

// table is what a command prints for several objects.
type table struct{ metav1.Table }

// newTable returns a table with these columns. Those behind "wide" are only in a wide one.
func newTable(columns ...string) *table {
	t, priority := &table{}, int32(0)
	for _, name := range columns {
		if name == "wide" {
			priority = 1
			continue
		}
		t.ColumnDefinitions = append(t.ColumnDefinitions, metav1.TableColumnDefinition{Name: name, Priority: priority})
	}
	return t
}

// add adds the row of an object. An empty cell shows a hyphen.
func (t *table) add(object runtime.Object, cells ...string) {
	row := metav1.TableRow{Object: runtime.RawExtension{Object: object}}
	for _, cell := range cells {
		row.Cells = append(row.Cells, cmp.Or(answer.OneLine(cell), "-"))
	}
	t.Rows = append(t.Rows, row)
}

// print prints a table below its title, unless it is empty.
func (t *table) print(c *cli, title string, options printers.PrintOptions) error {
	if len(t.Rows) == 0 {
		return nil
	}
	if title != "" {
		fmt.Fprintln(c.Out, title)
	}
	return printers.NewTablePrinter(options).PrintObj(&t.Table, c.Out)
}

// exitCodeOf shows the exit code of a command; nil means that it has not ended.
func exitCodeOf(code *int32) string {
	if code == nil {
		return ""
	}
	return fmt.Sprint(*code)
}

// reasonOf returns the reason for the state of an object, even if there is no controller to
// report it.
func (c *cli) reasonOf(of object) string {
	if isUnattended(of, c.now()) {
		return "NoController"
	}
	return asAt(of).Status.Reason
}

// commandOf returns the command in one line.
func commandOf(spec *v1alpha1.RunSpec) string {
	if spec.Command != "" {
		return answer.OneLine(spec.Command)
	}
	if spec.Restart != nil {
		return "restart " + targetOf(spec)
	}
	containers := ptr.Deref(spec.Template, corev1.PodTemplateSpec{}).Spec.Containers
	if len(containers) == 0 {
		return ""
	}
	if command := slices.Concat(containers[0].Command, containers[0].Args); len(command) > 0 {
		return answer.OneLine(quoteAll(command))
	}
	return "image " + containers[0].Image
}

// clip shortens a text to at most max characters.
func clip(text string, max int) string {
	runes := []rune(text)
	if len(runes) <= max {
		return text
	}
	return string(runes[:max-1]) + "…"
}

// listCronAts returns the CronAts with these labels that the user may list, sorted by their next time.
func (c *cli) listCronAts(selector string) ([]*v1alpha1.CronAt, error) {
	all, err := listIfAllowed[*v1alpha1.CronAt](c, "cronats", selector)
	slices.SortStableFunc(all, func(a, b *v1alpha1.CronAt) int {
		return ptr.Deref(a.Status.NextScheduleTime, metav1.Time{}).Compare(ptr.Deref(b.Status.NextScheduleTime, metav1.Time{}).Time)
	})
	return all, err
}

func (c *cli) printCronAts(cronAts []*v1alpha1.CronAt, options printers.PrintOptions) error {
	table := newTable("Name", "Schedule", "TimeZone", "Next", "In", "Last", "Active", "Reason", "Command", "wide", "Rehearsed", "Requester")
	for _, cronAt := range cronAts {
		next := ""
		if at := cronAt.Status.NextScheduleTime; at != nil {
			next = c.shown(at.Time)
		}
		table.add(cronAt, ref(cronAt), cronAt.Spec.Schedule, zoneOf(cronAt), next, c.since(cronAt.Status.NextScheduleTime),
			c.since(cronAt.Status.LastScheduleTime), fmt.Sprint(cronAt.Status.Active), c.reasonOf(cronAt),
			clip(commandOf(&cronAt.Spec.AtTemplate.Spec), maxCommand), c.rehearsed(asAt(cronAt)),
			cronAt.Annotations[v1alpha1.AnnotationRequester],
		)
	}
	return table.print(c, "", options)
}

func zoneOf(cronAt *v1alpha1.CronAt) string { return ptr.Deref(cronAt.Spec.TimeZone, "UTC") }
