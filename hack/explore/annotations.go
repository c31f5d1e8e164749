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
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// The annotations of a Deployment, what users do with them and with the CronAt that is made of
// them, and what must hold.

const (
	nightly = "0 3 * * *"
	weekly  = "0 4 * * 0"
	broken  = "each night"
	ofWeb   = "deployment-web" // the name of the CronAt
)

// annotated returns a Deployment with the annotation.
func annotated(schedule string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: "web", Annotations: map[string]string{v1alpha1.AnnotationRestartSchedule: schedule},
	}}
}

// setSchedule changes the annotation, or removes it.
func setSchedule(schedule string) edit {
	name := fmt.Sprintf("writes the annotation %q", schedule)
	if schedule == "" {
		name = "removes the annotation"
	}
	return edit{name: name, do: func(s *state) bool {
		o := s.find(deployments, "web")
		if o == nil || o.meta.GetAnnotations()[v1alpha1.AnnotationRestartSchedule] == schedule {
			return false
		}
		if schedule == "" {
			s.hold(o.uid()) // From now on, the CronAt may be deleted, whatever it is.
		}
		s.put(o.change(name, func(meta metav1.Object) {
			meta.SetAnnotations(annotated(schedule).Annotations)
			if schedule == "" {
				meta.SetAnnotations(nil)
			}
		}))
		return true
	}}
}

// editCronAt returns an edit of the CronAt.
func editCronAt(what string, change func(cronAt *v1alpha1.CronAt)) edit {
	return changes(what, cronAts, ofWeb, func(meta metav1.Object) { change(meta.(*v1alpha1.CronAt)) })
}

var (
	suspendOfWeb = editCronAt("suspends the CronAt", func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = ptr.To(true) })
	moveOfWeb    = editCronAt("edits the CronAt", func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Schedule = "@yearly" })
	orphanOfWeb  = editCronAt("removes the owner of the CronAt", func(cronAt *v1alpha1.CronAt) { cronAt.OwnerReferences = nil })
	unlabelOfWeb = editCronAt("removes the label of the CronAt", func(cronAt *v1alpha1.CronAt) { cronAt.Labels = nil })
	deleteOfWeb  = deletes("the CronAt", cronAts, ofWeb)
)

// takeName creates a CronAt that has nothing to do with the Deployment.
var takeName = edit{name: "creates another CronAt of that name", do: func(s *state) bool {
	if s.find(cronAts, ofWeb) != nil {
		return false
	}
	s.create(intern(&v1alpha1.CronAt{ObjectMeta: metav1.ObjectMeta{Name: ofWeb}, Spec: v1alpha1.CronAtSpec{Schedule: "@yearly"}}))
	return true
}}

// replaceDeployment creates the Deployment again.
var replaceDeployment = edit{name: "deletes the Deployment, and creates it again", do: func(s *state) bool {
	return deleteDeployment.do(s) && s.create(intern(annotated(weekly))) != nil
}}

// ofAnnotation are all edits of an annotated Deployment and its CronAt.
var ofAnnotation = []edit{
	setSchedule(weekly), setSchedule(broken), setSchedule(""), deleteDeployment, replaceDeployment,
	suspendOfWeb, moveOfWeb, orphanOfWeb, unlabelOfWeb, deleteOfWeb, takeName,
}

// isSuspendedByHand reports whether a user, not an annotation, has suspended a CronAt.
func isSuspendedByHand(cronAt *v1alpha1.CronAt) bool {
	return ptr.Deref(cronAt.Spec.Suspend, false) && cronAt.Labels[v1alpha1.AnnotationRestartSuspend] == ""
}

// isForeign reports whether a CronAt belongs to somebody else.
func isForeign(cronAt *v1alpha1.CronAt) bool {
	return metav1.GetControllerOfNoCopy(cronAt) == nil && cronAt.Labels[v1alpha1.LabelManagedBy] == ""
}

// checkChange checks what a controller does to an object. It deletes it if after is nil.
func (s *state) checkChange(before *object, after *content) {
	if isForeignPod(before) {
		s.violation = "a Pod of somebody else is changed"
	}
	if s.x.own() == cronAts && before.kind == cronAts {
		s.recordSkipped(before.cronAt(), after.meta.(*v1alpha1.CronAt))
	}
	if s.x.own() != deployments {
		return
	}
	cronAt, web := before.cronAt(), s.find(deployments, "web")
	switch {
	case isForeign(cronAt):
		s.violation = "a CronAt of somebody else is changed"
	case after != nil && isSuspendedByHand(cronAt) && !ptr.Deref(after.meta.(*v1alpha1.CronAt).Spec.Suspend, false):
		s.violation = "a CronAt that a user has suspended is resumed"
	case after == nil && isSuspendedByHand(cronAt) && web != nil && !slices.ContainsFunc(s.held, func(h hold) bool { return h.uid == web.uid() }):
		s.violation = "a CronAt that a user has suspended is deleted, although there has always been an annotation"
	}
}

// maxCreations is more than the number of times that edits and faults can make it necessary to
// create the CronAt.
const maxCreations = 7

// checkCreations checks that the controllers and the garbage collector do not create and delete the
// CronAt for ever.
func (s *state) checkCreations() {
	creations := 0
	for _, uid := range s.made {
		if strings.Contains(string(uid), ofWeb) {
			creations++
		}
	}
	if creations > maxCreations {
		s.violation = fmt.Sprintf("the CronAt is created %d times", creations)
	}
}

// hasEndedWorkload returns what is wrong with the CronAt of a Deployment when nothing more
// happens.
func (s *state) hasEndedWorkload() error {
	web, o := s.find(deployments, "web"), s.find(cronAts, ofWeb)
	if o != nil && isForeign(o.cronAt()) {
		return nil
	}
	schedule := ""
	if web != nil {
		schedule = web.meta.GetAnnotations()[v1alpha1.AnnotationRestartSchedule]
	}
	isOwn := o != nil && web != nil && metav1.IsControlledBy(o.meta, web.meta)
	switch {
	case schedule == "" || schedule == broken:
		// By the guarantees, one without its label may stay.
		if isOwn && s.x.selects(o) && (schedule == "" || !isSuspendedByHand(o.cronAt())) {
			return fmt.Errorf("the CronAt stays, and the annotation is %q", schedule)
		}
	case o == nil:
		return errors.New("there is no CronAt")
	case !isOwn:
		return fmt.Errorf("the CronAt has the owners %v", o.meta.GetOwnerReferences())
	case o.cronAt().Spec.Schedule != schedule:
		return fmt.Errorf("the CronAt has the schedule %q, want %q", o.cronAt().Spec.Schedule, schedule)
	}
	return nil
}
