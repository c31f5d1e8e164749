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

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CronAtKind is the kind of a CronAt, as used in owner references.
const CronAtKind = "CronAt"

// Labels of the Ats that a CronAt creates.
const (
	// LabelCronAtUID holds the UID of the CronAt that created an At.
	LabelCronAtUID = "cnat.programming-kubernetes.info/cronat-uid"
	// LabelCronAtName holds the name of the CronAt that created an At. It is omitted if the
	// name has more than 63 characters, the limit for label values.
	LabelCronAtName = "cnat.programming-kubernetes.info/cronat-name"
)

// AnnotationInstantiate is the annotation, with the value manual, of an At that kubectl
// at run-now created from a CronAt. The CronAt does not count such an At. kubectl create
// job has a similar annotation for Jobs from a CronJob.
const AnnotationInstantiate = "cnat.programming-kubernetes.info/instantiate"

// FinalizerScheduled is the finalizer of an At whose scheduled time may not be in the
// CronAt's status yet. A deleted At stays until it is counted. The finalizer stays a few
// seconds longer, so that a delayed creation request finds the name taken.
const FinalizerScheduled = "cnat.programming-kubernetes.info/scheduled"

// ConcurrencyPolicy says what happens if an At is due and an earlier one has not ended.
// +kubebuilder:validation:Enum=Allow;Forbid;Replace
type ConcurrencyPolicy string

// The concurrency policies: those of CronJob.
const (
	// AllowConcurrent creates the At in addition to the earlier ones.
	AllowConcurrent ConcurrencyPolicy = "Allow"
	// ForbidConcurrent waits until the earlier one has ended.
	ForbidConcurrent ConcurrencyPolicy = "Forbid"
	// ReplaceConcurrent deletes the earlier one and waits until its Pod is gone.
	ReplaceConcurrent ConcurrencyPolicy = "Replace"
)

// Reasons of the condition Blocked of a CronAt, and of the event that is recorded when it is
// set. Others are InvalidSchedule, AtNameConflict, AtRefused, and those of its next At.
const (
	// ReasonAtBlocked: an At of the CronAt is blocked. The message names the At and the
	// cause.
	ReasonAtBlocked = "AtBlocked"
)

// ReasonAtActive is the value of status.reason of a CronAt while an At is due but must
// wait for an earlier one because of concurrencyPolicy Forbid or Replace.
const ReasonAtActive = "AtActive"

// ReasonFrozen is the value of status.reason of an At that is due and waits for the end of a
// Freeze, and of a CronAt while a Freeze holds. It is also the reason of the condition Frozen of
// an At, and of the event that is recorded when it is set.
const ReasonFrozen = "Frozen"

// Reasons of events of a CronAt without a condition.
const (
	// ReasonMissSchedule: no At was created for a scheduled time. CronJob uses the same
	// reason.
	ReasonMissSchedule = "MissSchedule"
	// ReasonSkipSchedule: no At was created for a scheduled time, because a Freeze held then.
	ReasonSkipSchedule = "SkipSchedule"
	// ReasonAtNotExpired: the API server refuses to set startingDeadlineSeconds of an At
	// that is blocked although the At of a later time was created.
	ReasonAtNotExpired = "AtNotExpired"
	// ReasonSuccessfulDelete: an At was deleted because of the history limits, or because it
	// was replaced. CronJob uses the same reason.
	ReasonSuccessfulDelete = "SuccessfulDelete"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=cronats,singular=cronat,shortName=ca,categories=all,scope=Namespaced
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Schedule",type=string,JSONPath=`.spec.schedule`
// +kubebuilder:printcolumn:name="TimeZone",type=string,JSONPath=`.spec.timeZone`
// +kubebuilder:printcolumn:name="Suspend",type=boolean,JSONPath=`.spec.suspend`
// +kubebuilder:printcolumn:name="Active",type=integer,JSONPath=`.status.active`
// +kubebuilder:printcolumn:name="Last",type=date,JSONPath=`.status.lastScheduleTime`
// +kubebuilder:printcolumn:name="Next",type=string,JSONPath=`.status.nextScheduleTime`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Missed",type=integer,priority=1,JSONPath=`.status.missed.count`
// +kubebuilder:printcolumn:name="Skipped",type=integer,priority=1,JSONPath=`.status.skipped.count`
// +kubebuilder:printcolumn:name="Rehearsed",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Rehearsed")].reason`
// +kubebuilder:printcolumn:name="Requester",type=string,priority=1,JSONPath=`.metadata.annotations.cnat\.programming-kubernetes\.info/requester`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.message`

// CronAt creates Ats on a repeating schedule, as CronJob creates Jobs. CronAts belong to
// the category all, as CronJobs do: kubectl delete all --all deletes them, too.
type CronAt struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata. The Ats are named <name>-<minutes>: the
	// minutes since 1970 of the scheduled time, or the seconds if it is not a whole minute.
	// Names longer than 253 characters are shortened with a hash.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says what to run and when.
	// +required
	Spec CronAtSpec `json:"spec"`

	// status reports what was run and what is next. The controller writes it.
	// +optional
	Status CronAtStatus `json:"status,omitempty"`
}

// CronAtSpec says what to run and when. Everything can be edited at any time. An edit
// affects later Ats, not existing ones.
type CronAtSpec struct {
	// schedule is a cron expression with the syntax of CronJob: minute, hour, day of month,
	// month, day of week, such as "0 3 * * 1-5"; or @hourly, @daily, @weekly, @monthly,
	// @yearly, or "@every 90m" (at least 1m). It is evaluated in timeZone. A time that the
	// clocks skip (daylight-saving time) runs at the first instant after the gap. A time that
	// the clocks repeat runs once. If the hour field means all hours, such as "*" or "0-23",
	// the schedule follows elapsed time instead.
	// After an edit, times in the past do not run.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="!self.contains('TZ')",message="must not contain TZ= or CRON_TZ=: set timeZone"
	// +kubebuilder:validation:XValidation:rule="self.contains('TZ') || self.matches('^@(yearly|annually|monthly|weekly|daily|midnight|hourly|every ([0-9]+([.][0-9]+)?[hms])+)$') || self.findAll('\\\\S+').size() == 5 && !self.startsWith('@')",message="must be a cron expression of five fields (minute, hour, day of month, month, day of week), or one of @hourly, @daily, @weekly, @monthly, @yearly and @every DURATION, such as @every 1h30m"
	// +kubebuilder:validation:XValidation:rule="self.findAll('\\\\S+').size() != 5 || self.findAll('\\\\S+')[0].split(',').all(item, item.matches('^([*?]|([0-5]?[0-9])(-([0-5]?[0-9]))?)(/0*[1-9][0-9]{0,3})?$'))",message="the minute must be *, or numbers from 0 to 59, ranges such as 1-4, steps such as */2, separated by commas"
	// +kubebuilder:validation:XValidation:rule="self.findAll('\\\\S+').size() != 5 || self.findAll('\\\\S+')[1].split(',').all(item, item.matches('^([*?]|([01]?[0-9]|2[0-3])(-([01]?[0-9]|2[0-3]))?)(/0*[1-9][0-9]{0,3})?$'))",message="the hour must be *, or numbers from 0 to 23, ranges such as 1-4, steps such as */2, separated by commas"
	// +kubebuilder:validation:XValidation:rule="self.findAll('\\\\S+').size() != 5 || self.findAll('\\\\S+')[2].split(',').all(item, item.matches('^([*?]|(0?[1-9]|[12][0-9]|3[01])(-(0?[1-9]|[12][0-9]|3[01]))?)(/0*[1-9][0-9]{0,3})?$'))",message="the day of month must be *, or numbers from 1 to 31, ranges such as 1-4, steps such as */2, separated by commas"
	// +kubebuilder:validation:XValidation:rule="self.findAll('\\\\S+').size() != 5 || self.findAll('\\\\S+')[3].split(',').all(item, item.matches('^([*?]|((?i)0?[1-9]|1[0-2]|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC)(-((?i)0?[1-9]|1[0-2]|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC))?)(/0*[1-9][0-9]{0,3})?$'))",message="the month must be *, or numbers from 1 to 12 or names from JAN to DEC, ranges such as 1-4, steps such as */2, separated by commas"
	// +kubebuilder:validation:XValidation:rule="self.findAll('\\\\S+').size() != 5 || self.findAll('\\\\S+')[4].split(',').all(item, item.matches('^([*?]|((?i)0?[0-6]|SUN|MON|TUE|WED|THU|FRI|SAT)(-((?i)0?[0-6]|SUN|MON|TUE|WED|THU|FRI|SAT))?)(/0*[1-9][0-9]{0,3})?$'))",message="the day of week must be *, or numbers from 0 (Sunday) to 6 or names from SUN to SAT, ranges such as 1-4, steps such as */2, separated by commas"
	// +kubebuilder:validation:XValidation:rule="self.upperAscii().replace('SUN','0').replace('MON','1').replace('TUE','2').replace('WED','3').replace('THU','4').replace('FRI','5').replace('SAT','6').replace('JAN','1').replace('FEB','2').replace('MAR','3').replace('APR','4').replace('MAY','5').replace('JUN','6').replace('JUL','7').replace('AUG','8').replace('SEP','9').replace('OCT','10').replace('NOV','11').replace('DEC','12').findAll('[0-9]{1,2}-[0-9]{1,2}').all(range, int(range.split('-')[0]) <= int(range.split('-')[1]))",message="a range must not end before it begins: write 22-23,0-2 instead of 22-2"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^@every ([0-9]+([.][0-9]+)?[hms])+$') || duration(self.substring(7)) >= duration('1m')",message="@every must be at least one minute, such as @every 1m"
	Schedule string `json:"schedule"`

	// timeZone is the name of a time zone from the IANA database, such as Europe/Berlin.
	// Default: UTC. (A CronJob without a time zone uses that of its controller's machine.)
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Z][A-Za-z0-9_+/-]*$') && self != 'Local' && timestamp('2000-01-01T00:00:00Z').getHours(self) >= 0",message="must be a name from the IANA time zone database, such as Europe/Berlin"
	TimeZone *string `json:"timeZone,omitempty"`

	// suspend stops the creation of Ats while it is true. Existing Ats continue. Times that
	// pass in the meantime do not run later. Default: false.
	// +optional
	Suspend *bool `json:"suspend,omitempty"`

	// startingDeadlineSeconds is the maximum delay between the scheduled time and the start
	// of the command, in whole seconds: 0 allows less than one second. After it, the time is
	// missed; an At that was created in time but has not started by then ends as
	// Failed/StartingDeadlineExceeded. Default: no limit for the latest scheduled time.
	// +optional
	// +kubebuilder:validation:Minimum=0
	StartingDeadlineSeconds *int64 `json:"startingDeadlineSeconds,omitempty"`

	// concurrencyPolicy says what happens if an At is due and an earlier one has not ended.
	// Allow creates it in addition to the others. Forbid waits until the earlier one has
	// ended; then the latest of the times that passed in the meantime runs, if
	// startingDeadlineSeconds allows. Replace deletes the earlier one and waits until its
	// Pod is gone. Default: Allow.
	// +optional
	// +default="Allow"
	ConcurrencyPolicy ConcurrencyPolicy `json:"concurrencyPolicy,omitempty"`

	// spreadSeconds spreads CronAts with the same schedule over that many seconds: each At
	// is due later than its scheduled time, by less than spreadSeconds. The delay is always
	// the same for one CronAt. Default: 0, no delay.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	SpreadSeconds *int32 `json:"spreadSeconds,omitempty"`

	// successfulAtsHistoryLimit is the number of successful Ats to keep. Default: 3.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SuccessfulAtsHistoryLimit *int32 `json:"successfulAtsHistoryLimit,omitempty"`

	// failedAtsHistoryLimit is the number of failed Ats to keep. Default: 1.
	// +optional
	// +kubebuilder:validation:Minimum=0
	FailedAtsHistoryLimit *int32 `json:"failedAtsHistoryLimit,omitempty"`

	// atTemplate is the At that is created.
	// +required
	AtTemplate AtTemplateSpec `json:"atTemplate"`
}

// AtTemplateSpec is an At without the fields that its CronAt sets.
type AtTemplateSpec struct {
	// metadata contains the labels and annotations of the Ats.
	// +optional
	Metadata AtTemplateMeta `json:"metadata,omitzero"`

	// spec is what an At does when it is due.
	// +required
	Spec RunSpec `json:"spec"`
}

// AtTemplateMeta is the metadata of the Ats of a CronAt.
type AtTemplateMeta struct {
	// labels are the labels of the Ats. The prefix cnat.programming-kubernetes.info/ is
	// reserved.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!self.exists(key, key.startsWith('cnat.programming-kubernetes.info/'))",message="must not begin with cnat.programming-kubernetes.info/, which is reserved: the controller sets those labels"
	Labels map[string]string `json:"labels,omitempty"`

	// annotations are the annotations of the Ats. The prefix
	// cnat.programming-kubernetes.info/ is reserved.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!self.exists(key, key.startsWith('cnat.programming-kubernetes.info/'))",message="must not begin with cnat.programming-kubernetes.info/, which is reserved: the controller sets those annotations"
	Annotations map[string]string `json:"annotations,omitempty"`
}

// CronAtStatus reports what a CronAt has done and what is next.
type CronAtStatus struct {
	// active is the number of Ats that have not ended.
	// +optional
	Active int32 `json:"active"`

	// reason explains in one word why no At was created although one is due, why no further
	// At will be created, or why the next one would not run. Absent if there is nothing to report.
	// +optional
	Reason string `json:"reason,omitempty"`

	// message explains the reason.
	// +optional
	Message string `json:"message,omitempty"`

	// lastScheduleTime is the latest scheduled time, without the delay of spreadSeconds, for
	// which an At was created. This time and earlier times never run again, whatever happens
	// to the At.
	// +optional
	LastScheduleTime *metav1.Time `json:"lastScheduleTime,omitempty"`

	// lastSuccessfulTime is when the command last succeeded.
	// +optional
	LastSuccessfulTime *metav1.Time `json:"lastSuccessfulTime,omitempty"`

	// nextScheduleTime is when the next At is due, including the delay of spreadSeconds. Times
	// at which a Freeze holds are skipped. Absent while the CronAt is suspended or its schedule
	// is invalid.
	// +optional
	NextScheduleTime *metav1.Time `json:"nextScheduleTime,omitempty"`

	// rehearsedAt is when the last rehearsal of the next At ended. Condition Rehearsed says
	// how.
	// +optional
	RehearsedAt *metav1.Time `json:"rehearsedAt,omitempty"`

	// missed counts the scheduled times for which no At was created: an earlier At had not
	// ended, the controller was not running, or the API server refused the At, until a later
	// time was due, startingDeadlineSeconds had passed, or the CronAt was edited or
	// suspended. Times that pass while the CronAt is suspended, or while a Freeze holds, are not
	// missed.
	// +optional
	Missed *MissedTimes `json:"missed,omitempty"`

	// skipped counts the scheduled times for which no At was created because a Freeze held
	// then. They are not missed.
	// +optional
	Skipped *MissedTimes `json:"skipped,omitempty"`

	// observedSchedule is the schedule that the controller has seen. The controller uses it
	// to detect edits.
	// +optional
	ObservedSchedule *ObservedSchedule `json:"observedSchedule,omitempty"`

	// observedGeneration is the metadata.generation that the controller has seen.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are meant for programs. Suspended is True while spec.suspend is true.
	// Blocked is True, with a reason and a message, while something keeps Ats from being
	// created or an At from running, or would keep the next At from running. Rehearsed is the
	// result of the last rehearsal.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// MissedTimes counts scheduled times for which no At was created.
type MissedTimes struct {
	// count is the number of times. At most 100 are counted for one period without a
	// running controller.
	Count int64 `json:"count"`
	// last is the latest of them.
	Last metav1.Time `json:"last"`
}

// ObservedSchedule is a schedule and the time since which it applies.
type ObservedSchedule struct {
	// schedule is the schedule in the spec.
	Schedule string `json:"schedule"`
	// timeZone is the time zone in the spec.
	// +optional
	TimeZone string `json:"timeZone,omitempty"`
	// spreadSeconds is spreadSeconds in the spec.
	// +optional
	SpreadSeconds int32 `json:"spreadSeconds,omitempty"`
	// since is when the CronAt was created or, without the delay of spreadSeconds, when its
	// schedule was last edited or the CronAt was last resumed. Scheduled times up to and
	// including since do not run.
	Since metav1.Time `json:"since"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true

// CronAtList is a list of CronAts.
type CronAtList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []CronAt `json:"items"`
}
