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
	"fmt"
	"maps"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

const controller = "cnat-system"

func newAt(namespace, name string, set map[string]string) *v1alpha1.At {
	return &v1alpha1.At{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: set}}
}

func newCronAt(namespace, name string, set map[string]string) *v1alpha1.CronAt {
	return &v1alpha1.CronAt{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: set}}
}

func TestHolding(t *testing.T) {
	exempt := map[string]string{v1alpha1.LabelIgnoreFreezes: "true"}
	web := map[string]string{"app": "web"}
	production := &metav1.LabelSelector{MatchLabels: map[string]string{"stage": "production"}}
	freeze := func(namespace, name string, until v1alpha1.FreezeTime, edits ...func(*v1alpha1.FreezeSpec)) *v1alpha1.Freeze {
		f := newFreeze(namespace, name, "UTC", from("2026-12-23T16:00:00", until))
		for _, edit := range edits {
			edit(&f.Spec)
		}
		return f
	}
	selects := func(key, value string) func(*v1alpha1.FreezeSpec) {
		return func(spec *v1alpha1.FreezeSpec) {
			spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
		}
	}
	in := func(selector *metav1.LabelSelector) func(*v1alpha1.FreezeSpec) {
		return func(spec *v1alpha1.FreezeSpec) { spec.NamespaceSelector = selector }
	}
	one := func(namespace, name string) func(...func(*v1alpha1.FreezeSpec)) []*v1alpha1.Freeze {
		return func(edits ...func(*v1alpha1.FreezeSpec)) []*v1alpha1.Freeze {
			return []*v1alpha1.Freeze{freeze(namespace, name, "2027-01-01T00:00:00", edits...)}
		}
	}
	own, christmas := one("team", "own"), one(controller, "christmas")
	all := &metav1.LabelSelector{}
	for name, tc := range map[string]struct {
		freezes []*v1alpha1.Freeze
		of      []metav1.Object // an At, and what created it; by default At once of namespace team
		want    string          // the name of the Freeze that holds
	}{
		"of its namespace":                    {freezes: own(), want: "own"},
		"of another namespace":                {freezes: []*v1alpha1.Freeze{freeze("other", "theirs", "2027-01-01T00:00:00")}},
		"that is over":                        {freezes: []*v1alpha1.Freeze{freeze("team", "own", "2026-12-23T17:00:00")}},
		"of the cluster":                      {freezes: christmas(), want: "cnat-system/christmas"},
		"of the cluster, by an empty one":     {freezes: christmas(in(all)), want: "cnat-system/christmas"},
		"of the controller's, in its own":     {freezes: christmas(), of: []metav1.Object{newAt(controller, "once", nil)}, want: "christmas"},
		"of namespaces with a label":          {freezes: christmas(in(production)), want: "cnat-system/christmas"},
		"of namespaces without that label":    {freezes: christmas(in(production)), of: []metav1.Object{newAt("stage", "once", nil)}},
		"of a namespace that is not known":    {freezes: christmas(in(production)), of: []metav1.Object{newAt("new", "once", nil)}},
		"of a namespace by its name":          {freezes: christmas(in(&metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "new"}})), of: []metav1.Object{newAt("new", "once", nil)}, want: "cnat-system/christmas"},
		"of its namespace, which it excepts":  {freezes: one("stage", "own")(in(production)), of: []metav1.Object{newAt("stage", "once", nil)}},
		"the last of two":                     {freezes: []*v1alpha1.Freeze{freeze("team", "a", "2027-01-01T00:00:00"), freeze("team", "b", "2027-01-03T00:00:00"), freeze("team", "c", "2027-01-02T00:00:00")}, want: "b"},
		"the cluster's of two":                {freezes: []*v1alpha1.Freeze{freeze(controller, "a", "2027-01-03T00:00:00"), freeze("team", "b", "2027-01-01T00:00:00")}, want: "cnat-system/a"},
		"by a label that it does not have":    {freezes: own(selects("app", "web"))},
		"by the label of its CronAt":          {freezes: own(selects("app", "web")), of: []metav1.Object{newAt("team", "nightly-1", nil), newCronAt("team", "nightly", web)}, want: "own"},
		"by its name":                         {freezes: own(selects(v1alpha1.LabelAtName, "once")), want: "own"},
		"a CronAt, by its name":               {freezes: own(selects(v1alpha1.LabelCronAtName, "nightly")), of: []metav1.Object{newCronAt("team", "nightly", nil)}, want: "own"},
		"an At, by the name of its CronAt":    {freezes: own(selects(v1alpha1.LabelCronAtName, "nightly")), of: []metav1.Object{newAt("team", "nightly-1", map[string]string{v1alpha1.LabelCronAtName: "nightly"})}, want: "own"},
		"an At that has the name of a CronAt": {freezes: own(selects(v1alpha1.LabelCronAtName, "nightly")), of: []metav1.Object{newAt("team", "nightly", nil)}},
		"exempt":                              {freezes: append(own(), christmas()...), of: []metav1.Object{newAt("team", "once", exempt)}},
		"of an exempt CronAt":                 {freezes: own(), of: []metav1.Object{newAt("team", "nightly-1", nil), newCronAt("team", "nightly", exempt)}},
		"not exempt by another value":         {freezes: own(), of: []metav1.Object{newAt("team", "once", map[string]string{v1alpha1.LabelIgnoreFreezes: "false"})}, want: "own"},
	} {
		t.Run(name, func(t *testing.T) {
			var freezes []*Freeze
			for _, object := range tc.freezes {
				f, err := New(object)
				if err != nil {
					t.Fatal(err)
				}
				freezes = append(freezes, f)
			}
			if tc.of == nil {
				tc.of = []metav1.Object{newAt("team", "once", nil)}
			}
			subject := NewSubject(tc.of[0], tc.of[1:]...)
			set := NewSet(controller, freezes, map[string]labels.Set{"team": {"stage": "production"}, "stage": {"stage": "test"}})
			now := parseTime(t, "2026-12-24T00:00:00Z")
			for range 2 { // The second answer is one that is known.
				got := ""
				if hold := set.Holding(subject, now); hold != nil {
					got = hold.Freeze
				}
				if got != tc.want {
					t.Errorf("got %q, want %q", got, tc.want)
				}
			}
			if hold := set.Holding(subject, now.AddDate(0, 1, 0)); hold != nil {
				t.Errorf("a month later: got %v", hold)
			}
		})
	}
}

func TestNoSet(t *testing.T) {
	var set *Set
	if hold := set.Holding(NewSubject(newAt("team", "once", nil)), time.Now()); hold != nil || !set.IsEmpty() || !NewSet("", nil, nil).IsEmpty() {
		t.Errorf("got %v", hold)
	}
}

func TestString(t *testing.T) {
	hold := &Hold{Freeze: "christmas", Until: parseTime(t, "2027-01-02T06:00:00+01:00")}
	if got, want := hold.String(), "Freeze christmas holds until 2027-01-02T06:00:00+01:00."; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	hold.Reason = "Change freeze, ask #ops"
	if got, want := hold.String(), "Freeze christmas holds until 2027-01-02T06:00:00+01:00: Change freeze, ask #ops"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestKeep checks that of very many labels our own and the first are kept.
func TestKeep(t *testing.T) {
	all := map[string]string{v1alpha1.LabelIgnoreFreezes: "true", "zone": "a"}
	for i := range 40 {
		all[fmt.Sprintf("a%02d", i)] = "b"
	}
	kept := Keep(all)
	if _, ok := kept["zone"]; ok || len(kept) != maxLabels || kept[v1alpha1.LabelIgnoreFreezes] != "true" || kept["a30"] != "b" {
		t.Errorf("got %d: %v", len(kept), kept)
	}
	if again := Keep(kept); !maps.Equal(again, kept) {
		t.Errorf("got %v", again)
	}
}
