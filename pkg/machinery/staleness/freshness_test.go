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

package staleness

import (
	"cmp"
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"
)

func TestAsOf(t *testing.T) {
	start := time.Now()
	after := func(milliseconds int) time.Time { return start.Add(time.Duration(milliseconds) * time.Millisecond) }
	type sent struct {
		resourceVersion string
		at              int
	}
	for name, tc := range map[string]struct {
		before  string // what the cache has reached when the writes are sent; by default "1"
		writes  []sent // in the order of the answers
		reached []string
		now     int
		want    int // -1: unknown
	}{
		"unknown, as with a feature off": {before: "-", writes: []sent{{"5", 0}}, reached: []string{"-"}, want: -1},
		"not there yet":                  {writes: []sent{{"5", 0}}, reached: []string{"4"}, want: -1},
		"there":                          {writes: []sent{{"5", 0}}, reached: []string{"5"}, want: 0},
		"etcd was restored":              {before: "1000", writes: []sent{{"801", 0}}, reached: []string{"1000"}, want: -1},
		"the newest that is there":       {writes: []sent{{"5", 0}, {"7", 20}, {"9", 40}}, reached: []string{"8"}, want: 20},
		"answered in another order":      {writes: []sent{{"7", 20}, {"5", 0}}, reached: []string{"7"}, want: 20},
		"one after the other":            {writes: []sent{{"5", 0}, {"7", 20}}, reached: []string{"5", "6", "7"}, want: 20},
		"later than it is remembered":    {writes: []sent{{"5", 0}}, reached: []string{"4", "5"}, now: 500, want: -1},
		"the cache went back":            {writes: []sent{{"5", 0}}, reached: []string{"5", "4"}, want: -1},
	} {
		t.Run(name, func(t *testing.T) {
			reached := cmp.Or(tc.before, "1")
			tracker := NewTracker(func() string { return reached })
			for _, w := range tc.writes {
				tracker.Answered(tracker.Sending(after(w.at)), w.resourceVersion, after(w.at))
			}
			var got time.Time
			for _, reached = range tc.reached {
				got = tracker.AsOf(after(tc.now))
			}
			var want time.Time
			if tc.want >= 0 {
				want = after(tc.want)
			}
			if !got.Equal(want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

func TestClaim(t *testing.T) {
	start := time.Now()
	for name, tc := range map[string]struct {
		took time.Duration // 0: there is no answer
		next time.Duration // when a write can be claimed again
	}{
		"fast":      {took: 10 * time.Millisecond, next: period},
		"too slow":  {took: time.Second, next: slowPeriod},
		"no answer": {next: slowPeriod},
	} {
		t.Run(name, func(t *testing.T) {
			tracker := NewTracker(func() string { return "1" })
			if !tracker.Claim(start) || tracker.Claim(start) {
				t.Error("want one caller to get the claim")
			}
			write := tracker.Sending(start)
			if tc.took > 0 {
				if tracker.Claim(start.Add(tc.took - 1)) {
					t.Error("another write was claimed before the answer")
				}
				tracker.Answered(write, "", start.Add(tc.took))
			}
			if tracker.Claim(start.Add(tc.next - 1)) {
				t.Errorf("a write was claimed before %v", tc.next)
			}
			if !tracker.Claim(start.Add(tc.next)) {
				t.Errorf("no write could be claimed after %v", tc.next)
			}
		})
	}
}

// TestSend sends a write: what it has written is remembered, and shows how old the cache can
// be if it has changed the object.
func TestSend(t *testing.T) {
	start := time.Unix(1_000_000_000, 0)
	for name, tc := range map[string]struct {
		after     *metav1.ObjectMeta
		err       error
		wantAsOf  time.Time
		wantKnown string // the latest version
	}{
		"changed":         {after: version("a", "3"), wantAsOf: start, wantKnown: "3"},
		"changed nothing": {after: version("a", "2"), wantKnown: "2"},
		"failed":          {after: version("", ""), err: errors.New("connection refused"), wantKnown: "2"},
	} {
		t.Run(name, func(t *testing.T) {
			reached := "1"
			tracker := NewTracker(func() string { return reached })
			before := version("a", "2")
			written := NewWritten(func(string, string) (*metav1.ObjectMeta, error) { return before, nil }, func(object *metav1.ObjectMeta) *metav1.ObjectMeta { return object })
			after, err := Send(written, tracker, testingclock.NewFakePassiveClock(start), before, func() (*metav1.ObjectMeta, error) { return tc.after, tc.err })
			if after != tc.after || !errors.Is(err, tc.err) {
				t.Errorf("got %v, %v", after, err)
			}
			if got := written.Latest(before).ResourceVersion; got != tc.wantKnown {
				t.Errorf("the latest version is %s, want %s", got, tc.wantKnown)
			}
			reached = "3"
			if got := tracker.AsOf(start); !got.Equal(tc.wantAsOf) {
				t.Errorf("the cache is as of %v, want %v", got, tc.wantAsOf)
			}
		})
	}
}

// TestMemory checks that the memory for writes is bounded.
func TestMemory(t *testing.T) {
	start := time.Now()
	tracker := NewTracker(func() string { return "1" })
	for i := range 100_000 {
		now := start.Add(time.Duration(i) * time.Millisecond)
		tracker.Answered(tracker.Sending(now), "5", now)
		tracker.AsOf(now)
	}
	if most := int(FreshFor / time.Millisecond); len(tracker.writes) > most {
		t.Errorf("%d writes are remembered, want at most %d", len(tracker.writes), most)
	}
}
