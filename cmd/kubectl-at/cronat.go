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
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/cmd/kubectl-at/timespec"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// listCronAts returns the CronAts with these labels in the namespace. It returns none if the cluster
// does not have the CRD, or if the user is not allowed to list them.
func (c *cli) listCronAts(selector string) (all []*v1alpha1.CronAt, err error) {
	infos, err := c.list("cronats", selector)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case apierrors.IsForbidden(err):
		fmt.Fprintf(c.ErrOut, "Cannot list CronAts: %v\n", err)
		return nil, nil
	}
	for _, info := range infos {
		all = append(all, info.Object.(*v1alpha1.CronAt))
	}
	return all, err
}

func (c *cli) printCronAts(cronAts []*v1alpha1.CronAt, options printers.PrintOptions) error {
	slices.SortStableFunc(cronAts, func(a, b *v1alpha1.CronAt) int {
		return ptr.Deref(a.Status.NextScheduleTime, metav1.Time{}).Compare(ptr.Deref(b.Status.NextScheduleTime, metav1.Time{}).Time)
	})
	now := c.now()
	var rows []metav1.TableRow
	for _, cronAt := range cronAts {
		next := ""
		if at := cronAt.Status.NextScheduleTime; at != nil {
			next = at.In(c.local()).Format(shortTime)
		}
		rows = append(rows, row(
			cronAt, ref(cronAt), cronAt.Spec.Schedule, zoneOf(cronAt), next, since(cronAt.Status.NextScheduleTime, now),
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

func (c *cli) showCronAt(ctx context.Context, cronAt *v1alpha1.CronAt) error {
	ats, atsErr := c.listAts("") // Those of run-now have no label.

	now := c.now()
	spec := &cronAt.Spec
	printFields(c.Out,
		headOf(ref(cronAt), cronAt.Namespace, &spec.AtTemplate.Spec, spec.StartingDeadlineSeconds),
		[]field{{"Schedule", spec.Schedule + ", " + zoneOf(cronAt)}, {"Policy", policyOf(spec)}},
		nextTimesOf(cronAt, c.local(), now), c.stateOfCronAt(cronAt, now))
	if atsErr != nil {
		fmt.Fprintf(c.ErrOut, "Cannot list its Ats: %v\n", atsErr)
	} else if ats := atsOf(cronAt, ats); len(ats) > 0 {
		fmt.Fprintln(c.Out, "Ats")
		if err := c.printTable(ats, printers.PrintOptions{Wide: true}); err != nil {
			return err
		}
	}
	return c.events(ctx, "Events", cronAt.Namespace, cronAt.UID, now)
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

// atsOf returns the Ats that belong to a CronAt.
func atsOf(cronAt *v1alpha1.CronAt, ats []*v1alpha1.At) []*v1alpha1.At {
	return slices.DeleteFunc(ats, func(at *v1alpha1.At) bool {
		return !slices.ContainsFunc(at.OwnerReferences, func(owner metav1.OwnerReference) bool { return owner.UID == cronAt.UID })
	})
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
