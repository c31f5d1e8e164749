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
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronexpr"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

const everyLong = `Run a command on a cron schedule: create a CronAt, which creates an At for each time.

The SCHEDULE is a cron expression like that of a CronJob, in quotes: minute, hour, day of
month, month, day of week; or @hourly, @daily, @weekly, @monthly, @yearly, "@every 90m". Its
time zone is that of --tz or of your machine. The CronAt stores the name of the zone.

The flags for the run are those of kubectl at TIME: see kubectl at --help. --name, --suspend and
the history limits apply to the CronAt; all other flags apply to each of its Ats.

--from cronjob/NAME, or -f with a CronJob, creates a CronAt of the same name from the whole
CronJob: its schedule, time zone, policies and limits. A SCHEDULE and flags override single
fields. What an At does not have is listed. The CronJob is not changed: suspend it when the
CronAt works. A CronAt is copied in the same way, with another name.`

const everyExample = `  # At three in the morning from Monday to Friday, on your own clock
  kubectl at every "0 3 * * 1-5" -- 'pg_dump -h db shop | gzip > /backup/shop.gz'

  # Never two at the same time, and at most an hour late
  kubectl at every @hourly --concurrency Forbid --starting-deadline 1h --from cronjob/import

  # On all nodes of a pool, at any time between 4:00 and 4:30
  kubectl at every "0 4 * * 0" --tz Europe/Berlin --spread 30m --nodes pool=workers -f pod.yaml

  # A rolling restart each Sunday
  kubectl at every "0 5 * * 0" --restart statefulset/cache

  # The same as a CronJob, at another time
  kubectl at every "0 4 * * *" --from cronjob/report --name report-at-four

  # Replace a CronJob with a CronAt: preview it, create it, suspend the CronJob
  kubectl at every --from cronjob/backup --dry-run=client -o yaml
  kubectl at every --from cronjob/backup
  kubectl patch cronjob/backup -p '{"spec":{"suspend":true}}'`

var concurrencyPolicies = []string{string(v1alpha1.AllowConcurrent), string(v1alpha1.ForbidConcurrent), string(v1alpha1.ReplaceConcurrent)}

// every has the flags of kubectl at every.
type every struct {
	*run

	concurrency                      string
	spread                           seconds
	successfulHistory, failedHistory int32
}

func (c *cli) everyCommand() *cobra.Command {
	o := &every{}
	cmd := &cobra.Command{
		Use:     "every SCHEDULE [flags] [-- COMMAND...]",
		Short:   "Run a command on a cron schedule",
		Long:    everyLong,
		Example: everyExample,
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			words, command := cutCommand(cmd, args)
			return o.create(cmd.Context(), words, command)
		},
	}
	o.run = c.addRun(cmd)
	flags := cmd.Flags()
	flags.StringVar(&o.concurrency, "concurrency", "", "What to do if an earlier run has not ended: Allow (run both), Forbid (wait for its end) or Replace (delete it) (default: Allow)")
	flags.Var(&o.spread, "spread", "Delay each run by less than this, at most 1h; the delay of a CronAt is always the same")
	flags.Int32Var(&o.successfulHistory, "successful-history", 3, "Number of successful Ats to keep")
	flags.Int32Var(&o.failedHistory, "failed-history", 1, "Number of failed Ats to keep")
	return cmd
}

func (o *every) create(ctx context.Context, words, command []string) error {
	if err := o.validate(words, command); err != nil {
		return err
	}
	from, err := o.describe(command)
	if err != nil {
		return err
	}
	cronAt, err := o.newCronAt(from, words)
	if err != nil {
		return err
	}
	if err := o.run.create(ctx, cronAt); err != nil {
		return err
	}
	if from.kind == "CronJob" && from.name != "" && !ptr.Deref(from.spec.Suspend, false) {
		name := "cronjob/" + from.name
		o.say("%s still runs, if the cluster has it: suspend it with %s", name, o.kubectl(`patch %s -p '{"spec":{"suspend":true}}'`, name))
	}
	for _, note := range cronexpr.Surprises(cronAt.Spec.Schedule) {
		o.say("%s", note)
	}
	if err := o.announceNext(cronAt); err != nil {
		return err
	}
	return o.warn(ctx, cronAt)
}

func (o *every) validate(words, command []string) error {
	kind, _ := reference(o.pod.from)
	hasOne := o.pod.file != "" || kind == "CronJob" || kind == v1alpha1.CronAtKind
	if strings.TrimSpace(strings.Join(words, " ")) == "" && (len(words) > 0 || !hasOne) {
		return o.errNoSchedule()
	}
	if o.changed("concurrency") && !slices.Contains(concurrencyPolicies, o.concurrency) {
		return usageError("--concurrency is %q: it must be %s", o.concurrency, strings.Join(concurrencyPolicies, ", "))
	}
	return o.run.validate(command)
}

func (o *every) errNoSchedule() error {
	return usageError("there is no schedule, and only a CronJob or a CronAt has one: write it, as in %s", o.kubectl("at every @daily --from %s", quote(cmp.Or(o.pod.from, "job/NAME"))))
}

// newCronAt returns the CronAt for the flags.
func (o *every) newCronAt(from source, words []string) (*v1alpha1.CronAt, error) {
	cronAt := &v1alpha1.CronAt{ObjectMeta: from.metadata, Spec: from.spec}
	if from.kind == "CronJob" && o.name == "" {
		cronAt.Name = cmp.Or(from.name, cronAt.Name)
	}
	cronAt.Spec.Schedule = cmp.Or(strings.Join(strings.Fields(strings.Join(words, " ")), " "), cronAt.Spec.Schedule)
	if cronAt.Spec.Schedule == "" {
		return nil, o.errNoSchedule()
	}
	if err := o.setZone(&cronAt.Spec, len(words) > 0, from.kind); err != nil {
		return nil, err
	}
	if _, err := nextOf(cronAt, o.began); err != nil {
		if len(words) > 1 {
			err = usageError("%w. Write the schedule in quotes, so that the shell keeps it as it is", err)
		}
		return nil, err
	}
	template := &cronAt.Spec.AtTemplate.Metadata
	if len(cronAt.Labels) > 0 {
		template.Labels = labels.Merge(template.Labels, cronAt.Labels)
	}
	if o.changed("suspend") {
		cronAt.Spec.Suspend = &o.suspend
	}
	if o.changed("concurrency") {
		cronAt.Spec.ConcurrencyPolicy = v1alpha1.ConcurrencyPolicy(o.concurrency)
	}
	cronAt.Spec.StartingDeadlineSeconds = cmp.Or(o.startingDeadline.value, cronAt.Spec.StartingDeadlineSeconds)
	if o.spread.value != nil {
		cronAt.Spec.SpreadSeconds = ptr.To(int32(*o.spread.value))
	}
	if o.changed("successful-history") {
		cronAt.Spec.SuccessfulAtsHistoryLimit = &o.successfulHistory
	}
	if o.changed("failed-history") {
		cronAt.Spec.FailedAtsHistoryLimit = &o.failedHistory
	}
	return cronAt, nil
}

// setZone sets the time zone: that of --tz, or of what is copied, or that of a given SCHEDULE.
func (o *every) setZone(spec *v1alpha1.CronAtSpec, isGiven bool, copied string) error {
	switch {
	case o.tz != "" || isGiven && spec.TimeZone == nil:
		zone, err := o.zoneName()
		spec.TimeZone = &zone
		return err
	case spec.TimeZone != nil:
		return nil
	case copied == "CronJob":
		o.say("The CronJob has no time zone and uses that of the cluster's controller manager. The CronAt uses UTC: if that is wrong, specify the time zone with --tz.")
	}
	spec.TimeZone = ptr.To("UTC")
	return nil
}

// nextOf returns when a new CronAt is first due, ignoring suspension. It also validates
// the schedule.
func nextOf(cronAt *v1alpha1.CronAt, now time.Time) (time.Time, error) {
	next := cronAt.DeepCopy()
	next.Spec.Suspend = nil
	next.CreationTimestamp = metav1.NewTime(now)
	times, err := cronplan.Next(next, now, 1)
	if err != nil {
		return time.Time{}, usageError("%s", strings.NewReplacer("set spec.timeZone", "name it with --tz", "spec.", "").Replace(err.Error()))
	}
	return times[0], nil
}

// announceNext prints when a CronAt that has been written is next due, and which Freeze it then skips.
func (w *writer) announceNext(cronAt *v1alpha1.CronAt) error {
	if ptr.Deref(cronAt.Spec.Suspend, false) {
		w.say("suspended: nothing starts until %s", w.kubectl("at resume %s", ref(cronAt)))
		return nil
	}
	spread := ""
	if w.dryRun != "none" && ptr.Deref(cronAt.Spec.SpreadSeconds, 0) > 0 {
		// The delay depends on the UID.
		spread = fmt.Sprintf(", plus a delay of less than %s", short(plan.Seconds(*cronAt.Spec.SpreadSeconds)))
		cronAt = cronAt.DeepCopy()
		cronAt.Spec.SpreadSeconds = nil
	}
	next, err := nextOf(cronAt, w.began)
	if err != nil {
		return err
	}
	w.announce(w.runs()+" next", next, spread)
	w.announceFreeze(cronAt, next)
	return nil
}
