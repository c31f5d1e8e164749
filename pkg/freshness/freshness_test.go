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

package freshness

import (
	"testing"
	"time"
)

func TestAsOf(t *testing.T) {
	start := time.Now()
	after := func(milliseconds int) time.Time { return start.Add(time.Duration(milliseconds) * time.Millisecond) }
	type sent struct {
		resourceVersion string
		at              int
	}
	for name, tc := range map[string]struct {
		writes  []sent
		reached []string // in this order; the last result counts
		now     int
		want    int // -1: unknown
	}{
		"no write":                         {reached: []string{"9"}, want: -1},
		"unknown, as with a feature off":   {writes: []sent{{"5", 0}}, reached: []string{""}, want: -1},
		"not there yet":                    {writes: []sent{{"5", 0}}, reached: []string{"4"}, want: -1},
		"there":                            {writes: []sent{{"5", 0}}, reached: []string{"5"}, want: 0},
		"passed":                           {writes: []sent{{"5", 0}}, reached: []string{"10"}, want: 0},
		"the newest that is there":         {writes: []sent{{"5", 0}, {"7", 20}, {"9", 40}}, reached: []string{"8"}, want: 20},
		"answered in another order":        {writes: []sent{{"7", 20}, {"5", 0}}, reached: []string{"5", "7"}, want: 20},
		"too close to the one before":      {writes: []sent{{"5", 0}, {"6", 9}}, reached: []string{"6"}, want: 0},
		"one after the other":              {writes: []sent{{"5", 0}, {"7", 20}}, reached: []string{"5", "6", "7"}, want: 20},
		"later than it is remembered":      {writes: []sent{{"5", 0}}, reached: []string{"4", "5"}, now: 1000, want: -1},
		"the cache went back":              {writes: []sent{{"5", 0}}, reached: []string{"5", "4"}, want: -1},
		"the cache went back and returned": {writes: []sent{{"5", 0}}, reached: []string{"5", "4", "6"}, want: -1},
	} {
		t.Run(name, func(t *testing.T) {
			reached := "1"
			c := New(func() string { return reached })
			for _, w := range tc.writes {
				c.Wrote(w.resourceVersion, after(w.at))
			}
			var got time.Time
			for _, reached = range tc.reached {
				got = c.AsOf(after(tc.now))
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

func TestWantsWrite(t *testing.T) {
	start := time.Now()
	c := New(func() string { return "" })
	for _, step := range []struct {
		at    time.Duration
		wrote bool
		want  bool
	}{
		{at: 0, want: true},
		{at: period - 1, want: false},
		{at: period, want: true},
		{at: period + 1, want: false},
		{at: 2*period - 1, wrote: true, want: false},
		{at: 3*period - 2, want: false},
		{at: 3*period - 1, want: true},
	} {
		now := start.Add(step.at)
		if step.wrote {
			c.Wrote("5", now)
		}
		if got := c.WantsWrite(now); got != step.want {
			t.Errorf("after %v: %v, want %v", step.at, got, step.want)
		}
	}
}

// TestWrites checks that the memory for writes is bounded.
func TestWrites(t *testing.T) {
	start := time.Now()
	c := New(func() string { return "1" })
	for i := range 100_000 {
		c.Wrote("5", start.Add(time.Duration(i)*time.Millisecond))
	}
	if most := int(memory / spacing); len(c.writes) > most {
		t.Errorf("%d writes are remembered, want at most %d", len(c.writes), most)
	}
}
