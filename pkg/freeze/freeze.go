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

// Package freeze decides whether a Freeze keeps an At or a CronAt from starting something. It is
// pure: it reads only the objects and the time that it is given.
package freeze

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/zones"
)

// Freeze is a Freeze that is ready to decide.
type Freeze struct {
	namespace, name, reason     string
	location                    *time.Location
	windows                     []window
	namespaceSelector, selector labels.Selector
	// latest is the last answer. Nearly all questions are about the present.
	latest atomic.Pointer[span]
}

// span is a time during which a Freeze holds, or does not.
type span struct {
	from, until time.Time // until is the zero time if there is no end
	holds       bool
}

func (s *span) contains(t time.Time) bool {
	return !t.Before(s.from) && (s.until.IsZero() || t.Before(s.until))
}

// New returns a Freeze. The error says what of it cannot be read, which the CRD refuses: such a
// window never holds, and a Freeze with such a selector or zone holds nothing.
func New(object *v1alpha1.Freeze) (*Freeze, error) {
	spec := &object.Spec
	f := &Freeze{namespace: object.Namespace, name: object.Name, reason: spec.Reason}
	var err error
	if f.location, err = zones.Load(ptr.Deref(spec.TimeZone, "UTC")); err != nil {
		return f, err
	}
	if f.selector, err = selectorOf(spec.Selector); err != nil {
		return f, fmt.Errorf("spec.selector: %w", err)
	}
	if f.namespaceSelector, err = selectorOf(spec.NamespaceSelector); err != nil {
		return f, fmt.Errorf("spec.namespaceSelector: %w", err)
	}
	var invalid []error
	for i := range spec.Windows {
		w, err := parseWindow(&spec.Windows[i], f.location)
		if err != nil {
			invalid = append(invalid, fmt.Errorf("spec.windows[%d]: %w", i, err))
			continue
		}
		f.windows = append(f.windows, w)
	}
	return f, errors.Join(invalid...)
}

// selectorOf returns a selector of labels. One that is absent selects all.
func selectorOf(selector *metav1.LabelSelector) (labels.Selector, error) {
	if selector == nil {
		return labels.Everything(), nil
	}
	return metav1.LabelSelectorAsSelector(selector)
}

// NeedsLabels reports whether the Freeze selects namespaces by more than their names.
func (f *Freeze) NeedsLabels() bool {
	if f.namespaceSelector == nil {
		return false
	}
	requirements, _ := f.namespaceSelector.Requirements()
	return slices.ContainsFunc(requirements, func(r labels.Requirement) bool { return r.Key() != corev1.LabelMetadataName })
}

// maxWindows is the number of windows, one after the other without a gap, that count as one. The
// schedule of a window may have more times than anybody can count.
const maxWindows = 100

// heldUntil returns until when the Freeze holds at least, or the zero time if it does not hold
// at t.
func (f *Freeze) heldUntil(t time.Time) time.Time {
	known := f.latest.Load()
	if known == nil || !known.contains(t) {
		known = f.spanAt(t)
		f.latest.Store(known)
	}
	if !known.holds {
		return time.Time{}
	}
	return known.until.In(f.location)
}

// spanAt returns a span that contains t.
func (f *Freeze) spanAt(t time.Time) *span {
	end := t
	for range maxWindows {
		before := end
		for _, w := range f.windows {
			if until := w.end(end); until.After(end) {
				end = until
			}
		}
		if end.Equal(before) {
			break
		}
	}
	if end.After(t) {
		return &span{from: t, until: end, holds: true}
	}
	var begin time.Time
	for _, w := range f.windows {
		if next := w.next(t); begin.IsZero() || !next.IsZero() && next.Before(begin) {
			begin = next
		}
	}
	return &span{from: t, until: begin}
}
