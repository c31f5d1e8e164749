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

package podevents

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

var now = time.Date(2026, 12, 24, 10, 12, 0, 0, time.UTC)

func newPod(namespace string, uid types.UID) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pod", UID: uid}}
}

func newEvent(name string, uid types.UID, change ...func(*corev1.Event)) *corev1.Event {
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: name},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "pod", UID: uid},
		Type:           corev1.EventTypeWarning, Reason: "FailedMount", Message: name,
		LastTimestamp: metav1.Time{Time: now},
	}
	for _, c := range change {
		c(event)
	}
	return event
}

// TestNewest covers which event is returned, and how it is kept.
func TestNewest(t *testing.T) {
	for name, tc := range map[string]struct {
		events []runtime.Object
		want   *plan.PodEvent
	}{
		"none": {},
		"of another Pod": {
			events: []runtime.Object{newEvent("other", "other")},
		},
		"the newest, by any of its times": {
			events: []runtime.Object{
				newEvent("a", "uid", func(event *corev1.Event) { event.EventTime = metav1.NewMicroTime(now.Add(time.Minute)) }),
				newEvent("b", "uid", func(event *corev1.Event) {
					event.Series = &corev1.EventSeries{LastObservedTime: metav1.NewMicroTime(now.Add(time.Hour))}
				}),
				newEvent("c", "uid"),
			},
			want: &plan.PodEvent{Warning: true, Reason: "FailedMount", Message: "b", Time: now.Add(time.Hour)},
		},
		"no warning": {
			events: []runtime.Object{newEvent("a", "uid", func(event *corev1.Event) { event.Type, event.Reason = corev1.EventTypeNormal, "Pulling" })},
			want:   &plan.PodEvent{Reason: "Pulling", Message: "a", Time: now},
		},
		"long, and with control characters": {
			events: []runtime.Object{newEvent("a", "uid", func(event *corev1.Event) { event.Message = "\x1b[2J" + strings.Repeat("é", 1000) })},
			want:   &plan.PodEvent{Warning: true, Reason: "FailedMount", Message: "[2J" + strings.Repeat("é", (maxMessage-3)/2) + "…", Time: now},
		},
	} {
		t.Run(name, func(t *testing.T) {
			reader := NewReader(kubefake.NewClientset(tc.events...).CoreV1(), clocktesting.NewFakeClock(now))
			got, err := reader.newest(t.Context(), newPod("default", "uid"))
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
				t.Errorf("error %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// TestNewestIsBounded counts the requests, and the events that are read.
func TestNewestIsBounded(t *testing.T) {
	clock := clocktesting.NewFakeClock(now)
	client := kubefake.NewClientset()
	lists, refusal := 0, error(nil)
	client.PrependReactor("list", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
		lists++
		list := &corev1.EventList{ListMeta: metav1.ListMeta{Continue: "more", ResourceVersion: "1"}}
		for i := range 20 {
			list.Items = append(list.Items, *newEvent(fmt.Sprint(lists, "-", i), types.UID(fmt.Sprint(lists, "-", i))))
		}
		return true, list, refusal
	})
	reader := NewReader(client.CoreV1(), clock)
	newest := func(namespace string, uid types.UID) (*plan.PodEvent, error) {
		return reader.newest(t.Context(), newPod(namespace, uid))
	}

	if event, err := newest("default", "1-0"); event == nil || !errors.Is(err, errTooMany) {
		t.Errorf("event %v, error %v, want %v", event, err, errTooMany)
	}
	if pages := maxEvents / 20; lists <= pages || lists > pages+2 { // One shows that there are more, and one is read meanwhile.
		t.Errorf("%d pages were read, want %d", lists, pages+1)
	}
	lists = 0
	clock.Step(sharedTime - 1)
	if event, err := newest("default", "2-0"); event == nil || !errors.Is(err, errTooMany) || lists != 0 {
		t.Errorf("another Pod of the namespace: event %v, error %v, %d lists", event, err, lists)
	}
	if event, err := newest("default", "beyond the limit"); event != nil || !errors.Is(err, errTooMany) {
		t.Errorf("a Pod whose events were not read: event %v, error %v, want %v", event, err, errTooMany)
	}

	refusal = errors.New("forbidden")
	refused := 0
	for i := range 100 {
		if _, err := newest(fmt.Sprint("namespace-", i), "uid"); err == nil {
			t.Error("an error is not returned")
		}
		refused++
	}
	if lists != 5*readsPerSecond {
		t.Errorf("%d lists at once for %d namespaces, want %d", lists, refused, 5*readsPerSecond)
	}
	lists = 0
	if _, _ = newest("namespace-0", "uid"); lists != 0 {
		t.Error("what was refused is read again at once")
	}
	if event := (*Reader)(nil).Newest(t.Context(), newPod("default", "uid")); event == nil || *event != (plan.PodEvent{}) {
		t.Errorf("of a nil Reader: event %v", event)
	}
}

// TestNewestOfPart lets a list end in the middle, because it has expired: what the rest says is unknown.
func TestNewestOfPart(t *testing.T) {
	client := kubefake.NewClientset()
	pages := 0
	client.PrependReactor("list", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		if pages++; pages > 1 {
			return true, nil, apierrors.NewResourceExpired("too old")
		}
		return true, &corev1.EventList{ListMeta: metav1.ListMeta{Continue: "more"}, Items: []corev1.Event{*newEvent("a", "other")}}, nil
	})
	if event, err := NewReader(client.CoreV1(), clocktesting.NewFakeClock(now)).newest(t.Context(), newPod("default", "uid")); event != nil || err == nil {
		t.Errorf("event %v, error %v, want an error", event, err)
	}
}

// TestNewestOneByOne reads the events of a namespace while those of another are being read.
func TestNewestOneByOne(t *testing.T) {
	client := kubefake.NewClientset(newEvent("a", "uid"))
	reading, answer := make(chan struct{}), make(chan struct{})
	client.PrependReactor("list", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetNamespace() == "slow" {
			close(reading)
			<-answer
		}
		return false, nil, nil
	})
	reader := NewReader(client.CoreV1(), clocktesting.NewFakeClock(now))
	var slow sync.WaitGroup
	slow.Go(func() { _, _ = reader.newest(t.Context(), newPod("slow", "uid")) })
	<-reading
	if event, err := reader.newest(t.Context(), newPod("default", "uid")); !errors.Is(err, errBusy) {
		t.Errorf("while others are being read: event %v, error %v, want %v", event, err, errBusy)
	}
	close(answer)
	slow.Wait()
	if event, err := reader.newest(t.Context(), newPod("default", "uid")); event == nil || err != nil {
		t.Errorf("after that: event %v, error %v", event, err)
	}
}
