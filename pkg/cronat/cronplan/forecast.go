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

package cronplan

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// NextAt returns the next At of a CronAt, as it would be created now, for a preflight: its
// UID is that of the CronAt. It is nil if none is to come.
func NextAt(cronAt *v1alpha1.CronAt, now time.Time) *v1alpha1.At {
	if cronAt.DeletionTimestamp != nil {
		return nil
	}
	v := newView(World{CronAt: cronAt, Now: now})
	if v.next.IsZero() {
		return nil
	}
	next := newChild(cronAt, v.next, v.shift)
	next.UID, next.Generation = cronAt.UID, 1
	return next
}

// MustForecastWait reports whether a preflight makes no sense until an At of the CronAt has
// ended, or is no longer blocked: the next At would wait for it, and its Pod might be refused
// only because the Pod of the other exists. A blocked At says what is wrong.
func MustForecastWait(cronAt *v1alpha1.CronAt) bool {
	return ptr.Deref(Blocked(cronAt), metav1.Condition{}).Reason == v1alpha1.ReasonAtBlocked ||
		cronAt.Status.Active > 0 && policyOf(cronAt) != v1alpha1.AllowConcurrent
}

// observeForecast keeps condition Blocked in sync with the forecast, and condition Rehearsed
// with the last rehearsal, if nothing else blocks the CronAt. A refusal in the status stays
// until there is a new forecast, or until the At that it was for exists and the next one has to
// wait.
func (v *view) observeForecast() {
	forecast := ptr.Deref(v.Forecast, plan.Forecast{})
	rehearsed, events := RehearsedOf(v.status).Observe(v.CronAt, v.CronAt.Spec.AtTemplate.Spec.Rehearse && v.Rehearses, forecast.Rehearsal, v.Now)
	v.events = append(v.events, events...)
	switch {
	case v.next.IsZero(): // Nothing is to come.
	case v.Forecast == nil && plan.IsRefusal(Blocked(v.CronAt)) && !v.mustWait():
		return
	case forecast.Reason != "":
		v.setBlocked(forecast.Reason, forecast.Sentence())
		return
	case rehearsed != nil && !v.mustWait():
		v.setBlocked(rehearsed.Reason, rehearsed.Message)
		return
	}
	meta.RemoveStatusCondition(&v.status.Conditions, v1alpha1.ConditionBlocked)
}

// rehearsalGap is the minimum time between the end of a rehearsal that passes and the next one. It
// is less than an hour, so that each time of an hourly schedule has one, although a rehearsal may
// take ten minutes.
const rehearsalGap = 50 * time.Minute

// RehearsedOf returns the part of a CronAt's status that is about rehearsals.
func RehearsedOf(status *v1alpha1.CronAtStatus) plan.Rehearsed {
	return plan.Rehearsed{Conditions: &status.Conditions, At: &status.RehearsedAt}
}

// UntilRehearsal returns the time until a CronAt whose next At is due at the given time needs a
// rehearsal, if the Pod is not refused.
func UntilRehearsal(cronAt *v1alpha1.CronAt, due, now time.Time) (wait time.Duration, wanted bool) {
	if !cronAt.Spec.AtTemplate.Spec.Rehearse {
		return 0, false
	}
	return RehearsedOf(&cronAt.Status).Until(cronAt, due, now, rehearsalGap)
}

// untilForecast returns the time until the preflight before the next At, if there is one: what is due
// more often reports a refusal soon enough.
func (v *view) untilForecast() (wait time.Duration, wanted bool) {
	lead := plan.Lead(v.CronAt.UID)
	if v.Forecast != nil || v.next.IsZero() || v.next.Add(-lead).Before(v.floor()) {
		return 0, false
	}
	return v.untilNext() - lead, true
}

// wantsPreflight reports whether a preflight is needed. The CronAt is new or was edited. Or it was
// written within the last minute, and an earlier leader may not have finished its preflight. Or it
// has the forecast of an earlier controller, its next At is due soon, or it needs a rehearsal.
func (v *view) wantsPreflight() bool {
	if v.Forecast != nil || v.next.IsZero() {
		return false
	}
	wait, wanted := v.untilForecast()
	_, rehearses := UntilRehearsal(v.CronAt, v.next.Add(v.shift), v.Now)
	return v.CronAt.Status.ObservedGeneration != v.CronAt.Generation || v.Now.Sub(plan.WrittenAt(v.CronAt, "")) < plan.Grace || plan.IsForecast(Blocked(v.CronAt)) ||
		rehearses && v.Rehearses ||
		wanted && wait <= 0
}
