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

package freeze

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// Hold says which Freeze keeps something from starting, why, and until when at least.
type Hold struct {
	Freeze string
	Reason string
	Until  time.Time
}

// String returns a sentence for people.
func (h *Hold) String() string {
	sentence := fmt.Sprintf("Freeze %s holds until %s", h.Freeze, h.Until.Format(time.RFC3339))
	if h.Reason == "" {
		return sentence + "."
	}
	return sentence + ": " + h.Reason
}

// Subject is what may be held.
type Subject struct {
	namespace string
	// labels are those of the object, of the one that created it, and so on.
	labels []labels.Set
}

// NewSubject returns the Subject of an At or a CronAt. makers are what created it, directly or
// not, such as its CronAt.
func NewSubject(object metav1.Object, makers ...metav1.Object) Subject {
	s := Subject{namespace: object.GetNamespace()}
	for _, object := range append([]metav1.Object{object}, makers...) {
		s.labels = append(s.labels, labelsOf(object))
	}
	return s
}

// labelsOf returns the labels of an object, with that of its name.
func labelsOf(object metav1.Object) labels.Set {
	named := labels.Set{v1alpha1.LabelAtName: object.GetName()}
	if _, ok := object.(*v1alpha1.CronAt); ok {
		named = labels.Set{v1alpha1.LabelCronAtName: object.GetName()}
	}
	return labels.Merge(named, Keep(object.GetLabels()))
}

// maxLabels is the number of labels of an object that a selector sees. Caches keep them.
const maxLabels = 32

// maxLabel is the maximum length of a label: its prefix, name and value.
const maxLabel = validation.DNS1123SubdomainMaxLength + 1 + 63 + validation.LabelValueMaxLength

// Keep returns the labels that a selector sees: our own, and then the first ones in alphabetical
// order.
func Keep(from map[string]string) map[string]string {
	if len(from) == 0 {
		return nil
	}
	isOther := func(key string) int {
		if strings.HasPrefix(key, cnat.GroupName+"/") {
			return 0
		}
		return 1
	}
	keys := slices.SortedFunc(maps.Keys(from), func(a, b string) int { return cmp.Or(cmp.Compare(isOther(a), isOther(b)), cmp.Compare(a, b)) })
	kept := map[string]string{}
	for _, key := range keys[:min(len(keys), maxLabels)] {
		if len(key)+len(from[key]) <= maxLabel { // The API server refuses others.
			kept[key] = from[key]
		}
	}
	return kept
}

// Set is all Freezes that a controller obeys. A nil Set has none.
type Set struct {
	// controller is the controller's namespace, whose Freezes hold everywhere.
	controller string
	freezes    map[string][]*Freeze
	namespaces map[string]labels.Set
}

// NewSet returns a Set. namespaces has the labels of those whose labels are known. The API server
// gives each namespace a label with its name, which is always known.
func NewSet(controller string, freezes []*Freeze, namespaces map[string]labels.Set) *Set {
	s := &Set{controller: controller, freezes: map[string][]*Freeze{}, namespaces: namespaces}
	for _, f := range freezes {
		if len(f.windows) > 0 {
			s.freezes[f.namespace] = append(s.freezes[f.namespace], f)
		}
	}
	return s
}

// IsEmpty reports whether nothing is ever held.
func (s *Set) IsEmpty() bool { return s == nil || len(s.freezes) == 0 }

// Holding returns the Freeze that keeps a Subject from starting something at t, or nil. Of
// several, it is the one that ends last.
func (s *Set) Holding(subject Subject, t time.Time) *Hold {
	if s.IsEmpty() || isExempt(subject) {
		return nil
	}
	var hold *Hold
	found := func(freezes []*Freeze) {
		for _, f := range freezes {
			until := f.heldUntil(t)
			if until.IsZero() || hold != nil && !until.After(hold.Until) || !f.selects(subject, s.labelsOf(subject.namespace)) {
				continue
			}
			hold = &Hold{Freeze: f.name, Reason: f.reason, Until: until}
			if f.namespace != subject.namespace {
				hold.Freeze = f.namespace + "/" + f.name
			}
		}
	}
	found(s.freezes[s.controller])
	if subject.namespace != s.controller {
		found(s.freezes[subject.namespace])
	}
	return hold
}

func isExempt(subject Subject) bool {
	return slices.ContainsFunc(subject.labels, func(set labels.Set) bool { return set[v1alpha1.LabelIgnoreFreezes] == "true" })
}

// labelsOf returns what is known of the labels of a namespace.
func (s *Set) labelsOf(namespace string) labels.Set {
	if known, ok := s.namespaces[namespace]; ok {
		return known
	}
	return labels.Set{corev1.LabelMetadataName: namespace}
}

// selects reports whether the Freeze selects a Subject, or what created it.
func (f *Freeze) selects(subject Subject, namespace labels.Set) bool {
	return f.namespaceSelector.Matches(namespace) &&
		slices.ContainsFunc(subject.labels, func(set labels.Set) bool { return f.selector.Matches(set) })
}
