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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Labels of the Pods of an At, and of the Ats that an At with spec.nodes creates.
const (
	// LabelAtUID holds the UID of the At that a Pod or a child At belongs to. The controller
	// watches only Pods with this label.
	LabelAtUID = "cnat.programming-kubernetes.info/at-uid"
	// LabelAtName holds the name of the At that a Pod or a child At belongs to. It is
	// omitted if the name has more than 63 characters, the limit for label values.
	LabelAtName = "cnat.programming-kubernetes.info/at-name"
	// LabelExcludeFromBackup makes Velero leave out the Ats that a CronAt or a run on nodes
	// creates: a restored one would not have its owner and its status.
	LabelExcludeFromBackup = "velero.io/exclude-from-backup"
)

// LabelRehearsalOf holds the UID of the At or CronAt that a rehearsal Pod belongs to. Such a
// Pod has no other label, so that no selector of a user matches it.
const LabelRehearsalOf = "cnat.programming-kubernetes.info/rehearsal-of"

// AnnotationRehearsalRequestedAt is the annotation of an At or a CronAt with rehearse that asks
// for another rehearsal, although the last one passed or is not repeated yet. It holds a time in
// RFC 3339 format, and is fulfilled by a rehearsal that ends later.
const AnnotationRehearsalRequestedAt = "cnat.programming-kubernetes.info/rehearsal-requested-at"

// AnnotationRequester is the annotation of an At or a CronAt that holds the name of the user
// who created it or last changed its spec, if artifacts/requester is installed. The Ats that
// the controller creates from it have the same annotation.
const AnnotationRequester = "cnat.programming-kubernetes.info/requester"

// AnnotationScheduledTime is the annotation of an At's Pod that holds the instant at
// which the run was due, in RFC 3339 format. CronJob has a similar annotation for its
// Jobs.
const AnnotationScheduledTime = "cnat.programming-kubernetes.info/scheduled-time"

// AnnotationAtName is the annotation of an At's Pod that holds the At's name, which may
// be too long for a label.
const AnnotationAtName = "cnat.programming-kubernetes.info/at-name"

// AnnotationAtGeneration is the annotation of an At's Pod that holds the
// metadata.generation of the At from which the Pod was created.
const AnnotationAtGeneration = "cnat.programming-kubernetes.info/at-generation"

// AnnotationNode is the annotation of an At's Pod that holds the spec.node with which the
// Pod was created.
const AnnotationNode = "cnat.programming-kubernetes.info/node"

// FinalizerTracking is the finalizer of an At's Pod whose outcome is not yet in the At's
// status. A deleted Pod stays until it is counted. The finalizer stays a few seconds
// longer, so that a delayed creation request finds the Pod's name taken. Job has a
// similar finalizer, batch.kubernetes.io/job-tracking. A child At has this finalizer
// until its parent has ended.
const FinalizerTracking = "cnat.programming-kubernetes.info/tracking"

// FinalizerReleasePods is the finalizer of the controller's service account, roles and role
// bindings. If they are deleted, they stay until the controller has removed the finalizers
// of all Pods and Ats.
const FinalizerReleasePods = "cnat.programming-kubernetes.info/release-pods"

// AtKind is the kind of an At, as used in owner references.
const AtKind = "At"

// AtPhase is a summary of an At's lifecycle for users. Programs should use the
// conditions.
type AtPhase string

// The phases of an At, in order. A phase never goes back.
const (
	// PhasePending means that no Pod has been seen yet: the At is not due, or its Pod cannot
	// be created (see condition Blocked).
	PhasePending AtPhase = "PENDING"
	// PhaseRunning means that the run has begun: a Pod was created and has not ended, or
	// another attempt will follow.
	PhaseRunning AtPhase = "RUNNING"
	// PhaseDone means that the run has ended, successfully or not. Nothing more happens,
	// except that the At is deleted if spec.ttlSecondsAfterFinished is set.
	PhaseDone AtPhase = "DONE"
)

// Types of the conditions of an At.
const (
	// ConditionComplete is True once the Pod has succeeded: the command and all other
	// containers ended with exit code 0.
	ConditionComplete = "Complete"
	// ConditionFailed is True once the At has ended in any other way.
	ConditionFailed = "Failed"
	// ConditionFailureTarget is True once the run has failed and is being stopped: it only
	// waits for its Pod to end. Job has the same condition.
	ConditionFailureTarget = "FailureTarget"
	// ConditionBlocked is True while something keeps the At from running or from ending: its
	// spec, a container that fails, or the setup of its namespace, cluster or node. Before the At is due, it is True while
	// something would keep it from running. The message says what to do. The condition is
	// removed when the At is no longer blocked.
	ConditionBlocked = "Blocked"
	// ConditionSuspended is True while spec.suspend is true, and False afterwards. It is
	// absent if the At was never suspended.
	ConditionSuspended = "Suspended"
	// ConditionFrozen is True while the next Pod of the At, or the restart, is due and a Freeze
	// keeps it from starting. The message names the Freeze, and says until when it holds at
	// least. The condition is removed when the At starts, or need no longer wait.
	ConditionFrozen = "Frozen"
	// ConditionRehearsed is True if the last rehearsal passed, and False if it did not. It is
	// absent before the first rehearsal of the current spec.
	ConditionRehearsed = "Rehearsed"
)

// Reasons of the conditions Complete, Failed and FailureTarget, and of the events for the
// end of the run and for each failed attempt.
const (
	// ReasonCompleted: the command ended with exit code 0.
	ReasonCompleted = "Completed"
	// ReasonCommandFailed: the command ended with another exit code.
	ReasonCommandFailed = "CommandFailed"
	// ReasonOOMKilled: the command was killed because it exceeded its container's memory
	// limit.
	ReasonOOMKilled = "OOMKilled"
	// ReasonEvicted: the Pod was evicted by its node, by a drain, by preemption or
	// by a taint, or its node is gone.
	ReasonEvicted = "Evicted"
	// ReasonPodFailed: the Pod failed in another way, for example because another container
	// failed.
	ReasonPodFailed = "PodFailed"
	// ReasonPodDeleted: the Pod was deleted while it was running, or before it started.
	ReasonPodDeleted = "PodDeleted"
	// ReasonPodLost: the Pod was deleted before the controller saw how it ended. The outcome
	// of the command is unknown, so it is not run again.
	ReasonPodLost = "PodLost"
	// ReasonInvalidPod: the API server rejected the Pod as invalid. Before the At is due,
	// this is a reason of condition Blocked.
	ReasonInvalidPod = "InvalidPod"
	// ReasonStartingDeadlineExceeded: the Pod could not be created within
	// spec.startingDeadlineSeconds. The command did not run.
	ReasonStartingDeadlineExceeded = "StartingDeadlineExceeded"
	// ReasonNodeGone: the node of spec.node does not exist, or was removed during the run.
	ReasonNodeGone = "NodeGone"
	// ReasonNoNodes: spec.nodes matches no node.
	ReasonNoNodes = "NoNodes"
	// ReasonNodesFailed: the command failed, or did not run, on some of the nodes of
	// spec.nodes.
	ReasonNodesFailed = "NodesFailed"
	// ReasonNotStarted: the At of a node was not started because its parent had ended: the
	// command failed on more nodes than spec.nodes.maxFailed allows.
	ReasonNotStarted = "NotStarted"
	// ReasonAtDeleted: the At of a node was deleted before it ended.
	ReasonAtDeleted = "AtDeleted"
	// ReasonTargetNotFound: the workload of spec.restart does not exist, or was deleted
	// during its rollout.
	ReasonTargetNotFound = "TargetNotFound"
	// ReasonTargetPaused: the Deployment of spec.restart is paused and does not roll out a
	// restart. If it is paused during the rollout, this is a reason of condition Blocked.
	ReasonTargetPaused = "TargetPaused"
	// ReasonTargetOnDelete: the workload of spec.restart has the update strategy OnDelete,
	// so a restart would not replace any Pod.
	ReasonTargetOnDelete = "TargetOnDelete"
	// ReasonReverted: the restart was removed from the workload during its rollout, for
	// example by kubectl rollout undo or a GitOps tool.
	ReasonReverted = "Reverted"
	// ReasonRolloutFailed: the rollout of the restart made no progress within the
	// Deployment's progressDeadlineSeconds.
	ReasonRolloutFailed = "RolloutFailed"
	// ReasonDeadlineExceeded: the run was stopped because it took longer than
	// spec.activeDeadlineSeconds, or the Pod ran longer than the template's own limit.
	ReasonDeadlineExceeded = "DeadlineExceeded"
)

// Reasons of the condition Blocked and of the event that is recorded when it is set.
const (
	// ReasonInvalidSchedule: spec.schedule and spec.timeZone do not identify exactly one
	// instant: the time zone is unknown, or its clocks skip or repeat that time.
	ReasonInvalidSchedule = "InvalidSchedule"
	// ReasonScheduleInPast: spec.schedule was between a day and two years in the past when the
	// At was created, and spec.startingDeadlineSeconds does not say that it may start so late.
	ReasonScheduleInPast = "ScheduleInPast"
	// ReasonInvalidSelector: spec.nodes.selector is not a label selector.
	ReasonInvalidSelector = "InvalidSelector"
	// ReasonNodesForbidden: the controller is not allowed to read nodes, which spec.node and
	// spec.nodes require.
	ReasonNodesForbidden = "NodesForbidden"
	// ReasonRestartForbidden: the controller is not allowed to read the workload of
	// spec.restart, for example because artifacts/restarts is not installed.
	ReasonRestartForbidden = "RestartForbidden"
	// ReasonRestartRefused: the API server refuses to restart the workload (RBAC, a policy,
	// a webhook). The restart is retried with back-off.
	ReasonRestartRefused = "RestartRefused"
	// ReasonRolloutInProgress: the workload of spec.restart is already being rolled out. The
	// restart waits for the end of that rollout.
	ReasonRolloutInProgress = "RolloutInProgress"
	// ReasonOwnerMissing: according to its labels, the At was created by a CronAt or a run on
	// nodes, but it has no owner: it may be a copy, or restored from a backup, and may have
	// run before.
	ReasonOwnerMissing = "OwnerMissing"
	// ReasonAtNameConflict: an At that was not created by this At has the name of one of its
	// children.
	ReasonAtNameConflict = "AtNameConflict"
	// ReasonAtRefused: the API server refuses to create the At of a node (quota, RBAC, a
	// policy, a webhook). The creation is retried with back-off.
	ReasonAtRefused = "AtRefused"
	// ReasonPodNameConflict: a Pod that does not belong to this At has the name of its Pod.
	ReasonPodNameConflict = "PodNameConflict"
	// ReasonPodRefused: the API server refuses to create the Pod (quota, Pod Security, RBAC,
	// a webhook). The creation is retried with back-off. Before the At is due, it means that
	// the API server would refuse the Pod.
	ReasonPodRefused = "PodRefused"
	// ReasonPodNotCreated: creating the Pod has failed for about a minute although it
	// was not refused: the API server is busy or does not respond. The creation is retried
	// with back-off.
	ReasonPodNotCreated = "PodNotCreated"
	// ReasonImagePullFailed: the node cannot pull an image of the Pod. The node retries.
	ReasonImagePullFailed = "ImagePullFailed"
	// ReasonContainerNotCreated: the node cannot create a container of the Pod, for example
	// because a ConfigMap or Secret for its environment is missing. The node retries.
	ReasonContainerNotCreated = "ContainerNotCreated"
	// ReasonUnschedulable: the scheduler has not found a node for the Pod for 45 seconds.
	ReasonUnschedulable = "Unschedulable"
	// ReasonVolumeNotMounted: the node cannot attach or mount a volume of the Pod, for
	// example because its ConfigMap or Secret is missing. The node retries.
	ReasonVolumeNotMounted = "VolumeNotMounted"
	// ReasonSandboxNotCreated: the node cannot create the sandbox of the Pod: its network or
	// its runtime class does not work. The node retries.
	ReasonSandboxNotCreated = "SandboxNotCreated"
	// ReasonPodPending: the command has not started for a minute for another reason, or for
	// one that nobody reports.
	ReasonPodPending = "PodPending"
	// ReasonPodNotStarted: the last Pod was refused by its node, or evicted or preempted, before
	// any of its containers started. Another one follows.
	ReasonPodNotStarted = "PodNotStarted"
	// ReasonContainerRestarting: a container of the Pod has failed, and the node restarts it
	// in the same Pod.
	ReasonContainerRestarting = "ContainerRestarting"
	// ReasonSidecarRunning: the command ended more than a minute ago, and another container
	// keeps its Pod running.
	ReasonSidecarRunning = "SidecarRunning"
)

// Reasons of the condition Rehearsed. If it is False, the reason can also be one of the
// condition Blocked: what would keep the Pod from starting.
const (
	// ReasonPassed: each container got as far as the start of its command.
	ReasonPassed = "Passed"
	// ReasonRehearsalRefused: the API server accepts the Pod of the run, but refuses that of
	// the rehearsal, for example because a policy requires probes. Or the rehearsal ended because
	// a run was refused for quota. Nothing is known.
	ReasonRehearsalRefused = "RehearsalRefused"
	// ReasonRehearsalUnschedulable: the scheduler has no node for the rehearsal, which has
	// neither the priority class nor the labels of the run. Or nothing has removed its scheduling
	// gates. Nothing is known.
	ReasonRehearsalUnschedulable = "RehearsalUnschedulable"
	// ReasonContainerStarted: a container of the rehearsal started, because a webhook replaced
	// its command, or its image has a program at the path that should not exist. The Pod was
	// deleted. Nothing is known.
	ReasonContainerStarted = "ContainerStarted"
)

// Reasons of the condition Suspended and of the events for its changes.
const (
	// ReasonSuspended: spec.suspend is true.
	ReasonSuspended = "Suspended"
	// ReasonResumed: spec.suspend is no longer true.
	ReasonResumed = "Resumed"
)

// ReasonBackOff is the value of status.reason while the At waits for its next attempt.
const ReasonBackOff = "BackOff"

// Reasons of events without a condition.
const (
	// ReasonSuccessfulCreate: the Pod was created. Job uses the same reason.
	ReasonSuccessfulCreate = "SuccessfulCreate"
	// ReasonRestarted: the rollout of a restart has begun.
	ReasonRestarted = "Restarted"
	// ReasonEditedTooLate: the spec was edited after the Pod was created, or just before.
	ReasonEditedTooLate = "EditedTooLate"
	// ReasonUnexpectedPod: a second Pod of an attempt that was already counted is deleted.
	// Its creation request was delayed on the way to the API server.
	ReasonUnexpectedPod = "UnexpectedPod"
	// ReasonAtNotReleased: the API server refuses to remove the finalizer from the At of a
	// node, which therefore cannot be deleted.
	ReasonAtNotReleased = "AtNotReleased"
	// ReasonAtNotResumed: the API server refuses to resume the At of a node whose turn has
	// come.
	ReasonAtNotResumed = "AtNotResumed"
	// ReasonPodNotReleased: the API server refuses to remove the finalizer from a Pod, which
	// therefore cannot be deleted.
	ReasonPodNotReleased = "PodNotReleased"
	// ReasonPodNotDeleted: the API server refuses to delete a Pod that must be stopped, or
	// that is the second one of its attempt.
	ReasonPodNotDeleted = "PodNotDeleted"
	// ReasonAtNotDeleted: the API server refuses to delete an At whose time to live has
	// expired.
	ReasonAtNotDeleted = "AtNotDeleted"
)

// The API server evaluates the validation rules of a type each time it writes an object,
// even if only the status has changed. Each access to a field takes the longer the more
// fields its type has. So a rule about one field is a rule of that field, and the rule
// about the immutable ones compares the whole spec first.

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=ats,singular=at,shortName=at,categories=all,scope=Namespaced
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Schedule",type=string,JSONPath=`.spec.schedule`
// +kubebuilder:printcolumn:name="TimeZone",type=string,JSONPath=`.spec.timeZone`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.reason`
// +kubebuilder:printcolumn:name="Exit",type=integer,JSONPath=`.status.exitCode`
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.nodes.progress`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Pod",type=string,priority=1,JSONPath=`.status.pod.name`
// +kubebuilder:printcolumn:name="Node",type=string,priority=1,JSONPath=`.status.pod.nodeName`
// +kubebuilder:printcolumn:name="Started",type=date,priority=1,JSONPath=`.status.startTime`
// +kubebuilder:printcolumn:name="Completed",type=date,priority=1,JSONPath=`.status.completionTime`
// +kubebuilder:printcolumn:name="Rehearsed",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Rehearsed")].reason`
// +kubebuilder:printcolumn:name="Requester",type=string,priority=1,JSONPath=`.metadata.annotations.cnat\.programming-kubernetes\.info/requester`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.message`
// +kubebuilder:selectablefield:JSONPath=`.spec.node`
// +kubebuilder:selectablefield:JSONPath=`.status.phase`
// +kubebuilder:validation:XValidation:rule="oldSelf.status.phase == 'PENDING' || self.spec == oldSelf.spec || self.spec.schedule == oldSelf.spec.schedule && (has(self.spec.timeZone) ? self.spec.timeZone : '') == (has(oldSelf.spec.timeZone) ? oldSelf.spec.timeZone : '') && (has(self.spec.command) ? self.spec.command : '') == (has(oldSelf.spec.command) ? oldSelf.spec.command : '') && has(self.spec.template) == has(oldSelf.spec.template) && (!has(self.spec.template) || self.spec.template == oldSelf.spec.template) && has(self.spec.restart) == has(oldSelf.spec.restart) && (!has(self.spec.restart) || self.spec.restart == oldSelf.spec.restart) && (has(self.spec.node) ? self.spec.node : '') == (has(oldSelf.spec.node) ? oldSelf.spec.node : '') && has(self.spec.nodes) == has(oldSelf.spec.nodes) && (!has(self.spec.nodes) || self.spec.nodes.selector == oldSelf.spec.nodes.selector)",fieldPath=".spec",message="schedule, timeZone, command, template, restart, node and nodes.selector are immutable once the At has started: delete and recreate the At to run it again"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.nodes) || !has(oldSelf.spec.nodes) || oldSelf.status.phase != 'RUNNING' || has(oldSelf.status.nodes) && has(oldSelf.status.nodes.startTime) || (has(self.spec.nodes.maxConcurrent) ? self.spec.nodes.maxConcurrent == (has(oldSelf.spec.nodes.maxConcurrent) ? oldSelf.spec.nodes.maxConcurrent : 0) : !has(oldSelf.spec.nodes.maxConcurrent))",fieldPath=".spec.nodes.maxConcurrent",message="cannot be changed while the Ats of the nodes are being created: wait until status.nodes.startTime is set"

// At runs a command once, at a given time. Ats belong to the category all, as Jobs do:
// kubectl delete all --all deletes the pending ones, too.
type At struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata. The name is also used for the Pods:
	// <name>-pod for the first attempt, <name>-pod-1 and so on for further attempts. Pod
	// names longer than 63 characters are shortened with a hash.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says what to run and when.
	// +required
	Spec AtSpec `json:"spec"`

	// status reports the progress of the At. The controller writes it.
	// +optional
	// +default={"phase":"PENDING"}
	Status AtStatus `json:"status,omitempty"`
}

// AtSpec says what to run and when. While the phase is PENDING and no Pod exists,
// everything can be edited, and edits take effect immediately.
// +kubebuilder:validation:XValidation:rule="has(self.timeZone) || self.schedule.matches('T.*(Z|[+-][0-9]{2}:[0-9]{2})$') || !self.schedule.matches('T')",fieldPath=".schedule",message="needs a zone: end it with Z or an offset such as +01:00, or set timeZone"
// +kubebuilder:validation:XValidation:rule="!has(self.timeZone) || !self.schedule.matches('T.*(Z|[+-][0-9]{2}:[0-9]{2})$')",fieldPath=".timeZone",message="must not be set together with a schedule that has a zone: remove one of them"
type AtSpec struct {
	// schedule is the instant at which the command runs, in RFC 3339 format: date, time and
	// zone, such as 2035-12-24T10:12:00Z or 2035-12-24T11:12:00+01:00, optionally with
	// fractions of a second. If timeZone is set, it is a local time in that time zone,
	// without an offset: 2035-12-24T11:12:00. If it is in the past, the command runs
	// immediately, except that a time between a day and two years before the creation of the At
	// is taken for a mistake unless startingDeadlineSeconds is set: condition Blocked reports
	// it, and nothing runs. Immutable once the At has started.
	// +required
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})?$')",message="must be an RFC 3339 time with date, time and zone, such as 2035-12-24T10:12:00Z or 2035-12-24T11:12:00+01:00"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[0-9]{4}-[0-9]{2}-[0-9]{2}T') || self.matches('^[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-9]))T') && !self.startsWith('0000') && (!self.matches('^[0-9]{4}-02-29') || int(self.substring(0, 4)) % 4 == 0 && (int(self.substring(0, 4)) % 100 != 0 || int(self.substring(0, 4)) % 400 == 0))",message="must be a valid date: years 0001 to 9999, months 01 to 12, days that exist in the month"
	// +kubebuilder:validation:XValidation:rule="!self.matches('T[0-9]{2}:[0-9]{2}:[0-9]{2}') || self.matches('T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])?$')",message="must be a valid time of day: hours 00 to 23, minutes and seconds 00 to 59, also in the offset"
	Schedule string `json:"schedule"`

	// timeZone is the name of a time zone from the IANA database, such as Europe/Berlin. It
	// is required if schedule has no zone, and must not be set if schedule has one. If the
	// clocks in that time zone skip or repeat the time (daylight-saving time), the At does
	// not run: condition Blocked reports it. Immutable once the At has started.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Z][A-Za-z0-9_+/-]*$') && self != 'Local' && timestamp('2000-01-01T00:00:00Z').getHours(self) >= 0",message="must be a name from the IANA time zone database, such as Europe/Berlin"
	TimeZone *string `json:"timeZone,omitempty"`

	RunSpec `json:",inline"`

	// suspend keeps the At from starting anything while it is true: the command, another
	// attempt, or the command on another node. A running command continues. Default: false.
	// +optional
	Suspend *bool `json:"suspend,omitempty"`

	// startingDeadlineSeconds is the maximum delay between the scheduled time and the start
	// of the command, in whole seconds: 0 allows less than one second. After it, the At ends
	// as Failed/StartingDeadlineExceeded without having run. Default: no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	StartingDeadlineSeconds *int64 `json:"startingDeadlineSeconds,omitempty"`
}

// RunSpec says what an At does when it is due.
// +kubebuilder:validation:XValidation:rule="has(self.command) || has(self.template) || has(self.restart)",message="must set command, template or restart: specify what to run"
// +kubebuilder:validation:XValidation:rule="!has(self.restart) || !has(self.command) && !has(self.template)",fieldPath=".restart",message="must not be set together with command or template: remove one of them"
// +kubebuilder:validation:XValidation:rule="!has(self.restart) || !has(self.node) && !has(self.nodes) && !has(self.backoffLimit)",fieldPath=".restart",message="must not be set together with node, nodes or backoffLimit, which apply only to a command: remove them"
// +kubebuilder:validation:XValidation:rule="!has(self.restart) || !has(self.rehearse) || !self.rehearse",fieldPath=".rehearse",message="must not be set together with restart, which runs no Pod: remove it"
// +kubebuilder:validation:XValidation:rule="!has(self.node) || !has(self.nodes)",fieldPath=".nodes",message="must not be set together with node: remove one of them"
// +kubebuilder:validation:XValidation:rule="!has(self.node) && !has(self.nodes) || !has(self.template) || !has(self.template.spec) || !has(self.template.spec.nodeName)",fieldPath=".template.spec.nodeName",message="must not be set together with node or nodes: remove it"
type RunSpec struct {
	// command is run by /bin/sh -c: quotes, pipes and $VARS work. Exit code 0 means success.
	// It is required unless template or restart is set. With a template, it runs in the
	// template's first container. Immutable once the At has started.
	//
	// It has at most 32767 characters, so that it always fits into the 128 KiB that Linux
	// allows for one program argument.
	// +optional
	// +kubebuilder:validation:MaxLength=32767
	// +kubebuilder:validation:XValidation:rule="self.trim() != ''",message="must not be empty: specify what /bin/sh runs"
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\x00')",message="must not contain NUL, which is not allowed in a program argument"
	Command string `json:"command,omitempty"`

	// template is the Pod that runs: labels, annotations and spec (see kubectl explain
	// pod.spec). If command is also set, it replaces command and args of the first
	// container. restartPolicy defaults to Never. With OnFailure, the node restarts a failed
	// container in the same Pod, and each restart is a retry of backoffLimit; without
	// backoffLimit, OnFailure means Never. terminationMessagePolicy defaults to FallbackToLogsOnError. The reported exit code is
	// that of the container named in the annotation kubectl.kubernetes.io/default-container,
	// or of the first container. Default: one container with a shell and without privileges.
	// Immutable once the At has started.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.metadata) || !has(self.metadata.labels) || !self.metadata.labels.exists(key, key.startsWith('cnat.programming-kubernetes.info/'))",fieldPath=".metadata.labels",message="must not begin with cnat.programming-kubernetes.info/, which is reserved: the controller sets those labels"
	// +kubebuilder:validation:XValidation:rule="!has(self.metadata) || !has(self.metadata.annotations) || !self.metadata.annotations.exists(key, key.startsWith('cnat.programming-kubernetes.info/'))",fieldPath=".metadata.annotations",message="must not begin with cnat.programming-kubernetes.info/, which is reserved: the controller sets those annotations"
	// +kubebuilder:validation:XValidation:rule="has(self.spec) && size(self.spec.containers) > 0",fieldPath=".spec.containers",message="must have at least one container: the first one runs the command"
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || self.spec.containers.all(container, has(container.image) && container.image != '')",fieldPath=".spec.containers",message="must name an image in each container: there is a default image only without a template"
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || self.spec.containers.all(container, !has(container.restartPolicy) || container.restartPolicy != 'Always')",fieldPath=".spec.containers",message="must not have restartPolicy Always: a Pod with a container that always restarts never ends"
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.initContainers) || self.spec.initContainers.all(container, has(container.image) && container.image != '')",fieldPath=".spec.initContainers",message="must name an image in each container"
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.restartPolicy) || self.spec.restartPolicy in ['', 'Never', 'OnFailure']",fieldPath=".spec.restartPolicy",message="must be Never or OnFailure: a Pod that always restarts never ends"
	Template *corev1.PodTemplateSpec `json:"template,omitempty"`

	// restart restarts a workload instead of running a command: its Pods are replaced
	// gradually, as with kubectl rollout restart. The At is RUNNING until all Pods are
	// updated and available. Requires artifacts/restarts. Immutable once the At has started.
	// +optional
	Restart *AtRestart `json:"restart,omitempty"`

	// node is the name of the node on which the command runs. All containers have it as the
	// environment variable NODE_NAME, unless env in the template sets it. The scheduler
	// still checks that the Pod fits: resources, taints, cordons, and the template's
	// constraints. If the node does not exist when the command is due, or is removed during
	// the run, the At ends as Failed/NodeGone. Default: any node. Immutable once the At has
	// started.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="must be the name of a node, as shown by kubectl get nodes"
	Node string `json:"node,omitempty"`

	// nodes runs the command once on each of several nodes. When this At is due, it creates
	// an At for each node, named <at>-<node>. These Ats contain the results for each node
	// and are deleted with this At. Default: the command runs once.
	// +optional
	Nodes *AtNodes `json:"nodes,omitempty"`

	// rehearse makes the controller try the Pod on a node before the command is due, without
	// running a line of it: soon after the At is created or edited, and ten minutes before it is
	// due. A Pod with the same images, volumes, environment and resources goes through
	// everything up to the start of its containers, which then run a path that does not exist.
	// Condition Rehearsed has the result. If the run would fail, so does condition Blocked, and
	// the rehearsal is repeated every ten minutes. For some seconds, and for ten minutes at most,
	// it needs quota and room for one Pod, and its volumes. It never delays or changes this run.
	// Default: false.
	// +optional
	Rehearse bool `json:"rehearse,omitempty"`

	// backoffLimit is the maximum number of retries, each in a new Pod. The first retry
	// follows 10 seconds after the failure, the next ones after 20, 40 and so on, up to 6
	// minutes. The limit is checked when an attempt fails. Restarts of containers within the
	// Pod (restartPolicy OnFailure) are retries, too; those of sidecars are not.
	// Default: 0, no retries.
	// +optional
	// +kubebuilder:validation:Minimum=0
	BackoffLimit *int32 `json:"backoffLimit,omitempty"`

	// activeDeadlineSeconds is the maximum duration of the run, including all attempts,
	// counted from the creation of the first Pod. After it, the Pod is stopped and the At
	// ends as Failed/DeadlineExceeded. With nodes, the limit applies to each node. With
	// restart, it applies to the rollout, which nevertheless continues. Default: no limit.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ActiveDeadlineSeconds *int64 `json:"activeDeadlineSeconds,omitempty"`

	// ttlSecondsAfterFinished is the time after its end at which the At is deleted together
	// with its Pods, but not before about ten seconds have passed. It can be set and changed
	// after the end. Default: the At is kept.
	// +optional
	// +kubebuilder:validation:Minimum=0
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
}

// RestartKind is a kind of workload that can be restarted.
// +kubebuilder:validation:Enum=Deployment;StatefulSet;DaemonSet
type RestartKind string

// The kinds of workload that can be restarted.
const (
	RestartDeployment  RestartKind = "Deployment"
	RestartStatefulSet RestartKind = "StatefulSet"
	RestartDaemonSet   RestartKind = "DaemonSet"
)

// AtRestart is the workload to restart.
type AtRestart struct {
	// kind is Deployment, StatefulSet or DaemonSet.
	// +required
	Kind RestartKind `json:"kind"`

	// name is the name of the workload, in the namespace of the At.
	// +required
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="must be the name of a workload, as shown by kubectl get"
	Name string `json:"name"`
}

// AtNodes selects the nodes on which the command runs.
type AtNodes struct {
	// selector selects nodes by their labels; {} selects all. Of the selected nodes, the
	// command runs on those that exist when it is due, and on which the Pod may run
	// according to its nodeSelector, required node affinity and tolerations. A node that is
	// temporarily not ready is included: its Pod waits. A cordoned node is excluded. A
	// virtual-kubelet or Fargate node is included only if the selector names the label that
	// marks it (type, eks.amazonaws.com/compute-type). A node that joins later is not
	// included. Immutable once the At has started.
	// +required
	Selector metav1.LabelSelector `json:"selector"`

	// maxConcurrent is the maximum number of nodes on which the command runs at the same
	// time: a number, or a percentage of the nodes, rounded up. When one node has ended,
	// successfully or not, the next one follows, in alphabetical order. It can be changed
	// during the run. Default: all nodes.
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^([1-9][0-9]?|100)%$') : int(self) >= 1",message="must be a number of at least 1, or a percentage from 1% to 100%"
	MaxConcurrent *intstr.IntOrString `json:"maxConcurrent,omitempty"`

	// maxFailed is the number of nodes on which the command may fail. When it has failed on
	// more nodes, it is not started on further nodes. It can be changed during the run.
	// Default: no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxFailed *int32 `json:"maxFailed,omitempty"`
}

// AtStatus reports the progress of an At. Once the phase is DONE, only observedGeneration
// changes.
type AtStatus struct {
	// phase is PENDING until the Pod exists (with spec.nodes: until the At is due; with
	// spec.restart: until the At is due and no other rollout of the workload is in
	// progress), then RUNNING, and finally DONE. It is meant for users: programs should use
	// the conditions.
	// +optional
	// +default="PENDING"
	// +kubebuilder:validation:Enum=PENDING;RUNNING;DONE
	// +kubebuilder:validation:XValidation:rule="oldSelf != 'DONE' || self == 'DONE'",message="is DONE and cannot change: delete and recreate the At to run it again"
	// +kubebuilder:validation:XValidation:rule="oldSelf != 'RUNNING' || self != 'PENDING'",message="is RUNNING and cannot go back to PENDING"
	Phase AtPhase `json:"phase,omitempty"`

	// reason explains the current state in one word: why the At is still PENDING after its
	// time, why its command does not start, or how it ended. Absent if there is nothing to
	// report.
	// +optional
	Reason string `json:"reason,omitempty"`

	// exitCode is the exit code of the command in the latest attempt; absent if there is
	// none.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`

	// message explains the reason. Once the At is DONE, it is what the command wrote to
	// /dev/termination-log or, if it wrote nothing there and failed, the end of its output.
	// If there is neither, it says why the run failed. Control characters are replaced by
	// spaces.
	// +optional
	Message string `json:"message,omitempty"`

	// rehearsedAt is when the last rehearsal ended. Condition Rehearsed says how.
	// +optional
	RehearsedAt *metav1.Time `json:"rehearsedAt,omitempty"`

	// scheduledTime is the instant at which the run was due.
	// +optional
	ScheduledTime *metav1.Time `json:"scheduledTime,omitempty"`

	// startTime is when the first Pod was created.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// completionTime is when the command ended or, if that is unknown, when the controller
	// saw that it had ended.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`

	// pod is the Pod of the latest attempt, as of its last phase change.
	// +optional
	Pod *AtPod `json:"pod,omitempty"`

	// nodes counts the nodes of spec.nodes.
	// +optional
	Nodes *AtNodesStatus `json:"nodes,omitempty"`

	// restart reports the progress of the rollout of spec.restart.
	// +optional
	Restart *AtRestartStatus `json:"restart,omitempty"`

	// failed is the number of Pods that have failed.
	// +optional
	Failed int32 `json:"failed,omitempty"`

	// notStarted is the number of Pods that their node refused, or that were evicted or
	// preempted, before any of their containers started. They do not count as attempts: each is
	// replaced by another Pod.
	// +optional
	NotStarted int32 `json:"notStarted,omitempty"`

	// lastFailureTime is when the controller saw that the latest of these Pods had failed.
	// +optional
	LastFailureTime *metav1.Time `json:"lastFailureTime,omitempty"`

	// nextAttemptTime is when the next attempt starts; absent unless the At is waiting for
	// it.
	// +optional
	NextAttemptTime *metav1.Time `json:"nextAttemptTime,omitempty"`

	// observedGeneration is the metadata.generation that the controller has seen. It is
	// absent until the status is first written.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are meant for programs. Complete or Failed is True once the At is DONE, as
	// in Job. FailureTarget is True while the run is being stopped. Suspended is True while
	// spec.suspend is true. Blocked is True, with a reason and a message, while something
	// keeps the At from running or from ending. Frozen is True while a Freeze keeps it from
	// starting. Rehearsed is the result of the last rehearsal.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AtNodesStatus counts the nodes of a run: each is active, waiting, succeeded or failed.
// It is updated at most a few times per second.
type AtNodesStatus struct {
	// desired is the number of nodes on which the command runs.
	Desired int32 `json:"desired"`
	// active is the number of nodes on which the command is running or about to run.
	Active int32 `json:"active"`
	// waiting is the number of nodes whose At is suspended, for example because of
	// maxConcurrent, or was never started.
	Waiting int32 `json:"waiting"`
	// succeeded is the number of nodes on which the command has succeeded.
	Succeeded int32 `json:"succeeded"`
	// failed is the number of nodes on which the command has failed. See the Ats of these
	// nodes for the reasons.
	Failed int32 `json:"failed"`
	// progress is succeeded/desired, for kubectl get.
	// +optional
	Progress string `json:"progress,omitempty"`
	// startTime is when the Ats of all nodes existed. None of them starts before.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`
}

// AtRestartStatus reports the progress of a restart.
type AtRestartStatus struct {
	// uid is the UID of the workload.
	UID types.UID `json:"uid"`
	// restartedAt is the time in the annotation kubectl.kubernetes.io/restartedAt of the
	// workload's Pod template: the time of this restart, or of a later restart by someone
	// else. Absent until the workload is restarted.
	// +optional
	RestartedAt *metav1.Time `json:"restartedAt,omitempty"`
	// desired is the number of Pods that the restart replaces.
	Desired int32 `json:"desired"`
	// updated is the number of Pods that have the current template.
	Updated int32 `json:"updated"`
	// available is the number of available Pods, including old ones. For a StatefulSet, it
	// is the number of ready Pods.
	Available int32 `json:"available"`
}

// AtPod describes the Pod of a run. It is kept after the Pod is gone.
type AtPod struct {
	// name is the name of the Pod.
	Name string `json:"name"`
	// uid is the UID of the Pod.
	UID types.UID `json:"uid"`
	// atGeneration is the metadata.generation of the At from which the Pod was created.
	// +optional
	AtGeneration int64 `json:"atGeneration,omitempty"`
	// phase is the phase of the Pod.
	// +optional
	Phase corev1.PodPhase `json:"phase,omitempty"`
	// podIP is the address of the Pod.
	// +optional
	PodIP string `json:"podIP,omitempty"`
	// hostIP is the address of the Pod's node.
	// +optional
	HostIP string `json:"hostIP,omitempty"`
	// nodeName is the name of the Pod's node.
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// startTime is when the kubelet accepted the Pod.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true

// AtList is a list of Ats.
type AtList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []At `json:"items"`
}
