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

// Labels of the Pods of an At, and of the Ats that an At with spec.nodes makes.
const (
	// LabelAtUID holds the UID of the At that a Pod, or the At of a node, belongs to.
	// The controller watches the Pods that carry it, and no others.
	LabelAtUID = "cnat.programming-kubernetes.info/at-uid"
	// LabelAtName holds the name of the At that a Pod, or the At of a node, belongs to.
	// A name of more than 63 characters is no label value: they go without.
	LabelAtName = "cnat.programming-kubernetes.info/at-name"
)

// AnnotationScheduledTime is the annotation of a Pod of an At that holds the
// instant at which it was due, as RFC 3339 writes it. CronJob annotates its Jobs alike.
const AnnotationScheduledTime = "cnat.programming-kubernetes.info/scheduled-time"

// AnnotationAtName is the annotation of a Pod of an At that holds the At's name,
// which may be too long for a label.
const AnnotationAtName = "cnat.programming-kubernetes.info/at-name"

// AnnotationAtGeneration is the annotation of a Pod of an At that holds the
// metadata.generation of the At from which the Pod was made.
const AnnotationAtGeneration = "cnat.programming-kubernetes.info/at-generation"

// AnnotationNode is the annotation of a Pod of an At that holds the spec.node with which
// the Pod was made.
const AnnotationNode = "cnat.programming-kubernetes.info/node"

// FinalizerTracking is the finalizer of a Pod of an At whose outcome is not yet in
// the At's status: if somebody deletes the Pod, it stays until it is counted. It is left
// there for some seconds more, so that a creation which is late finds the Pod's name taken.
// Job has the like in batch.kubernetes.io/job-tracking. The At of a node has the same
// finalizer until the At that made it has ended.
const FinalizerTracking = "cnat.programming-kubernetes.info/tracking"

// AtKind is the kind of an At, as owner references name it.
const AtKind = "At"

// AtPhase is where an At stands in its life, for people. Machines read the conditions.
type AtPhase string

// The phases of an At, in their order. A phase never goes back.
const (
	// PhasePending means that no Pod was seen yet: the At is not due, or the Pod
	// cannot be created (condition Blocked says why).
	PhasePending AtPhase = "PENDING"
	// PhaseRunning means that the run has begun: a Pod was created, and has not
	// ended, or another attempt is to follow.
	PhaseRunning AtPhase = "RUNNING"
	// PhaseDone means that the run has ended, well or badly, and that nothing
	// more will happen, but for the deletion that spec.ttlSecondsAfterFinished asks for.
	PhaseDone AtPhase = "DONE"
)

// Types of the conditions of an At.
const (
	// ConditionComplete is True once the Pod has succeeded: the command, and each
	// other container, has ended with exit code 0.
	ConditionComplete = "Complete"
	// ConditionFailed is True once the At has ended in any other way.
	ConditionFailed = "Failed"
	// ConditionFailureTarget is True once the run is being stopped because it has
	// failed: what is left is to wait for its Pod. Job has the same condition.
	ConditionFailureTarget = "FailureTarget"
	// ConditionBlocked is True while something keeps the At from running: how it is
	// written, or how its namespace, its cluster or its node is set up; or, before the At
	// is due, while something would keep it from running. Its message says what to do. It
	// is removed when the At is no longer blocked.
	ConditionBlocked = "Blocked"
	// ConditionSuspended is True while spec.suspend is true, and False afterwards.
	// It is absent from an At that was never suspended.
	ConditionSuspended = "Suspended"
)

// Reasons of the conditions Complete, Failed and FailureTarget, and of the events of
// the end and of each failed attempt.
const (
	// ReasonCompleted: the command ended with exit code 0.
	ReasonCompleted = "Completed"
	// ReasonCommandFailed: the command ended with another exit code.
	ReasonCommandFailed = "CommandFailed"
	// ReasonOOMKilled: the command used more memory than its container may, and
	// was killed.
	ReasonOOMKilled = "OOMKilled"
	// ReasonEvicted: the Pod was evicted by its node, by a drain, by preemption or
	// by a taint, or its node is gone.
	ReasonEvicted = "Evicted"
	// ReasonPodFailed: the Pod failed in another way, such as by another container
	// than the command's.
	ReasonPodFailed = "PodFailed"
	// ReasonPodDeleted: somebody deleted the Pod while it ran, or before it started.
	ReasonPodDeleted = "PodDeleted"
	// ReasonPodLost: the Pod was deleted before its end was seen. Whether the
	// command ended is not known, so it is not run again.
	ReasonPodLost = "PodLost"
	// ReasonInvalidPod: the API server says that the Pod is invalid. Before the At is
	// due, that is a reason of condition Blocked.
	ReasonInvalidPod = "InvalidPod"
	// ReasonStartingDeadlineExceeded: it was later than spec.startingDeadlineSeconds
	// allows before the Pod could be created. The command did not run.
	ReasonStartingDeadlineExceeded = "StartingDeadlineExceeded"
	// ReasonNodeGone: the node of spec.node does not exist, or was removed during the run.
	ReasonNodeGone = "NodeGone"
	// ReasonNoNodes: spec.nodes matches no node.
	ReasonNoNodes = "NoNodes"
	// ReasonNodesFailed: the command failed, or did not run, on some of the nodes of
	// spec.nodes.
	ReasonNodesFailed = "NodesFailed"
	// ReasonNotStarted: the At of a node was not started, because the At that made it
	// has ended: the command failed on more nodes than spec.nodes.maxFailed allows.
	ReasonNotStarted = "NotStarted"
	// ReasonAtDeleted: somebody deleted the At of a node before it had ended.
	ReasonAtDeleted = "AtDeleted"
	// ReasonTargetNotFound: the workload of spec.restart does not exist, or was deleted
	// during its rollout.
	ReasonTargetNotFound = "TargetNotFound"
	// ReasonTargetPaused: the Deployment of spec.restart is paused, so that it does not
	// roll out a restart. If it is paused during the rollout, that is a reason of
	// condition Blocked.
	ReasonTargetPaused = "TargetPaused"
	// ReasonTargetOnDelete: the workload of spec.restart has the update strategy
	// OnDelete, so that a restart would replace no Pod.
	ReasonTargetOnDelete = "TargetOnDelete"
	// ReasonReverted: somebody removed the restart from the workload during its rollout,
	// such as kubectl rollout undo, or a GitOps tool.
	ReasonReverted = "Reverted"
	// ReasonRolloutFailed: the rollout of the restart made no progress for as long as
	// the Deployment's progressDeadlineSeconds allows.
	ReasonRolloutFailed = "RolloutFailed"
	// ReasonDeadlineExceeded: the run took longer than spec.activeDeadlineSeconds
	// allows, and was stopped; or the Pod longer than the template's own limit.
	ReasonDeadlineExceeded = "DeadlineExceeded"
)

// Reasons of the condition Blocked, and of the event that is recorded when it is set.
const (
	// ReasonInvalidSchedule: spec.schedule with spec.timeZone names no instant, or
	// more than one: the time zone is not known, or its clocks skip or repeat that
	// time.
	ReasonInvalidSchedule = "InvalidSchedule"
	// ReasonInvalidSelector: spec.nodes.selector is not a label selector.
	ReasonInvalidSelector = "InvalidSelector"
	// ReasonNodesForbidden: the controller may not read the cluster's nodes, which
	// spec.node and spec.nodes need.
	ReasonNodesForbidden = "NodesForbidden"
	// ReasonRestartForbidden: the controller may not read the workload of spec.restart,
	// for example because artifacts/restarts is not installed.
	ReasonRestartForbidden = "RestartForbidden"
	// ReasonRestartRefused: the API server refuses the restart of the workload (RBAC, a
	// policy, a webhook). It is retried with back-off.
	ReasonRestartRefused = "RestartRefused"
	// ReasonRolloutInProgress: the workload of spec.restart is being rolled out already.
	// The restart waits for the end of that.
	ReasonRolloutInProgress = "RolloutInProgress"
	// ReasonAtNameConflict: an At that is not one of this At's nodes has the name that one
	// of them needs.
	ReasonAtNameConflict = "AtNameConflict"
	// ReasonAtRefused: the API server refuses the At of a node (quota, RBAC, a policy, a
	// webhook). It is retried with back-off.
	ReasonAtRefused = "AtRefused"
	// ReasonPodNameConflict: a Pod that is not this At's has the name that its Pod
	// needs.
	ReasonPodNameConflict = "PodNameConflict"
	// ReasonPodRefused: the API server refuses the Pod (quota, Pod Security, RBAC, a
	// webhook). It is retried with back-off. Before the At is due, it means that the
	// API server would refuse the Pod.
	ReasonPodRefused = "PodRefused"
	// ReasonPodNotCreated: the creation of the Pod has been failing for more than a
	// minute although nobody refuses it: the API server is busy, or does not answer.
	// It is retried with back-off.
	ReasonPodNotCreated = "PodNotCreated"
	// ReasonImagePullFailed: the node cannot pull an image of the Pod. It tries
	// again.
	ReasonImagePullFailed = "ImagePullFailed"
	// ReasonContainerNotCreated: the node cannot create a container of the Pod, for
	// example because a ConfigMap or Secret of its environment is missing. It tries
	// again.
	ReasonContainerNotCreated = "ContainerNotCreated"
	// ReasonUnschedulable: there has been no node for the Pod for a minute.
	ReasonUnschedulable = "Unschedulable"
)

// Reasons of the condition Suspended, and of the events of its changes.
const (
	// ReasonSuspended: spec.suspend is true.
	ReasonSuspended = "Suspended"
	// ReasonResumed: spec.suspend is no longer true.
	ReasonResumed = "Resumed"
)

// ReasonBackOff is the value of status.reason while the At waits for its next attempt.
const ReasonBackOff = "BackOff"

// Reasons of events that go with no condition.
const (
	// ReasonSuccessfulCreate: the Pod was created. Job uses the same word.
	ReasonSuccessfulCreate = "SuccessfulCreate"
	// ReasonRestarted: the rollout of a restart has begun.
	ReasonRestarted = "Restarted"
	// ReasonEditedTooLate: the spec was edited after the Pod was created.
	ReasonEditedTooLate = "EditedTooLate"
	// ReasonUnexpectedPod: a second Pod of an attempt that was counted already is
	// deleted. Its creation was delayed on its way to the API server.
	ReasonUnexpectedPod = "UnexpectedPod"
	// ReasonAtNotReleased: the API server refuses to take the finalizer from the At of a
	// node, which therefore stays when it is deleted.
	ReasonAtNotReleased = "AtNotReleased"
	// ReasonAtNotResumed: the API server refuses to resume the At of a node whose turn it
	// is.
	ReasonAtNotResumed = "AtNotResumed"
	// ReasonPodNotReleased: the API server refuses to take the finalizer from a Pod,
	// which therefore stays when it is deleted.
	ReasonPodNotReleased = "PodNotReleased"
	// ReasonPodNotDeleted: the API server refuses to delete a Pod that must stop,
	// or that is a second one of its attempt.
	ReasonPodNotDeleted = "PodNotDeleted"
	// ReasonAtNotDeleted: the API server refuses to delete an At whose time to live is
	// over.
	ReasonAtNotDeleted = "AtNotDeleted"
)

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
// +kubebuilder:validation:XValidation:rule="oldSelf.status.phase == 'PENDING' || self.spec.schedule == oldSelf.spec.schedule",fieldPath=".spec.schedule",message="is immutable once the At has started: delete the At and create it again to run it once more"
// +kubebuilder:validation:XValidation:rule="oldSelf.status.phase == 'PENDING' || (has(self.spec.timeZone) ? self.spec.timeZone : '') == (has(oldSelf.spec.timeZone) ? oldSelf.spec.timeZone : '')",fieldPath=".spec.timeZone",message="is immutable once the At has started: delete the At and create it again to run it once more"
// +kubebuilder:validation:XValidation:rule="oldSelf.status.phase == 'PENDING' || (has(self.spec.command) ? self.spec.command : '') == (has(oldSelf.spec.command) ? oldSelf.spec.command : '')",fieldPath=".spec.command",message="is immutable once the At has started: delete the At and create it again to run it once more"
// +kubebuilder:validation:XValidation:rule="oldSelf.status.phase == 'PENDING' || has(self.spec.template) == has(oldSelf.spec.template) && (!has(self.spec.template) || self.spec.template == oldSelf.spec.template)",fieldPath=".spec.template",message="is immutable once the At has started: delete the At and create it again to run it once more"
// +kubebuilder:validation:XValidation:rule="oldSelf.status.phase == 'PENDING' || has(self.spec.restart) == has(oldSelf.spec.restart) && (!has(self.spec.restart) || self.spec.restart == oldSelf.spec.restart)",fieldPath=".spec.restart",message="is immutable once the At has started: delete the At and create it again to run it once more"
// +kubebuilder:validation:XValidation:rule="oldSelf.status.phase == 'PENDING' || (has(self.spec.node) ? self.spec.node : '') == (has(oldSelf.spec.node) ? oldSelf.spec.node : '')",fieldPath=".spec.node",message="is immutable once the At has started: delete the At and create it again to run it once more"
// +kubebuilder:validation:XValidation:rule="oldSelf.status.phase == 'PENDING' || has(self.spec.nodes) == has(oldSelf.spec.nodes) && (!has(self.spec.nodes) || self.spec.nodes.selector == oldSelf.spec.nodes.selector)",fieldPath=".spec.nodes",message="is immutable once the At has started, but for maxConcurrent and maxFailed: delete the At and create it again to run it once more"
// +kubebuilder:validation:XValidation:rule="oldSelf.status.phase != 'RUNNING' || !has(self.spec.nodes) || !has(oldSelf.spec.nodes) || has(oldSelf.status.nodes) && has(oldSelf.status.nodes.startTime) || (has(self.spec.nodes.maxConcurrent) ? self.spec.nodes.maxConcurrent == (has(oldSelf.spec.nodes.maxConcurrent) ? oldSelf.spec.nodes.maxConcurrent : 0) : !has(oldSelf.spec.nodes.maxConcurrent))",fieldPath=".spec.nodes.maxConcurrent",message="cannot be changed while the Ats of the nodes are being created: wait until status.nodes.startTime is set"

// At runs a command once, at a given time.
type At struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata. The name is also the name of
	// the Pod: <name>-pod, and <name>-pod-1 and so on of further attempts,
	// shortened with a hash beyond 63 characters.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says what to run, and when.
	// +required
	Spec AtSpec `json:"spec"`

	// status says how far it is. The controller writes it.
	// +optional
	// +default={"phase":"PENDING"}
	Status AtStatus `json:"status,omitempty"`
}

// AtSpec says what to run, and when. While the phase is PENDING everything may
// be edited and is honoured at once, unless the Pod is there already.
// +kubebuilder:validation:XValidation:rule="has(self.timeZone) || self.schedule.matches('T.*(Z|[+-][0-9]{2}:[0-9]{2})$') || !self.schedule.matches('T')",fieldPath=".schedule",message="needs a zone: end it with Z or an offset such as +01:00, or set timeZone"
// +kubebuilder:validation:XValidation:rule="!has(self.timeZone) || !self.schedule.matches('T.*(Z|[+-][0-9]{2}:[0-9]{2})$')",fieldPath=".timeZone",message="must not be set beside a schedule that has a zone itself: leave out one of the two"
type AtSpec struct {
	// schedule is the instant at which the command runs, as RFC 3339 writes it:
	// date, time and zone, such as 2026-12-24T10:12:00Z or
	// 2026-12-24T11:12:00+01:00, with fractions of a second if wanted. With
	// timeZone it is a time on the clocks there, without a zone:
	// 2026-12-24T11:12:00. In the past means at once. Immutable once the At has
	// started.
	// +required
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})?$')",message="must be an instant as RFC 3339 writes it, with date, time and zone, such as 2026-12-24T10:12:00Z or 2026-12-24T11:12:00+01:00"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[0-9]{4}-[0-9]{2}-[0-9]{2}T') || self.matches('^[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-9]))T') && !self.startsWith('0000') && (!self.matches('^[0-9]{4}-02-29') || int(self.substring(0, 4)) % 4 == 0 && (int(self.substring(0, 4)) % 100 != 0 || int(self.substring(0, 4)) % 400 == 0))",message="must be a day that the calendar has: years 0001 to 9999, months 01 to 12, and no day beyond the month's last"
	// +kubebuilder:validation:XValidation:rule="!self.matches('T[0-9]{2}:[0-9]{2}:[0-9]{2}') || self.matches('T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])?$')",message="must be a time that the clock shows: hours 00 to 23, minutes and seconds 00 to 59, in the zone's offset too"
	Schedule string `json:"schedule"`

	// timeZone is the name of a time zone of the IANA database, such as
	// Europe/Berlin. It is needed by a schedule without a zone, and refused
	// beside one that has a zone. A time that the clocks there skip or repeat
	// (daylight-saving time) is not guessed: condition Blocked reports it. Immutable
	// once the At has started.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	TimeZone *string `json:"timeZone,omitempty"`

	RunSpec `json:",inline"`

	// suspend holds the At while it is true: nothing starts, not even another
	// attempt, or the command on another node. What runs already goes on. Default: false.
	// +optional
	Suspend *bool `json:"suspend,omitempty"`

	// startingDeadlineSeconds is how late after its time the command may start,
	// in whole seconds: 0 allows less than one. Later the At ends as
	// Failed/StartingDeadlineExceeded without having run. Default: it runs
	// however late it is.
	// +optional
	// +kubebuilder:validation:Minimum=0
	StartingDeadlineSeconds *int64 `json:"startingDeadlineSeconds,omitempty"`
}

// RunSpec says what an At does when it is due, apart from when.
// +kubebuilder:validation:XValidation:rule="has(self.command) || has(self.template) || has(self.restart)",message="needs a command, a template or restart: write what is to run"
// +kubebuilder:validation:XValidation:rule="!has(self.restart) || !has(self.command) && !has(self.template)",fieldPath=".restart",message="must not be set beside command or template: leave out one of the two"
// +kubebuilder:validation:XValidation:rule="!has(self.restart) || !has(self.node) && !has(self.nodes) && !has(self.backoffLimit)",fieldPath=".restart",message="must not be set beside node, nodes or backoffLimit, which are about a command: leave them out"
// +kubebuilder:validation:XValidation:rule="!has(self.node) || !has(self.nodes)",fieldPath=".nodes",message="must not be set beside node: leave out one of the two"
// +kubebuilder:validation:XValidation:rule="!has(self.node) && !has(self.nodes) || !has(self.template) || !has(self.template.spec) || !has(self.template.spec.nodeName)",fieldPath=".template.spec.nodeName",message="must not be set beside node or nodes: leave it out"
type RunSpec struct {
	// command is run by /bin/sh -c: quotes, pipes and $VARS work. An exit code
	// of 0 is success. It is needed unless there is a template, whose first
	// container it runs in. Immutable once the At has started.
	//
	// At most 32767 characters, so that it fits, whatever the characters, into
	// the 128 KiB that Linux allows one argument of a program.
	// +optional
	// +kubebuilder:validation:MaxLength=32767
	// +kubebuilder:validation:XValidation:rule="self.trim() != ''",message="must not be empty: write what /bin/sh is to run"
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\x00')",message="must not contain NUL, which no program's argument can hold"
	Command string `json:"command,omitempty"`

	// template is the Pod that runs: labels, annotations and spec, which kubectl
	// explain pod.spec describes. If there is a command too, it replaces command
	// and args of the first container. The restartPolicy is Never by default and
	// may be OnFailure, the terminationMessagePolicy is FallbackToLogsOnError by
	// default. The exit code that is kept is that of the container which the
	// annotation kubectl.kubernetes.io/default-container names, or else of the
	// first. Default: one container with a shell and without privileges.
	// Immutable once the At has started.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.metadata) || !has(self.metadata.labels) || !self.metadata.labels.exists(key, key.startsWith('cnat.programming-kubernetes.info/'))",fieldPath=".metadata.labels",message="must not begin with cnat.programming-kubernetes.info/, which is reserved: the controller sets those labels"
	// +kubebuilder:validation:XValidation:rule="!has(self.metadata) || !has(self.metadata.annotations) || !self.metadata.annotations.exists(key, key.startsWith('cnat.programming-kubernetes.info/'))",fieldPath=".metadata.annotations",message="must not begin with cnat.programming-kubernetes.info/, which is reserved: the controller sets those annotations"
	// +kubebuilder:validation:XValidation:rule="has(self.spec) && size(self.spec.containers) > 0",fieldPath=".spec.containers",message="must hold a container: the first one runs the command"
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || self.spec.containers.all(container, has(container.image) && container.image != '')",fieldPath=".spec.containers",message="must name an image in each container: an image is defaulted only without a template"
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || self.spec.containers.all(container, !has(container.restartPolicy) || container.restartPolicy != 'Always')",fieldPath=".spec.containers",message="must not have restartPolicy Always: a Pod with a container that always restarts never ends"
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.initContainers) || self.spec.initContainers.all(container, has(container.image) && container.image != '')",fieldPath=".spec.initContainers",message="must name an image in each container"
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.restartPolicy) || self.spec.restartPolicy in ['', 'Never', 'OnFailure']",fieldPath=".spec.restartPolicy",message="must be Never or OnFailure: a Pod that always restarts never ends"
	Template *corev1.PodTemplateSpec `json:"template,omitempty"`

	// restart restarts a workload instead of running a command: its Pods are replaced
	// step by step, as kubectl rollout restart does it. It is RUNNING until all of them
	// are updated and available. Needs artifacts/restarts. Immutable once the At has
	// started.
	// +optional
	Restart *AtRestart `json:"restart,omitempty"`

	// node is the name of the node on which the command runs. The scheduler still
	// checks that the Pod fits: room, taints, cordons, and what the template asks for. If
	// there is no such node when the command is due, or the node is removed during the
	// run, the At ends as Failed/NodeGone. Default: any node. Immutable once the At has
	// started.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="must be the name of a node, as kubectl get nodes shows it"
	Node string `json:"node,omitempty"`

	// nodes runs the command once on each of several nodes: when it is due, an At of its
	// own for each node, named <at>-<node>. They carry the results for each node, and
	// go with this At. Default: the command runs once.
	// +optional
	Nodes *AtNodes `json:"nodes,omitempty"`

	// backoffLimit is how many further attempts, each in a Pod of its own,
	// follow a failed one: 10 seconds after it, then 20, 40 and so on, at most 6
	// minutes. It is looked at when an attempt fails. Default: 0, once means
	// once.
	// +optional
	// +kubebuilder:validation:Minimum=0
	BackoffLimit *int32 `json:"backoffLimit,omitempty"`

	// activeDeadlineSeconds is how long the run may take, with all its attempts,
	// counted from the creation of the first Pod. Then the Pod is stopped and
	// the At ends as Failed/DeadlineExceeded. With nodes it is the limit on each node,
	// with restart the limit on the rollout, which goes on nevertheless. Default: no
	// limit.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ActiveDeadlineSeconds *int64 `json:"activeDeadlineSeconds,omitempty"`

	// ttlSecondsAfterFinished is how long after its end the At is deleted, and
	// its Pods with it, but not within about ten seconds of the end. It may be set
	// and changed after the end. Default: the At is kept.
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
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="must be the name of a workload, as kubectl get shows it"
	Name string `json:"name"`
}

// AtNodes says on which nodes the command runs.
type AtNodes struct {
	// selector selects nodes by their labels; {} selects all. Of these, the command runs
	// on those that are there when it is due and that the Pod may run on by its
	// nodeSelector, required node affinity and tolerations. A node that is not ready
	// for the moment is one of them: its Pod waits. A cordoned node is not, and a node
	// of virtual-kubelet or Fargate only if the selector names the label that marks it
	// (type, eks.amazonaws.com/compute-type). A node that joins later is left out.
	// Immutable once the At has started.
	// +required
	Selector metav1.LabelSelector `json:"selector"`

	// maxConcurrent is on how many nodes the command may run at the same time: a
	// number, or a percentage of the nodes, rounded up. The next node follows, in order
	// of the names, when one has ended, well or badly. It may be changed during the run.
	// Default: on all.
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^([1-9][0-9]?|100)%$') : int(self) >= 1",message="must be a number of at least 1, or a percentage from 1% to 100%"
	MaxConcurrent *intstr.IntOrString `json:"maxConcurrent,omitempty"`

	// maxFailed is on how many nodes the command may fail: when more have failed, it is
	// not started on further nodes. It may be changed during the run. Default: no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxFailed *int32 `json:"maxFailed,omitempty"`
}

// AtStatus says how far an At is. Once the phase is DONE, only observedGeneration changes.
// +kubebuilder:validation:XValidation:rule="oldSelf.phase != 'DONE' || self.phase == 'DONE'",fieldPath=".phase",message="is DONE and stays so: delete the At and create it again to run it once more"
// +kubebuilder:validation:XValidation:rule="oldSelf.phase != 'RUNNING' || self.phase != 'PENDING'",fieldPath=".phase",message="is RUNNING, and cannot go back to PENDING"
type AtStatus struct {
	// phase is PENDING until the Pod exists (with spec.nodes: until it is due; with
	// spec.restart: until it is due and the workload is not being rolled out), then
	// RUNNING, and DONE from the end on. It is for people: machines read the conditions.
	// +optional
	// +default="PENDING"
	// +kubebuilder:validation:Enum=PENDING;RUNNING;DONE
	Phase AtPhase `json:"phase,omitempty"`

	// reason is why the At is where it is, in one word: why it is PENDING after its
	// time, why its command does not start, how it has ended. Absent while there
	// is nothing to say.
	// +optional
	Reason string `json:"reason,omitempty"`

	// exitCode is the exit code of the command in the newest attempt; absent
	// where there is none.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`

	// message says more about the reason. Once the At is DONE, it is what the
	// command wrote to /dev/termination-log or, if it wrote nothing there and
	// failed, the end of its output; without either it says why the run failed.
	// Control characters are replaced by spaces.
	// +optional
	Message string `json:"message,omitempty"`

	// scheduledTime is the instant at which the run was due.
	// +optional
	ScheduledTime *metav1.Time `json:"scheduledTime,omitempty"`

	// startTime is when the first Pod was created.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// completionTime is when the command ended or, where that is not known, when
	// the controller saw that it had.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`

	// pod is the Pod of the newest attempt, as it was when its phase last
	// changed.
	// +optional
	Pod *AtPod `json:"pod,omitempty"`

	// nodes counts the nodes of spec.nodes.
	// +optional
	Nodes *AtNodesStatus `json:"nodes,omitempty"`

	// restart says how far the rollout of spec.restart is.
	// +optional
	Restart *AtRestartStatus `json:"restart,omitempty"`

	// failed is the number of attempts that have failed.
	// +optional
	Failed int32 `json:"failed,omitempty"`

	// lastFailureTime is when the controller saw that the newest failed attempt
	// had failed.
	// +optional
	LastFailureTime *metav1.Time `json:"lastFailureTime,omitempty"`

	// nextAttemptTime is when the next attempt starts; absent unless the At waits
	// for it.
	// +optional
	NextAttemptTime *metav1.Time `json:"nextAttemptTime,omitempty"`

	// observedGeneration is the metadata.generation that the controller has seen. It
	// is absent until the status is first written.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are for machines. Complete or Failed is True once the At is DONE,
	// as in Job. FailureTarget is True while the run is being stopped. Suspended is
	// True while spec.suspend is true. Blocked is True, with a reason and a
	// message, while something keeps the At from running.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AtNodesStatus counts the nodes of a run: each is active, waiting, succeeded or failed.
// It is updated a few times a second at most.
type AtNodesStatus struct {
	// desired is the number of nodes on which the command runs.
	Desired int32 `json:"desired"`
	// active is the number of nodes on which the command runs, or is about to.
	Active int32 `json:"active"`
	// waiting is the number of nodes whose At is suspended, such as for maxConcurrent, or
	// was never started.
	Waiting int32 `json:"waiting"`
	// succeeded is the number of nodes on which the command has succeeded.
	Succeeded int32 `json:"succeeded"`
	// failed is the number of nodes on which the command has failed. Their Ats say why.
	Failed int32 `json:"failed"`
	// progress is succeeded/desired, for kubectl get.
	// +optional
	Progress string `json:"progress,omitempty"`
	// startTime is when the Ats of all nodes existed: none is started before.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`
}

// AtRestartStatus says how far the restart of a workload is.
type AtRestartStatus struct {
	// uid is the UID of the workload.
	UID types.UID `json:"uid"`
	// restartedAt is the time in the annotation kubectl.kubernetes.io/restartedAt of the
	// workload's Pod template: that of this restart, or of one that somebody else made
	// meanwhile. Absent until the workload is restarted.
	// +optional
	RestartedAt *metav1.Time `json:"restartedAt,omitempty"`
	// desired is the number of Pods that the restart replaces.
	Desired int32 `json:"desired"`
	// updated is the number of Pods that have the present template.
	Updated int32 `json:"updated"`
	// available is the number of Pods that are available, old ones among them. Of a
	// StatefulSet it is the number of Pods that are ready.
	Available int32 `json:"available"`
}

// AtPod is the Pod of a run. It is kept after the Pod is gone.
type AtPod struct {
	// name is the name of the Pod.
	Name string `json:"name"`
	// uid is the UID of the Pod.
	UID types.UID `json:"uid"`
	// atGeneration is the metadata.generation of the At from which the Pod was made.
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
	// startTime is when the kubelet took the Pod on.
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
