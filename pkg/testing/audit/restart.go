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

package audit

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/plan/rollout"
)

// deployment is what the history shows of a Deployment.
type deployment struct {
	*appsv1.Deployment
	changed    time.Time
	annotation string              // of the last restart
	restarted  sets.Set[time.Time] // the annotations so far, as times in UTC
	restarts   map[string]*restarts
}

// restarts are those with the same annotation, which is the time of one or several Ats.
type restarts struct {
	number int
	ats    sets.Set[types.UID] // those that may have caused one
}

// addDeployment checks that a workload is restarted once for each At.
func (c *Checker) addDeployment(w Write, object *appsv1.Deployment) {
	d := c.deployments[object.UID]
	known := d != nil
	if !known {
		d = &deployment{restarted: sets.Set[time.Time]{}, restarts: map[string]*restarts{}}
		c.deployments[object.UID] = d
	}
	before, annotation := d.annotation, object.Spec.Template.Annotations[rollout.AnnotationRestartedAt]
	d.Deployment, d.changed, d.annotation = object, w.Time, annotation
	restarted, err := time.Parse(time.RFC3339, annotation)
	if err != nil {
		return
	}
	d.restarted.Insert(restarted.UTC())
	if !known || annotation == before {
		return
	}
	// An At that has ended restarts nothing. Somebody else may bring its annotation back.
	var first, started *at
	for _, a := range c.ats {
		if !restartsIt(a, object) || a.gone || a.Status.Phase == v1alpha1.PhaseDone || !restartTime(a).Equal(restarted) {
			continue
		}
		if first == nil || a.Name < first.Name {
			first = a
		}
		if !respects(w.Sent, a.terms) || c.mustWait(a, w.Sent) {
			continue
		}
		if d.restarts[annotation] == nil {
			d.restarts[annotation] = &restarts{ats: sets.Set[types.UID]{}}
		}
		d.restarts[annotation].ats.Insert(a.UID)
		if started == nil || a.Name < started.Name {
			started = a
		}
	}
	if first == nil {
		return
	}
	c.Summary.Restarts++
	if started == nil {
		c.mayStart(first.At, w.Sent, first.terms)
		c.checkFrozen(first, w.Sent)
		return
	}
	r := d.restarts[annotation]
	if r.number++; r.number > len(r.ats) && started.DeletionTimestamp == nil {
		c.violate(Once, object, "it is restarted twice for At %s", started.Name)
	}
	if len(r.ats) == 1 && r.number == 1 {
		c.checkLate(w, started)
	}
}

// restartTime returns the time of the restart of an At, in the annotation of its workload. An At
// that was created after its time restarts it again.
func restartTime(a *at) time.Time {
	due, err := plan.Instant(&a.Spec)
	if created := a.CreationTimestamp.Time; err == nil && created.After(due) {
		due = created
	}
	return due.UTC().Truncate(time.Second)
}

// checkRestarted checks that a restart that a status begins to record has happened, and that one was
// recorded if the At is Completed.
func (c *Checker) checkRestarted(a *at, next *v1alpha1.At) {
	if next.Spec.Restart == nil {
		return
	}
	was, is := ptr.Deref(a.Status.Restart, v1alpha1.AtRestartStatus{}), ptr.Deref(next.Status.Restart, v1alpha1.AtRestartStatus{})
	isNew := is.RestartedAt != nil && (a.At == next || was.RestartedAt == nil)
	for uid, d := range c.deployments {
		switch {
		case !restartsIt(a, d.Deployment):
		case isNew && uid == is.UID && (!d.restarted.Has(is.RestartedAt.UTC()) || is.RestartedAt.Time.Before(restartTime(a))):
			c.violate(True, next, "it records a restart of its Deployment at %s, but there was none", is.RestartedAt.UTC().Format(time.RFC3339))
		case next.Status.Reason == v1alpha1.ReasonCompleted && is.RestartedAt == nil && ptr.Deref(d.Spec.Replicas, 1) > 0 && c.now.Sub(d.changed) > time.Minute:
			c.violate(True, next, "it is Completed, but has not restarted its Deployment")
		}
	}
}

// restartsIt reports whether an At restarts a Deployment.
func restartsIt(a *at, object *appsv1.Deployment) bool {
	r := a.Spec.Restart
	return r != nil && r.Kind == v1alpha1.RestartDeployment && a.Namespace == object.Namespace && r.Name == object.Name
}
