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

// Annotations of a Deployment, StatefulSet or DaemonSet that is to be restarted on a cron
// schedule. A controller with -restart-annotations makes a CronAt of them.
const (
	// AnnotationRestartSchedule holds a cron expression, as schedule of a CronAt.
	AnnotationRestartSchedule = "cnat.programming-kubernetes.info/restart-schedule"
	// AnnotationRestartTimeZone holds the name of the time zone in which the schedule is
	// evaluated, as timeZone of a CronAt.
	AnnotationRestartTimeZone = "cnat.programming-kubernetes.info/restart-time-zone"
)

// LabelManagedBy is the label of a CronAt that was made of annotations. Its value is
// ManagedBy.
const (
	LabelManagedBy = "app.kubernetes.io/managed-by"
	ManagedBy      = "cnat-controller"
)

// Reasons of events of a workload with the annotations, beside SuccessfulCreate and
// SuccessfulDelete of its CronAt.
const (
	// ReasonSuccessfulUpdate: the spec of the CronAt was changed to what the annotations
	// say.
	ReasonSuccessfulUpdate = "SuccessfulUpdate"
	// ReasonInvalidRestartSchedule: the annotations cannot be read. There is no CronAt.
	ReasonInvalidRestartSchedule = "InvalidRestartSchedule"
	// ReasonCronAtNameConflict: a CronAt of the name exists, and is not the workload's.
	ReasonCronAtNameConflict = "CronAtNameConflict"
	// ReasonCronAtRefused: the API server refuses to create, change or delete the CronAt.
	ReasonCronAtRefused = "CronAtRefused"
)
