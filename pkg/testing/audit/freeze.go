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
	"slices"
	"time"

	"github.com/robfig/cron/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// seenTime is how long after a Freeze was stored it is effective at the latest.
const seenTime = 30 * time.Second

// freeze is a version of a Freeze, and the time for which it was stored.
type freeze struct {
	*v1alpha1.Freeze
	since, until time.Time // until is the zero time if it still is
}

func (c *Checker) addFreeze(w Write, object *v1alpha1.Freeze) {
	versions := c.freezes[object.UID]
	if len(versions) > 0 {
		versions[len(versions)-1].until = w.Time
	}
	if !w.Gone {
		versions = append(versions, &freeze{Freeze: object, since: w.Time})
	}
	c.freezes[object.UID] = versions
}

// frozen says whether something must not start at t, and whether it might not, for somebody who knows
// the Freezes as they were at any time from one to another. makers are what created it.
func (c *Checker) frozen(t, from, to time.Time, object metav1.Object, makers ...metav1.Object) (surely, perhaps bool) {
	for _, versions := range c.freezes {
		var stored []*freeze
		for _, f := range versions {
			if !f.since.After(to) && (f.until.IsZero() || !f.until.Before(from)) {
				stored = append(stored, f)
			}
		}
		holds := func(f *freeze) bool { return c.selects(f.Freeze, object, makers) && holdsAt(&f.Spec, t) }
		perhaps = perhaps || slices.ContainsFunc(stored, holds)
		if len(stored) > 0 && !stored[0].since.After(from) && (stored[len(stored)-1].until.IsZero() || stored[len(stored)-1].until.After(to)) {
			surely = surely || !slices.ContainsFunc(stored, func(f *freeze) bool { return !holds(f) })
		}
	}
	return surely, perhaps
}

// holdsAt reports whether an instant is in one of the windows of a Freeze.
func holdsAt(spec *v1alpha1.FreezeSpec, t time.Time) bool {
	location, err := time.LoadLocation(ptr.Deref(spec.TimeZone, "UTC"))
	if err != nil {
		panic(err)
	}
	instant := func(text v1alpha1.FreezeTime) time.Time {
		instant, err := time.Parse(time.RFC3339, string(text))
		if err != nil { // It has no zone.
			instant, _ = time.ParseInLocation("2006-01-02T15:04:05", string(text), location) // The CRD has validated it.
		}
		return instant
	}
	return slices.ContainsFunc(spec.Windows, func(window v1alpha1.FreezeWindow) bool {
		if expression, err := cron.ParseStandard(window.Schedule); err == nil {
			return !expression.Next(t.Add(-time.Duration(window.DurationSeconds) * time.Second).In(location)).After(t)
		}
		return !t.Before(instant(window.From)) && t.Before(instant(window.Until))
	})
}

// selects reports whether a Freeze concerns an object, itself or because of what created it.
func (c *Checker) selects(f *v1alpha1.Freeze, object metav1.Object, makers []metav1.Object) bool {
	if f.Namespace != object.GetNamespace() && f.Namespace != c.System || !matches(f.Spec.NamespaceSelector, c.namespaces[object.GetNamespace()]) {
		return false
	}
	isSelected := false
	for _, object := range append(makers, object) {
		if object.GetLabels()[v1alpha1.LabelIgnoreFreezes] == "true" {
			return false
		}
		key := v1alpha1.LabelAtName
		if _, ok := object.(*v1alpha1.CronAt); ok {
			key = v1alpha1.LabelCronAtName
		}
		isSelected = isSelected || matches(f.Spec.Selector, labels.Merge(object.GetLabels(), labels.Set{key: object.GetName()}))
	}
	return isSelected
}

// matches reports whether labels match a selector. One that is absent selects all.
func matches(selector *metav1.LabelSelector, set labels.Set) bool {
	compiled, err := metav1.LabelSelectorAsSelector(selector)
	return selector == nil || err == nil && compiled.Matches(set)
}

// makers returns what created an At, directly or not.
func (c *Checker) makers(a *at) []metav1.Object {
	var makers []metav1.Object
	maker := a.At
	if parent := c.ats[ownerUID(a, v1alpha1.AtKind)]; parent != nil {
		maker = parent.At
		makers = append(makers, maker)
	}
	if owner := c.cronAts[ownerUID(maker, v1alpha1.CronAtKind)]; owner != nil && !owner.gone {
		makers = append(makers, owner.CronAt)
	}
	return makers
}

// mustWait reports whether an At had to wait for the end of a Freeze when it sent a start.
func (c *Checker) mustWait(a *at, sent time.Time) bool {
	before := sent.Add(-editDelay)
	for _, t := range []time.Time{before, sent} {
		if surely, _ := c.frozen(t, before.Add(-seenTime), sent, a.At, c.makers(a)...); !surely {
			return false
		}
	}
	return true
}

// mayHaveWaited reports whether a Freeze may have held an At at some time from one to another.
func (c *Checker) mayHaveWaited(a *at, from, to time.Time) bool {
	const step = time.Second / 2
	for t := from; !t.After(to); t = t.Add(step) {
		if _, perhaps := c.frozen(t, t.Add(-2*step), t, a.At, c.makers(a)...); perhaps {
			return true
		}
	}
	return false
}

// checkFrozen checks that an At does not start something while a Freeze holds.
func (c *Checker) checkFrozen(a *at, sent time.Time) {
	if c.mustWait(a, sent) {
		c.violate(Honored, a.At, "it starts although a Freeze holds that was stored %v before", seenTime)
	}
}

// countFrozen returns how many of the scheduled times of a CronAt are skipped by a Freeze at least, and
// at most, if they were counted by what was sent at a time.
func (c *Checker) countFrozen(times []time.Time, sent time.Time, object *v1alpha1.CronAt) (least, most int64) {
	for _, t := range times {
		surely, perhaps := c.frozen(t, sent.Add(-editDelay-seenTime), sent, object)
		if surely {
			least++
		}
		if perhaps {
			most++
		}
	}
	return least, most
}
