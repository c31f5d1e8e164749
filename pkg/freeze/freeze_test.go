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
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

func newFreeze(namespace, name, timeZone string, windows ...v1alpha1.FreezeWindow) *v1alpha1.Freeze {
	return &v1alpha1.Freeze{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1alpha1.FreezeSpec{TimeZone: ptr.To(timeZone), Windows: windows},
	}
}

func from(from, until v1alpha1.FreezeTime) v1alpha1.FreezeWindow {
	return v1alpha1.FreezeWindow{From: from, Until: until}
}

func each(schedule string, duration time.Duration) v1alpha1.FreezeWindow {
	return v1alpha1.FreezeWindow{Schedule: schedule, DurationSeconds: int32(duration / time.Second)}
}

func parseTime(t *testing.T, text string) time.Time {
	t.Helper()
	instant, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return instant
}

func TestHeldUntil(t *testing.T) {
	const weekend = 60 * time.Hour
	for name, tc := range map[string]struct {
		timeZone string // default: Europe/Berlin
		windows  []v1alpha1.FreezeWindow
		at       string
		want     string // "" if it does not hold
	}{
		"the first instant":                {windows: []v1alpha1.FreezeWindow{from("2026-12-23T16:00:00Z", "2027-01-02T06:00:00Z")}, at: "2026-12-23T16:00:00Z", want: "2027-01-02T07:00:00+01:00"},
		"the end":                          {windows: []v1alpha1.FreezeWindow{from("2026-12-23T16:00:00Z", "2027-01-02T06:00:00Z")}, at: "2027-01-02T06:00:00Z"},
		"what the clocks show":             {windows: []v1alpha1.FreezeWindow{from("2026-12-23T16:00:00", "2027-01-02T06:00:00")}, at: "2026-12-23T15:00:00Z", want: "2027-01-02T06:00:00+01:00"},
		"what the clocks show in New York": {timeZone: "America/New_York", windows: []v1alpha1.FreezeWindow{from("2026-12-23T16:00:00", "2027-01-02T06:00:00")}, at: "2027-01-02T10:59:59Z", want: "2027-01-02T06:00:00-05:00"},
		// The clocks are set back from 03:00 to 02:00 on 25 October, at 01:00 UTC.
		"a repeated beginning is the first": {windows: []v1alpha1.FreezeWindow{from("2026-10-25T02:30:00", "2026-10-25T12:00:00")}, at: "2026-10-25T00:30:00Z", want: "2026-10-25T12:00:00+01:00"},
		"a repeated end is the second":      {windows: []v1alpha1.FreezeWindow{from("2026-10-24T12:00:00", "2026-10-25T02:30:00")}, at: "2026-10-25T01:29:59Z", want: "2026-10-25T02:30:00+01:00"},
		// The clocks are set forward from 02:00 to 03:00 on 29 March, at 01:00 UTC.
		"a skipped beginning":                       {windows: []v1alpha1.FreezeWindow{from("2026-03-29T02:30:00", "2026-03-29T12:00:00")}, at: "2026-03-29T01:00:00Z", want: "2026-03-29T12:00:00+02:00"},
		"before a skipped beginning":                {windows: []v1alpha1.FreezeWindow{from("2026-03-29T02:30:00", "2026-03-29T12:00:00")}, at: "2026-03-29T00:59:59Z"},
		"a skipped end":                             {windows: []v1alpha1.FreezeWindow{from("2026-03-28T12:00:00", "2026-03-29T02:30:00")}, at: "2026-03-29T00:59:59Z", want: "2026-03-29T03:00:00+02:00"},
		"a weekend, Friday at 18:00":                {windows: []v1alpha1.FreezeWindow{each("0 18 * * 5", weekend)}, at: "2026-12-04T17:00:00Z", want: "2026-12-07T06:00:00+01:00"},
		"a weekend of an hour more":                 {windows: []v1alpha1.FreezeWindow{each("0 18 * * 5", weekend)}, at: "2026-10-26T03:59:59Z", want: "2026-10-26T05:00:00+01:00"},
		"a window that is longer than its interval": {windows: []v1alpha1.FreezeWindow{each("0 0 1 * *", 40*24*time.Hour)}, at: "2026-01-02T00:00:00Z", want: "2034-05-11T00:00:00+02:00"},
		"overlapping windows":                       {windows: []v1alpha1.FreezeWindow{from("2026-12-23T16:00:00Z", "2026-12-26T00:00:00Z"), from("2026-12-25T00:00:00Z", "2027-01-02T06:00:00Z")}, at: "2026-12-24T00:00:00Z", want: "2027-01-02T07:00:00+01:00"},
		"windows with a second between":             {windows: []v1alpha1.FreezeWindow{from("2026-12-23T16:00:00Z", "2026-12-25T23:59:59Z"), from("2026-12-26T00:00:00Z", "2027-01-02T06:00:00Z")}, at: "2026-12-24T00:00:00Z", want: "2026-12-26T00:59:59+01:00"},
		"a window within another":                   {windows: []v1alpha1.FreezeWindow{from("2026-12-23T16:00:00Z", "2027-01-02T06:00:00Z"), from("2026-12-24T00:00:00Z", "2026-12-25T00:00:00Z")}, at: "2026-12-24T12:00:00Z", want: "2027-01-02T07:00:00+01:00"},
		"a weekend next to a holiday":               {windows: []v1alpha1.FreezeWindow{from("2026-12-07T06:00:00", "2026-12-08T06:00:00"), each("0 18 * * 5", weekend)}, at: "2026-12-05T00:00:00Z", want: "2026-12-08T06:00:00+01:00"},
	} {
		t.Run(name, func(t *testing.T) {
			timeZone := tc.timeZone
			if timeZone == "" {
				timeZone = "Europe/Berlin"
			}
			f, err := New(newFreeze("team", "freeze", timeZone, tc.windows...))
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if until := f.heldUntil(parseTime(t, tc.at)); !until.IsZero() {
				got = until.Format(time.RFC3339)
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// TestUnreadable checks what New says of what the CRD refuses, and that the rest still holds.
func TestUnreadable(t *testing.T) {
	christmas := from("2026-12-23T16:00:00Z", "2027-01-02T06:00:00Z")
	for name, tc := range map[string]struct {
		window   v1alpha1.FreezeWindow
		edit     func(*v1alpha1.FreezeSpec)
		want     string
		holdsOff bool
	}{
		"until before from":              {window: from("2026-12-23T16:00:00", "2026-12-23T15:00:00"), want: `spec.windows[1]: until "2026-12-23T15:00:00" must be after from "2026-12-23T16:00:00"`},
		"in the gap of the clocks":       {window: from("2026-03-29T02:10:00", "2026-03-29T02:50:00"), want: "the window never comes"},
		"no from":                        {window: from("", "2026-12-23T15:00:00"), want: `spec.windows[1]: from "" is invalid: write a date and time`},
		"no until":                       {window: from("2026-12-23T15:00:00", ""), want: `spec.windows[1]: until "" is invalid: write a date and time`},
		"a schedule of six fields":       {window: each("0 0 18 * * 5", time.Hour), want: `spec.windows[1]: schedule "0 0 18 * * 5" is invalid: it does not have five fields`},
		"a schedule that never comes":    {window: each("0 0 30 2 *", time.Hour), want: `schedule "0 0 30 2 *" never comes`},
		"a schedule without a beginning": {window: each("@every 90m", time.Hour), want: `schedule "@every 90m" has no beginning`},
		"no duration":                    {window: each("0 18 * * 5", 0), want: "durationSeconds 0 must be positive"},
		"a zone that does not exist": {
			window: christmas, edit: func(spec *v1alpha1.FreezeSpec) { spec.TimeZone = ptr.To("Mars/Olympus") },
			want: `spec.timeZone "Mars/Olympus" is unknown: write a name from the IANA time zone database`, holdsOff: true,
		},
		"a selector with an unknown operator": {
			window: christmas, edit: func(spec *v1alpha1.FreezeSpec) {
				spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Is"}}}
			},
			want: "spec.selector: ", holdsOff: true,
		},
		"a namespaceSelector with an unknown operator": {
			window: christmas, edit: func(spec *v1alpha1.FreezeSpec) {
				spec.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Is"}}}
			},
			want: "spec.namespaceSelector: ", holdsOff: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			object := newFreeze("team", "freeze", "Europe/Berlin", christmas, tc.window)
			if tc.edit != nil {
				tc.edit(&object.Spec)
			}
			f, err := New(object)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
			hold := NewSet("", []*Freeze{f}, nil).Holding(NewSubject(newAt("team", "a", nil)), parseTime(t, "2026-12-24T00:00:00Z"))
			if (hold == nil) != tc.holdsOff {
				t.Errorf("got %v", hold)
			}
		})
	}
}

// TestRemembered walks through some months in steps of half an hour: the last answer, which a Freeze remembers, is
// right as long as it says.
func TestRemembered(t *testing.T) {
	f, err := New(newFreeze("team", "freeze", "Europe/Berlin",
		each("0 18 * * 5", 60*time.Hour), each("30 2 * * *", 2*time.Hour), from("2026-12-23T16:00:00", "2027-01-02T06:00:00"), from("2026-10-03T00:00:00", "2026-10-07T00:00:00")))
	if err != nil {
		t.Fatal(err)
	}
	start, changes, held := parseTime(t, "2026-09-23T12:00:00Z"), 0, false
	for at := start; at.Before(start.AddDate(0, 4, 0)); at = at.Add(30 * time.Minute) {
		holds := slices.ContainsFunc(f.windows, func(w window) bool { return !w.end(at).IsZero() })
		if got := f.heldUntil(at); got.IsZero() == holds || holds && !got.After(at) {
			t.Errorf("%s: holds until %s", at, got)
		}
		if holds != held {
			changes, held = changes+1, holds
		}
	}
	if changes < 100 {
		t.Errorf("it begins or ends only %d times", changes)
	}
}

// TestManyWindows checks that 128 windows do not cost more than one, once they are known.
func TestManyWindows(t *testing.T) {
	var windows []v1alpha1.FreezeWindow
	for i := range 128 {
		day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).AddDate(0, 0, 2*i)
		windows = append(windows, from(v1alpha1.FreezeTime(day.Format(time.RFC3339)), v1alpha1.FreezeTime(day.AddDate(0, 0, 1).Format(time.RFC3339))))
	}
	f, err := New(newFreeze("team", "freeze", "UTC", windows...))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 256 {
		day := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC).AddDate(0, 0, i)
		if got := !f.heldUntil(day).IsZero(); got != (i%2 == 0) {
			t.Errorf("%s: holds is %v", day, got)
		}
		if known := f.latest.Load(); !known.contains(day.Add(11 * time.Hour)) {
			t.Errorf("%s: the answer is forgotten after %s", day, known.until)
		}
	}
}
