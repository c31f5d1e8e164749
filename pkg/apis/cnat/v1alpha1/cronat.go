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

// CronAtKind is the kind of a CronAt, as owner references name it.
const CronAtKind = "CronAt"

// Labels of the Ats that a CronAt makes.
const (
	// LabelCronAtUID holds the UID of the CronAt that made an At.
	LabelCronAtUID = "cnat.programming-kubernetes.info/cronat-uid"
	// LabelCronAtName holds the name of the CronAt that made an At. A name of more than 63
	// characters is no label value: its Ats go without.
	LabelCronAtName = "cnat.programming-kubernetes.info/cronat-name"
)

// AnnotationInstantiate is the annotation, with the value manual, of an At that kubectl at
// run-now has created of a CronAt, which does not count it. kubectl create job annotates the
// Jobs of a CronJob alike.
const AnnotationInstantiate = "cnat.programming-kubernetes.info/instantiate"

// FinalizerScheduled is the finalizer of an At of a CronAt whose scheduled time may not be
// in the CronAt's status yet: if somebody deletes the At, it stays until it is counted. It
// is left there for some seconds more, so that a creation which is late finds the name taken.
const FinalizerScheduled = "cnat.programming-kubernetes.info/scheduled"

// ConcurrencyPolicy says what happens when an At is due and an earlier one has not ended.
// +kubebuilder:validation:Enum=Allow;Forbid;Replace
type ConcurrencyPolicy string

// The concurrency policies: those of CronJob.
const (
	// AllowConcurrent creates the At beside the earlier ones.
	AllowConcurrent ConcurrencyPolicy = "Allow"
	// ForbidConcurrent waits until the earlier one has ended.
	ForbidConcurrent ConcurrencyPolicy = "Forbid"
	// ReplaceConcurrent deletes the earlier one, and waits until its Pod is gone.
	ReplaceConcurrent ConcurrencyPolicy = "Replace"
)

// Reasons of the condition Blocked of a CronAt, beside InvalidSchedule, AtNameConflict and
// AtRefused, and of the event that is recorded when it is set.
const (
	// ReasonAtBlocked: an At of the CronAt is blocked. The message says which, and by what.
	ReasonAtBlocked = "AtBlocked"
)

// ReasonAtActive is the value of status.reason of a CronAt while an At is due and waits for
// an earlier one, which concurrencyPolicy Forbid or Replace does not let run beside it.
const ReasonAtActive = "AtActive"

// Reasons of events of a CronAt that go with no condition.
const (
	// ReasonMissSchedule: an At was not created for a scheduled time. CronJob uses the same
	// word.
	ReasonMissSchedule = "MissSchedule"
	// ReasonSuccessfulDelete: an At was deleted, because of the limits on the history or to
	// be replaced. CronJob uses the same word.
	ReasonSuccessfulDelete = "SuccessfulDelete"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=cronats,singular=cronat,categories=all,scope=Namespaced
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

// CronAt creates Ats on a repeating schedule, as CronJob creates Jobs.
type CronAt struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata. An At is named <name>-<minutes>: the
	// minutes since 1970 of its scheduled time, or the seconds if that is no whole minute,
	// shortened with a hash beyond 253 characters.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says what to run, and when.
	// +required
	Spec CronAtSpec `json:"spec"`

	// status says what was run, and what is next. The controller writes it.
	// +optional
	Status CronAtStatus `json:"status,omitempty"`
}

// CronAtSpec says what to run, and when. All of it may be edited at any time. An edit
// changes the Ats that follow, not those that exist.
type CronAtSpec struct {
	// schedule is a cron expression, with the syntax of CronJob: minute, hour, day of
	// month, month, day of week, such as "0 3 * * 1-5"; or @hourly, @daily, @weekly,
	// @monthly, @yearly, or "@every 90m". It is evaluated in timeZone. A time that the
	// clocks there skip (daylight-saving time) runs at the first instant after the gap, and
	// one that they repeat runs once; but if the hour is "*", it runs by the time that
	// passes. An edit never runs a time that was past.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="!self.contains('TZ')",message="must not contain TZ= or CRON_TZ=: set timeZone"
	// +kubebuilder:validation:XValidation:rule="self.contains('TZ') || self.matches('^@(yearly|annually|monthly|weekly|daily|midnight|hourly|every [0-9.hmsuµn]+)$') || self.matches('^\\\\s*(\\\\S+\\\\s+){4}\\\\S+\\\\s*$') && !self.startsWith('@')",message="must be a cron expression of five fields (minute, hour, day of month, month, day of week), or one of @hourly, @daily, @weekly, @monthly, @yearly and @every DURATION"
	Schedule string `json:"schedule"`

	// timeZone is the name of a time zone of the IANA database, such as Europe/Berlin.
	// Default: UTC. (A CronJob without one uses the zone of its controller's machine.)
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	TimeZone *string `json:"timeZone,omitempty"`

	// suspend stops the creation of Ats while it is true. Those that exist go on. Times that
	// pass meanwhile do not run later. Default: false.
	// +optional
	Suspend *bool `json:"suspend,omitempty"`

	// startingDeadlineSeconds is how late after its time the command may start, in whole
	// seconds: 0 allows less than one. Later, the time is missed; an At that was created in
	// time and has not started then ends as Failed/StartingDeadlineExceeded. Default: the
	// latest time runs however late it is.
	// +optional
	// +kubebuilder:validation:Minimum=0
	StartingDeadlineSeconds *int64 `json:"startingDeadlineSeconds,omitempty"`

	// concurrencyPolicy says what happens when an At is due and an earlier one has not ended.
	// Allow creates it beside the others. Forbid waits until the earlier one has ended;
	// then the latest of the times that passed meanwhile runs, if startingDeadlineSeconds
	// allows. Replace deletes the earlier one, and waits until its Pod is gone. Default:
	// Allow.
	// +optional
	// +default="Allow"
	ConcurrencyPolicy ConcurrencyPolicy `json:"concurrencyPolicy,omitempty"`

	// spreadSeconds spreads CronAts of the same schedule over that many seconds: each At is
	// due later than its scheduled time by less than that. For one CronAt the delay is
	// always the same. Default: 0, no delay.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	SpreadSeconds *int32 `json:"spreadSeconds,omitempty"`

	// successfulAtsHistoryLimit is how many Ats that have succeeded are kept. Default: 3.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SuccessfulAtsHistoryLimit *int32 `json:"successfulAtsHistoryLimit,omitempty"`

	// failedAtsHistoryLimit is how many Ats that have failed are kept. Default: 1.
	// +optional
	// +kubebuilder:validation:Minimum=0
	FailedAtsHistoryLimit *int32 `json:"failedAtsHistoryLimit,omitempty"`

	// atTemplate is the At that is created.
	// +required
	AtTemplate AtTemplateSpec `json:"atTemplate"`
}

// AtTemplateSpec is an At without what its CronAt says of it.
type AtTemplateSpec struct {
	// metadata is the labels and annotations of the Ats.
	// +optional
	Metadata AtTemplateMeta `json:"metadata,omitzero"`

	// spec is what an At does when it is due.
	// +required
	Spec RunSpec `json:"spec"`
}

// AtTemplateMeta is the metadata of the Ats of a CronAt.
type AtTemplateMeta struct {
	// labels of the Ats. The prefix cnat.programming-kubernetes.info/ is reserved.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!self.exists(key, key.startsWith('cnat.programming-kubernetes.info/'))",message="must not begin with cnat.programming-kubernetes.info/, which is reserved: the controller sets those labels"
	Labels map[string]string `json:"labels,omitempty"`

	// annotations of the Ats. The prefix cnat.programming-kubernetes.info/ is reserved.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!self.exists(key, key.startsWith('cnat.programming-kubernetes.info/'))",message="must not begin with cnat.programming-kubernetes.info/, which is reserved: the controller sets those annotations"
	Annotations map[string]string `json:"annotations,omitempty"`
}

// CronAtStatus says what a CronAt has done, and what is next.
type CronAtStatus struct {
	// active is the number of Ats that have not ended.
	// +optional
	Active int32 `json:"active"`

	// reason is why no At was created although one is due, or why nothing more will be, in
	// one word. Absent while there is nothing to say.
	// +optional
	Reason string `json:"reason,omitempty"`

	// message says more about the reason.
	// +optional
	Message string `json:"message,omitempty"`

	// lastScheduleTime is the latest scheduled time, without the delay of spreadSeconds, for
	// which an At was created. No time at or before it runs again, whatever becomes of the
	// At.
	// +optional
	LastScheduleTime *metav1.Time `json:"lastScheduleTime,omitempty"`

	// lastSuccessfulTime is when the command last succeeded.
	// +optional
	LastSuccessfulTime *metav1.Time `json:"lastSuccessfulTime,omitempty"`

	// nextScheduleTime is when the next At is due, with the delay of spreadSeconds. Absent
	// while the CronAt is suspended, or its schedule cannot be read.
	// +optional
	NextScheduleTime *metav1.Time `json:"nextScheduleTime,omitempty"`

	// missed counts the scheduled times for which no At was created: the controller was away
	// or the API server refused the At, and a later time was due, or it was too late for
	// startingDeadlineSeconds; or an earlier At had not ended. What passes during a
	// suspension is not missed.
	// +optional
	Missed *MissedTimes `json:"missed,omitempty"`

	// observedSchedule is the schedule that the controller has seen, so that it notices an
	// edit.
	// +optional
	ObservedSchedule *ObservedSchedule `json:"observedSchedule,omitempty"`

	// observedGeneration is the metadata.generation that the controller has seen.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are for machines. Suspended is True while spec.suspend is true. Blocked is
	// True, with a reason and a message, while something keeps Ats from being created, or an
	// At from running.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// MissedTimes counts scheduled times for which no At was created.
type MissedTimes struct {
	// count is their number. Of those that passed while nobody looked, at most 100 are
	// counted.
	Count int64 `json:"count"`
	// last is the latest of them.
	Last metav1.Time `json:"last"`
}

// ObservedSchedule is a schedule, and since when it applies.
type ObservedSchedule struct {
	// schedule is that of the spec.
	Schedule string `json:"schedule"`
	// timeZone is that of the spec.
	// +optional
	TimeZone string `json:"timeZone,omitempty"`
	// spreadSeconds is that of the spec.
	// +optional
	SpreadSeconds int32 `json:"spreadSeconds,omitempty"`
	// since is when the CronAt was created, or, without the delay of spreadSeconds, when
	// its schedule was last edited or it was last resumed. No scheduled time at or before
	// it runs.
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
