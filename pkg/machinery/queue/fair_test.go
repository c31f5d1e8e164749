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

package queue

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestQueue(t *testing.T) {
	for name, tc := range map[string]struct{ push, want []string }{
		"empty":                            {nil, nil},
		"one namespace: first come":        {[]string{"a/1", "a/2", "a/3"}, []string{"a/1", "a/2", "a/3"}},
		"the few do not wait for the many": {[]string{"a/1", "a/2", "a/3", "a/4", "b/1", "b/2"}, []string{"a/1", "b/1", "a/2", "b/2", "a/3", "a/4"}},
		"each in turn":                     {[]string{"a/1", "b/1", "b/2", "c/1", "c/2", "a/2"}, []string{"a/1", "b/1", "c/1", "a/2", "b/2", "c/2"}},
	} {
		t.Run(name, func(t *testing.T) {
			q := NewFair()
			for _, item := range tc.push {
				name, err := cache.ParseObjectName(item)
				if err != nil {
					t.Fatal(err)
				}
				q.Push(name)
				q.Touch(name)
			}
			if q.Len() != len(tc.push) {
				t.Errorf("length %d, want %d", q.Len(), len(tc.push))
			}
			var got []string
			for q.Len() > 0 {
				got = append(got, q.Pop().String())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("order (-want +got):\n%s", diff)
			}
			if len(q.items) != 0 {
				t.Errorf("%d namespaces remembered, want none", len(q.items))
			}
		})
	}
}

func TestPrioritized(t *testing.T) {
	for name, tc := range map[string]struct {
		push  string // capital letters are urgent
		waits time.Duration
		want  string
	}{
		"empty":                        {push: "", want: ""},
		"none is urgent":               {push: "abc", want: "abc"},
		"all are urgent":               {push: "ABCDEFGHI", want: "ABCDEFGHI"},
		"urgent ones first":            {push: "aABCDEFGHIb", waits: patience - 1, want: "ABCDEFGHIab"},
		"not before one that waited":   {push: "abABCDEFGHIJKLMNOP", waits: patience, want: "ABCDEFGaHIJKLMNbOP"},
		"in turn, then all the others": {push: "abcABCDEFGH", waits: patience, want: "ABCDEFGaHbc"},
	} {
		t.Run(name, func(t *testing.T) {
			wallClock := clocktesting.NewFakePassiveClock(time.Now())
			q := NewPrioritized(2, func(item cache.ObjectName) int {
				if strings.ToUpper(item.Name) == item.Name {
					return 0
				}
				return 1
			}, wallClock)
			for _, item := range tc.push {
				name := cache.NewObjectName("namespace", string(item))
				q.Push(name)
				q.Touch(name)
			}
			wallClock.SetTime(wallClock.Now().Add(tc.waits))
			if q.Len() != len(tc.push) {
				t.Errorf("length %d, want %d", q.Len(), len(tc.push))
			}
			var got strings.Builder
			for q.Len() > 0 {
				got.WriteString(q.Pop().Name)
			}
			if got.String() != tc.want {
				t.Errorf("got %s, want %s", got.String(), tc.want)
			}
		})
	}
}

// TestPrioritizedTouch makes items urgent while they are in the queue. Each item is returned
// once, however often it is added.
func TestPrioritizedTouch(t *testing.T) {
	named := func(name string) cache.ObjectName { return cache.NewObjectName("namespace", name) }
	var first, second string
	classOf := func(item cache.ObjectName) int {
		switch {
		case strings.Contains(first, item.Name):
			return 0
		case strings.Contains(second, item.Name):
			return 1
		default:
			return 2
		}
	}
	wallClock := clocktesting.NewFakePassiveClock(time.Now())
	q := NewPrioritized(3, classOf, wallClock)
	add := func(names string) {
		for _, name := range names {
			q.Push(named(string(name)))
		}
	}
	touch := func(names string) {
		for _, name := range names {
			q.Touch(named(string(name)))
		}
	}
	want := func(number int, names string) {
		t.Helper()
		var got strings.Builder
		for range number {
			got.WriteString(q.Pop().Name)
		}
		if got.String() != names {
			t.Errorf("got %s, want %s", got.String(), names)
		}
	}
	add("abcdef")
	second = "e"
	touch("eeab")
	first, second = "f", "d"
	touch("ffdd")
	if q.Len() != 6 {
		t.Errorf("length %d, want 6", q.Len())
	}
	want(3, "fed")
	// Those that were returned are added again, not all as urgent as before.
	first, second = "", "f"
	add("def")
	touch("def")
	first = "b"
	touch("bb")
	if q.Len() != 6 {
		t.Errorf("length %d, want 6", q.Len())
	}
	want(6, "bfacde")
	if q.Len() != 0 {
		t.Errorf("length %d, want 0", q.Len())
	}
}

// TestPrioritizedOften adds and returns items in random order, and compares the queue with
// a set.
func TestPrioritizedOften(t *testing.T) {
	const names = "abcdefghij"
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	wallClock := clocktesting.NewFakePassiveClock(time.Now())
	q := NewPrioritized(3, func(cache.ObjectName) int { return random.IntN(3) }, wallClock)
	queued := sets.New[cache.ObjectName]()
	for range 100_000 {
		item := cache.NewObjectName("namespace", string(names[random.IntN(len(names))]))
		switch {
		case random.IntN(3) == 0 && queued.Len() > 0:
			popped := q.Pop()
			if !queued.Has(popped) {
				t.Fatalf("%v is returned twice", popped)
			}
			queued.Delete(popped)
		case queued.Has(item):
			q.Touch(item)
		default:
			q.Push(item)
			queued.Insert(item)
		}
		if q.Len() != queued.Len() {
			t.Fatalf("length %d, want %d", q.Len(), queued.Len())
		}
	}
}

// BenchmarkQueue uses many items in few namespaces.
func BenchmarkQueue(b *testing.B) {
	q := NewFair()
	var names []cache.ObjectName
	for i := range 10000 {
		names = append(names, cache.ObjectName{Namespace: fmt.Sprint("namespace-", i%10), Name: fmt.Sprint("at-", i)})
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, name := range names {
			q.Push(name)
		}
		for q.Len() > 0 {
			q.Pop()
		}
	}
}
