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
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/cmd/kubectl-at/timespec"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	cnatclient "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/typed/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// cronAtPrefix distinguishes the name of a CronAt from that of an At.
const cronAtPrefix = "cronat/"

// refCronAt returns the name of a CronAt for a message, as kubectl prints it.
func refCronAt(cronAt *v1alpha1.CronAt) string { return cronAtPrefix + cronAt.Name }

// splitName returns the name of an object from an argument such as cronat/backup. A name
// without a kind is that of an At.
func splitName(arg string) (name string, isCronAt bool, err error) {
	if !strings.Contains(arg, "/") {
		return arg, false, nil
	}
	kind, name := reference(arg, "at", "cronat")
	if kind != "" {
		return name, kind == "cronat", nil
	}
	return "", false, usageError("%q is not a name: write NAME or at/NAME for an At, cronat/NAME for a CronAt", arg)
}

// atName returns the name of an At from an argument. If the argument names a CronAt, the
// error contains instead, which says what to do.
func atName(arg string, instead func(name string) string) (string, error) {
	name, isCronAt, err := splitName(arg)
	if isCronAt {
		return "", usageError("%s is a CronAt: %s", arg, instead(name))
	}
	return name, err
}

// atClient is the client for Ats. If there is no At of a name but a CronAt, its error
// says so.
type atClient struct {
	cnatclient.AtInterface
	cronAts cnatclient.CronAtInterface
}

func (c atClient) Get(ctx context.Context, name string, options metav1.GetOptions) (*v1alpha1.At, error) {
	at, err := c.AtInterface.Get(ctx, name, options)
	if apierrors.IsNotFound(err) {
		if _, err := c.cronAts.Get(ctx, name, options); err == nil {
			return nil, fmt.Errorf("there is no At %q, but there is a CronAt: write %s%s", name, cronAtPrefix, name)
		}
	}
	return at, err
}

// listCronAts returns the CronAts in the namespace. It returns none if the cluster does
// not have the CRD, or if the user is not allowed to list them.
func (c *cli) listCronAts(ctx context.Context, options metav1.ListOptions) ([]v1alpha1.CronAt, error) {
	var cronAts []v1alpha1.CronAt
	err := each(ctx, options, c.cnat.CnatV1alpha1().CronAts(c.namespace).List, func(cronAt *v1alpha1.CronAt) { cronAts = append(cronAts, *cronAt) })
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case apierrors.IsForbidden(err):
		fmt.Fprintf(c.ErrOut, "Cannot list CronAts: %v\n", err)
		return nil, nil
	}
	return cronAts, err
}

func (c *cli) printCronAts(cronAts []v1alpha1.CronAt, options printers.PrintOptions) error {
	zone, err := c.zone()
	if err != nil {
		return err
	}
	slices.SortStableFunc(cronAts, func(a, b v1alpha1.CronAt) int {
		return ptr.Deref(a.Status.NextScheduleTime, metav1.Time{}).Compare(ptr.Deref(b.Status.NextScheduleTime, metav1.Time{}).Time)
	})
	now := c.now()
	var rows []metav1.TableRow
	for i := range cronAts {
		cronAt := &cronAts[i]
		next := ""
		if at := cronAt.Status.NextScheduleTime; at != nil {
			next = at.In(zone).Format(shortTime)
		}
		rows = append(rows, row(
			cronAt, refCronAt(cronAt), cronAt.Spec.Schedule, zoneOf(cronAt), next, since(cronAt.Status.NextScheduleTime, now),
			since(cronAt.Status.LastScheduleTime, now), fmt.Sprint(cronAt.Status.Active), reasonOfCronAt(cronAt, now),
			clip(commandOf(&cronAt.Spec.AtTemplate.Spec), maxCommand),
		))
	}
	return c.printRows(options, columns(0, "Name", "Schedule", "TimeZone", "Next", "In", "Last", "Active", "Reason", "Command"), rows)
}

func zoneOf(cronAt *v1alpha1.CronAt) string { return ptr.Deref(cronAt.Spec.TimeZone, "UTC") }

// reasonOfCronAt returns why no At is created, even if there is no controller to report
// it.
func reasonOfCronAt(cronAt *v1alpha1.CronAt, now time.Time) string {
	if cronAt.Status.Reason == "" && isUnattendedCronAt(cronAt, now) {
		return "NoController"
	}
	return cronAt.Status.Reason
}

// isUnattendedCronAt reports whether no controller has processed a new or due CronAt for
// a while.
func isUnattendedCronAt(cronAt *v1alpha1.CronAt, now time.Time) bool {
	if next := cronAt.Status.NextScheduleTime; next != nil {
		return now.Sub(next.Time) > unattended
	}
	return cronAt.Status.ObservedSchedule == nil && now.Sub(cronAt.CreationTimestamp.Time) > unattended
}

// nextTimes is the number of times that the page of a CronAt shows.
const nextTimes = 3

func (c *cli) showCronAt(ctx context.Context, name string) error {
	if err := c.connect(); err != nil {
		return err
	}
	zone, err := c.zone()
	if err != nil {
		return err
	}
	cronAt, err := c.cronAts.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	// Including those of run-now, which have no label.
	ats, atsErr := c.list(ctx, metav1.ListOptions{})

	now := c.now()
	spec := &cronAt.Spec
	c.fields(
		headOf(refCronAt(cronAt), cronAt.Namespace, &spec.AtTemplate.Spec, spec.StartingDeadlineSeconds),
		[]field{{"Schedule", spec.Schedule + ", " + zoneOf(cronAt)}, {"Policy", policyOf(spec)}},
		nextTimesOf(cronAt, zone, now), c.stateOfCronAt(cronAt, now))
	if atsErr != nil {
		fmt.Fprintf(c.ErrOut, "Cannot list its Ats: %v\n", atsErr)
	} else if ats := atsOf(cronAt, ats.Items); len(ats) > 0 {
		fmt.Fprintln(c.Out, "Ats")
		if err := c.printTable(ats, printers.PrintOptions{Wide: true}); err != nil {
			return err
		}
	}
	return c.events(ctx, cronAt, now)
}

// policyOf describes the other settings of a CronAt.
func policyOf(spec *v1alpha1.CronAtSpec) string {
	policy := string(spec.ConcurrencyPolicy)
	if spread := ptr.Deref(spec.SpreadSeconds, 0); spread > 0 {
		policy += ", spread over " + short(plan.Seconds(spread))
	}
	return policy + fmt.Sprintf(", keeps %d succeeded and %d failed", ptr.Deref(spec.SuccessfulAtsHistoryLimit, 3), ptr.Deref(spec.FailedAtsHistoryLimit, 1))
}

// nextTimesOf shows when a CronAt is due, in the user's time zone and its own.
func nextTimesOf(cronAt *v1alpha1.CronAt, zone *time.Location, now time.Time) []field {
	times, err := cronplan.Next(cronAt, now, nextTimes)
	if err != nil {
		return []field{{"Next", "never: " + err.Error()}}
	}
	var all []field
	label := "Next"
	for _, next := range times {
		all = append(all, field{label, when(next, zone, now)})
		label = ""
	}
	return all
}

// stateOfCronAt describes what a CronAt has done and what prevents more.
func (c *cli) stateOfCronAt(cronAt *v1alpha1.CronAt, now time.Time) []field {
	status := &cronAt.Status
	why := status.Message
	if status.Reason == "" && isUnattendedCronAt(cronAt, now) {
		why = c.noController("No")
	}
	missed := ""
	if status.Missed != nil {
		missed = fmt.Sprintf("%d, the last %s", status.Missed.Count, since(&status.Missed.Last, now))
	}
	return []field{
		{"Active", fmt.Sprint(status.Active)},
		{"State", reasonOfCronAt(cronAt, now)},
		{"Why", why},
		{"Last", since(status.LastScheduleTime, now)},
		{"Succeeded", since(status.LastSuccessfulTime, now)},
		{"Missed", missed},
	}
}

// atsOf returns the Ats that belong to a CronAt, sorted by time.
func atsOf(cronAt *v1alpha1.CronAt, ats []v1alpha1.At) []v1alpha1.At {
	ats = slices.DeleteFunc(ats, func(at v1alpha1.At) bool {
		return !slices.ContainsFunc(at.OwnerReferences, func(owner metav1.OwnerReference) bool { return owner.UID == cronAt.UID })
	})
	sortAts(ats)
	return ats
}

// runCronAt creates an At from a CronAt outside its schedule.
func (c *cli) runCronAt(ctx context.Context, output *output, name string, t timespec.Time, now time.Time, w *wait) error {
	if err := c.connect(); err != nil {
		return err
	}
	cronAt, err := c.cronAts.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if w.logs && cronAt.Spec.AtTemplate.Spec.Restart != nil {
		return errLogsOfRestart
	}
	return c.createAt(ctx, output, manualAt(cronAt, t), t.Instant, now, w)
}

// manualAt returns an At from a CronAt. The CronAt owns it for garbage collection, but is
// not its controller. Otherwise it would count as an At of the schedule: Forbid would
// wait for it, Replace would delete it, and the history limits would count it.
func manualAt(cronAt *v1alpha1.CronAt, t timespec.Time) *v1alpha1.At {
	template := cronAt.Spec.AtTemplate.DeepCopy()
	at := &v1alpha1.At{
		ObjectMeta: metav1.ObjectMeta{
			Name:        plan.ChildName(cronAt.Name, "manual-"+rand.String(5)),
			Namespace:   cronAt.Namespace,
			Labels:      template.Metadata.Labels,
			Annotations: map[string]string{v1alpha1.AnnotationInstantiate: "manual"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: v1alpha1.CronAtKind, Name: cronAt.Name, UID: cronAt.UID,
			}},
		},
		Spec: v1alpha1.AtSpec{Schedule: t.String(), RunSpec: template.Spec},
	}
	maps.Copy(at.Annotations, template.Metadata.Annotations)
	return at
}
