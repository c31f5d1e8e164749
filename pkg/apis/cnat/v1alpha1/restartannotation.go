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

// Annotations of a Deployment, StatefulSet or DaemonSet that must be restarted on a cron
// schedule. A controller with -restart-annotations creates a CronAt from them.
const (
	// AnnotationRestartSchedule holds a cron expression, like schedule of a CronAt.
	AnnotationRestartSchedule = "cnat.programming-kubernetes.info/restart-schedule"
	// AnnotationRestartTimeZone holds the name of the time zone in which the schedule is
	// evaluated, like timeZone of a CronAt.
	AnnotationRestartTimeZone = "cnat.programming-kubernetes.info/restart-time-zone"
	// AnnotationRestartSuspend is true or false, like suspend of a CronAt. A CronAt that is
	// suspended because of it has it as a label.
	AnnotationRestartSuspend = "cnat.programming-kubernetes.info/restart-suspend"
)

// LabelManagedBy is the label of a CronAt that was created from annotations. Its value is
// ManagedBy.
const (
	LabelManagedBy = "app.kubernetes.io/managed-by"
	ManagedBy      = "cnat-controller"
)

// Reasons of events of a workload with the annotations, besides SuccessfulCreate and
// SuccessfulDelete for its CronAt.
const (
	// ReasonSuccessfulUpdate: the spec of the CronAt was changed to match the annotations,
	// or a CronAt without an owner was adopted.
	ReasonSuccessfulUpdate = "SuccessfulUpdate"
	// ReasonInvalidRestartSchedule: the annotations are invalid. There is no CronAt, or
	// it is suspended.
	ReasonInvalidRestartSchedule = "InvalidRestartSchedule"
	// ReasonCronAtNameConflict: a CronAt of that name exists but does not belong to the
	// workload.
	ReasonCronAtNameConflict = "CronAtNameConflict"
	// ReasonCronAtRefused: the API server refuses to create, change or delete the CronAt.
	ReasonCronAtRefused = "CronAtRefused"
)
