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

package events

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	cnatscheme "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/scheme"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

func TestMain(m *testing.M) {
	RegisterMetrics()
	os.Exit(m.Run())
}

// world is a recorder and an API server.
type world struct {
	*Recorder
	client kubernetes.Interface
	logger klog.Logger
	begin  time.Time
	before map[string]float64

	lock   sync.Mutex
	idleAt time.Time // the controllers are busy until then
	// answer returns how long a request with this message takes, and its error, if it fails.
	answer func(message string) (time.Duration, error)
	// log has the time, the method and the message of each request.
	log []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{begin: time.Now(), logger: ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))}
	w.before = droppedFor(t)
	server := fakeserver.New(clock.RealClock{})
	var err error
	w.client, err = kubernetes.NewForConfig(fakeserver.Config(harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
		return w.roundTrip(t, server, request)
	})))
	if err != nil {
		t.Fatal(err)
	}
	w.Recorder = NewRecorder(klog.NewContext(t.Context(), w.logger), cnatscheme.Scheme, "cnat-controller", clock.RealClock{})
	return w
}

func (w *world) roundTrip(t *testing.T, server http.RoundTripper, request *http.Request) (*http.Response, error) {
	t.Helper()
	if request.Method == http.MethodGet {
		return server.RoundTrip(request)
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		t.Error(err)
	}
	request.Body = io.NopCloser(bytes.NewReader(body))
	var event struct{ Message string }
	if err := json.Unmarshal(body, &event); err != nil {
		t.Error(err)
	}
	w.lock.Lock()
	w.log = append(w.log, fmt.Sprintf("%v %s %s", time.Since(w.begin).Round(time.Second), request.Method, event.Message))
	w.lock.Unlock()
	if w.answer == nil {
		return server.RoundTrip(request)
	}
	takes, failure := w.answer(event.Message)
	select {
	case <-time.After(takes):
	case <-request.Context().Done():
		return nil, request.Context().Err()
	}
	var status apierrors.APIStatus
	switch {
	case failure == nil:
		return server.RoundTrip(request)
	case !errors.As(failure, &status):
		return nil, failure
	}
	answer := status.Status()
	answer.Kind, answer.APIVersion = "Status", "v1"
	content, err := json.Marshal(&answer)
	return &http.Response{
		StatusCode: int(answer.Code), Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(content)), Request: request,
	}, err
}

func (w *world) start() {
	w.Start(w.client.CoreV1(), func() bool {
		w.lock.Lock()
		defer w.lock.Unlock()
		return time.Now().Before(w.idleAt)
	})
}

// busyUntil makes the controllers busy until the given time.
func (w *world) busyUntil(idleAt time.Time) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.idleAt = idleAt
}

// record records an event. Events of an object need different times.
func (w *world) record(name, eventType, message string) {
	w.Event(at(name), eventType, "Reason", message)
	time.Sleep(time.Nanosecond)
}

// stored returns the messages of the events in the API server, and how often each one
// happened.
func (w *world) stored(t *testing.T) map[string]int32 {
	t.Helper()
	list, err := w.client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int32{}
	for _, event := range list.Items {
		counts[event.Message] += event.Count
	}
	return counts
}

// requests returns the requests to the API server, in order.
func (w *world) requests() []string {
	synctest.Wait()
	w.lock.Lock()
	defer w.lock.Unlock()
	return slices.Clone(w.log)
}

// logged returns how often the log has a text.
func (w *world) logged(text string) int {
	return strings.Count(w.logger.GetSink().(ktesting.Underlier).GetBuffer().String(), text)
}

// dropped returns the numbers of dropped events by reason.
func droppedFor(t *testing.T) map[string]float64 {
	t.Helper()
	counts := map[string]float64{}
	for _, reason := range []string{full, filtered, refused, failed, shutdown} {
		count, err := testutil.GetCounterMetricValue(droppedEvents.WithLabelValues(reason))
		if err != nil {
			t.Fatal(err)
		}
		counts[reason] = count
	}
	return counts
}

// wantDropped checks how many events were dropped by reason.
func (w *world) wantDropped(t *testing.T, want map[string]float64) {
	t.Helper()
	got := droppedFor(t)
	for reason := range got {
		got[reason] -= w.before[reason]
	}
	maps.DeleteFunc(got, func(_ string, count float64) bool { return count == 0 })
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("dropped events (-want +got):\n%s", diff)
	}
}

func wantWaiting(t *testing.T, want float64) {
	t.Helper()
	if got, err := testutil.GetGaugeMetricValue(waitingEvents); err != nil || got != want {
		t.Errorf("%v events wait, want %v: %v", got, want, err)
	}
}

func at(name string) *v1alpha1.At {
	return &v1alpha1.At{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "uid-1", ResourceVersion: "7"}}
}

// TestEvent compares an event with what is expected in the API server.
func TestEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		w.Eventf(at("sale"), corev1.EventTypeNormal, "Completed", "Exit code %d", 0)
		w.AnnotatedEventf(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "n1"}, map[string]string{"key": "value"}, corev1.EventTypeWarning, "NodeGone", "100 %s", "%")
		w.Event(at("odd"), "Odd", "Odd", "It has no valid type.")
		w.Event(&apiruntime.Unknown{}, corev1.EventTypeNormal, "Odd", "It has no valid object.")
		w.Shutdown()
		list, err := w.client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		now := metav1.NewTime(w.begin.UTC())
		want := []corev1.Event{{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Annotations: map[string]string{"key": "value"}},
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "n1"},
			Reason:         "NodeGone", Message: "100 %", Type: corev1.EventTypeWarning,
		}, {
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop"},
			InvolvedObject: corev1.ObjectReference{
				APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: v1alpha1.AtKind, Namespace: "shop", Name: "sale", UID: "uid-1", ResourceVersion: "7",
			},
			Reason: "Completed", Message: "Exit code 0", Type: corev1.EventTypeNormal,
		}}
		for i := range want {
			want[i].Source = corev1.EventSource{Component: "cnat-controller"}
			want[i].ReportingController = "cnat-controller"
			want[i].Count = 1
			want[i].FirstTimestamp, want[i].LastTimestamp = now, now
		}
		ignoreMeta := cmpopts.IgnoreFields(corev1.Event{}, "TypeMeta")
		ignore := cmpopts.IgnoreFields(metav1.ObjectMeta{}, "Name", "UID", "ResourceVersion", "CreationTimestamp", "Generation")
		if diff := cmp.Diff(want, list.Items, ignore, ignoreMeta); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		if got := w.logged("Cannot record an event"); got != 2 {
			t.Errorf("%d events with mistakes were logged, want 2", got)
		}
	})
}

// TestBusy records an event every ten seconds while the controllers are busy for some
// time.
func TestBusy(t *testing.T) {
	for name, tc := range map[string]struct {
		busy time.Duration
		want []string
	}{
		"idle":        {0, []string{"0s POST 0", "10s POST 1", "20s POST 2", "30s POST 3", "40s POST 4"}},
		"for a while": {14 * time.Second, []string{"15s POST 0", "15s POST 1", "20s POST 2", "30s POST 3", "40s POST 4"}},
		"for long":    {time.Hour, []string{"30s POST 0", "40s POST 1", "50s POST 2", "1m0s POST 3", "1m10s POST 4"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.busyUntil(w.begin.Add(tc.busy))
				w.start()
				for i := range tc.want {
					w.record(fmt.Sprint("at-", i), corev1.EventTypeNormal, fmt.Sprint(i))
					time.Sleep(10 * time.Second)
				}
				time.Sleep(time.Minute)
				got := w.requests()
				slices.SortFunc(got, func(a, b string) int { return strings.Compare(a[len(a)-1:], b[len(b)-1:]) }) // Some are concurrent.
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("requests (-want +got):\n%s", diff)
				}
				w.Shutdown()
				w.wantDropped(t, nil)
			})
		})
	}
}

// TestBurst records the events of 2,000 runs within half a minute of work. Each request
// takes 50 ms. All arrive within a minute, and none while there is work.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const number = 2_000
		w := newWorld(t)
		w.answer = func(string) (time.Duration, error) { return 50 * time.Millisecond, nil }
		w.busyUntil(w.begin.Add(maxHold - 2*time.Second))
		w.start()
		for i := range number {
			w.record(fmt.Sprint("at-", i), corev1.EventTypeNormal, fmt.Sprint("Created Pod ", i))
			w.record(fmt.Sprint("at-", i), corev1.EventTypeNormal, fmt.Sprint("Exit code 0 of ", i))
			time.Sleep(w.idleAt.Sub(w.begin) / number)
		}
		if got := w.requests(); len(got) > 0 {
			t.Errorf("%d events were written while runs were due, want none", len(got))
		}
		wantWaiting(t, 2*number)
		time.Sleep(time.Until(w.begin.Add(time.Minute)))
		if got := len(w.stored(t)); got != 2*number {
			t.Errorf("%d events arrived within a minute, want %d", got, 2*number)
		}
		wantWaiting(t, 0)
		w.Shutdown()
		w.wantDropped(t, nil)
	})
}

// TestSlowTenants records very many events in namespaces whose webhooks hang: that of another
// namespace is written at once.
func TestSlowTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.answer = func(message string) (time.Duration, error) {
			if message == "slow" {
				return 10 * time.Second, apierrors.NewInternalError(errors.New("failed calling webhook"))
			}
			return 0, nil
		}
		w.start()
		for i := range 500 {
			slow := at(fmt.Sprint("slow-", i))
			slow.Namespace = fmt.Sprint("slow-", i%5)
			w.Event(slow, corev1.EventTypeWarning, "Reason", "slow")
		}
		time.Sleep(5 * time.Second)
		w.record("other", corev1.EventTypeWarning, "other")
		time.Sleep(time.Second)
		if got := w.requests(); got[len(got)-1] != "5s POST other" {
			t.Errorf("the last request is %s, want that of the other namespace within a second", got[len(got)-1])
		}
		w.Shutdown()
	})
}

// TestFull records more events than fit.
func TestFull(t *testing.T) {
	for name, tc := range map[string]struct {
		record  string // N: Normal, W: Warning
		want    string // the numbers of those that are left, in the order of writing
		dropped float64
	}{
		"enough room":                      {"NWN", "0 1 2", 0},
		"the oldest Normal goes":           {"NWNN", "1 2 3", 1},
		"a Warning displaces Normal":       {"NNNWW", "2 3 4", 2},
		"Normal does not displace Warning": {"WWWN", "0 1 2", 1},
		"then the oldest Warning goes":     {"NWWWWW", "3 4 5", 3},
	} {
		t.Run(name, func(t *testing.T) {
			before := droppedFor(t)[full]
			b := newBuffer(3*entrySize + 3)
			now := time.Now()
			for i, class := range tc.record {
				event := &corev1.Event{Message: fmt.Sprint(i), Type: corev1.EventTypeNormal}
				if class == 'W' {
					event.Type = corev1.EventTypeWarning
				}
				b.add(&entry{event: event, recorded: now.Add(time.Duration(i))})
			}
			if got := droppedFor(t)[full] - before; got != tc.dropped {
				t.Errorf("%v were dropped, want %v", got, tc.dropped)
			}
			wantWaiting(t, 3)
			var got []string
			all := func(string) bool { return true }
			for e := b.take(now.Add(time.Hour), all); e != nil; e = b.take(now.Add(time.Hour), all) {
				got = append(got, e.event.Message)
			}
			if got := strings.Join(got, " "); got != tc.want {
				t.Errorf("left are %s, want %s", got, tc.want)
			}
			if b.size != 0 || b.len() != 0 {
				t.Errorf("the empty buffer has size %d, length %d", b.size, b.len())
			}
		})
	}
}

// TestRefused lets the writing of one event fail. Another one is written all the same.
func TestRefused(t *testing.T) {
	events := corev1.Resource("events")
	terminating := apierrors.NewForbidden(events, "event", fmt.Errorf("namespace shop is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, tc := range map[string]struct {
		err     error
		until   time.Duration // the end of the outage
		tries   int
		last    string // the last one
		dropped map[string]float64
		logged  int
	}{
		"briefly unavailable": {err: apierrors.NewServiceUnavailable("wait"), until: 5 * time.Second, tries: 4, last: "7s"},
		"too many requests":   {err: apierrors.NewTooManyRequestsError("wait"), until: time.Second, tries: 2, last: "1s"},
		"away for a minute":   {err: syscall.ECONNREFUSED, until: time.Minute, tries: 10, last: "1m5s"},
		"away for an hour": {err: syscall.ECONNREFUSED, until: time.Hour, tries: maxTries, last: "1m25s",
			dropped: map[string]float64{failed: 2}, logged: 2},
		"forbidden": {err: apierrors.NewForbidden(events, "event", fmt.Errorf("no rule")), until: time.Hour, tries: 1, last: "0s",
			dropped: map[string]float64{refused: 2}, logged: 1},
		"namespace terminating": {err: terminating, until: time.Hour, tries: 1, last: "0s",
			dropped: map[string]float64{refused: 2}},
		"namespace gone": {err: apierrors.NewNotFound(corev1.Resource("namespaces"), "shop"), until: time.Hour, tries: 1, last: "0s",
			dropped: map[string]float64{refused: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.answer = func(message string) (time.Duration, error) {
					if message == "good" || time.Since(w.begin) >= tc.until {
						return 0, nil
					}
					return 0, tc.err
				}
				w.start()
				want := map[string]int32{"good": 1}
				for i := range 2 {
					message := fmt.Sprint("bad ", i)
					w.record("at", corev1.EventTypeWarning, message)
					if len(tc.dropped) == 0 {
						want[message] = 1
					}
				}
				w.record("at", corev1.EventTypeWarning, "good")
				synctest.Wait()
				if w.stored(t)["good"] != 1 {
					t.Error("the other event was not written at once")
				}
				time.Sleep(3 * time.Minute)
				if diff := cmp.Diff(want, w.stored(t)); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
				tries := slices.DeleteFunc(w.requests(), func(request string) bool { return !strings.HasSuffix(request, "POST bad 0") })
				if last := tries[len(tries)-1]; len(tries) != tc.tries || !strings.HasPrefix(last, tc.last+" ") {
					t.Errorf("%d tries, the last %s; want %d, %s", len(tries), last, tc.tries, tc.last)
				}
				w.wantDropped(t, tc.dropped)
				if got := w.logged("refuses an event") + w.logged("Cannot write an event"); got != tc.logged {
					t.Errorf("%d failures were logged, want %d", got, tc.logged)
				}
				w.Shutdown()
			})
		})
	}
}

// TestRepeated records events that repeat earlier ones.
func TestRepeated(t *testing.T) {
	const busy, expires = true, true
	for name, tc := range map[string]struct {
		busy     bool // while the events are recorded
		expires  bool // the API server forgets the events before the last one
		messages []string
		gap      time.Duration
		// expectations
		requests string
		stored   map[string]int32
		dropped  map[string]float64
	}{
		"while idle":           {messages: []string{"a", "a", "a"}, requests: "POST a, PATCH a, PATCH a", stored: map[string]int32{"a": 3}},
		"while busy":           {busy: busy, messages: []string{"a", "b", "a", "a"}, requests: "POST a, POST b", stored: map[string]int32{"a": 3, "b": 1}},
		"after it was written": {gap: 20 * time.Second, busy: busy, messages: []string{"a", "b", "a", "a"}, requests: "PATCH a, POST a, POST b", stored: map[string]int32{"a": 3, "b": 1}},
		"has expired":          {expires: expires, messages: []string{"a", "a", "a"}, requests: "POST a, PATCH a, PATCH a, POST a", stored: map[string]int32{"a": 3}},
		"only similar": {messages: strings.Split("abcdefghijk", ""),
			requests: "POST a, POST b, POST c, POST d, POST e, POST f, POST g, POST h, POST i, POST (combined from similar events): j, PATCH (combined from similar events): k",
			stored:   map[string]int32{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1, "g": 1, "h": 1, "i": 1, "(combined from similar events): k": 2}},
		"too often": {busy: busy, messages: slices.Repeat([]string{"a"}, 30), requests: "POST a", stored: map[string]int32{"a": 25},
			dropped: map[string]float64{filtered: 5}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				if tc.busy {
					w.busyUntil(w.begin.Add(time.Hour))
				}
				w.start()
				for i, message := range tc.messages {
					if tc.expires && i == len(tc.messages)-1 {
						for _, name := range w.names(t) {
							if err := w.client.CoreV1().Events("shop").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
								t.Fatal(err)
							}
						}
					}
					w.record("at", corev1.EventTypeWarning, message)
					if tc.gap > 0 {
						time.Sleep(tc.gap)
					}
					synctest.Wait()
				}
				w.busyUntil(time.Now())
				time.Sleep(time.Minute)
				if diff := cmp.Diff(tc.stored, w.stored(t)); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
				var requests []string
				for _, request := range w.requests() {
					if _, request, _ := strings.Cut(request, " "); !strings.HasPrefix(request, "DELETE") {
						requests = append(requests, request)
					}
				}
				if tc.busy {
					slices.Sort(requests) // They are concurrent.
				}
				if diff := cmp.Diff(strings.Split(tc.requests, ", "), requests); diff != "" {
					t.Errorf("requests (-want +got):\n%s", diff)
				}
				w.wantDropped(t, tc.dropped)
				w.Shutdown()
			})
		})
	}
}

func (w *world) names(t *testing.T) []string {
	t.Helper()
	list, err := w.client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, event := range list.Items {
		names = append(names, event.Name)
	}
	return names
}

// TestOvertaken creates an event while a repetition finds that it does not exist yet.
func TestOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		first := true
		w.answer = func(string) (time.Duration, error) {
			if first {
				first = false
				return time.Second, nil
			}
			return 900 * time.Millisecond, nil
		}
		w.start()
		for range 2 {
			w.record("at", corev1.EventTypeWarning, "no")
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		if diff := cmp.Diff(map[string]int32{"no": 2}, w.stored(t)); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		want := []string{"0s POST no", "0s PATCH no", "1s POST no", "2s PATCH no"}
		if diff := cmp.Diff(want, w.requests()); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
		w.Shutdown()
	})
}

// TestShutdown stops the recorder while events wait because the controllers are busy.
func TestShutdown(t *testing.T) {
	const number = 10 * writers
	for name, tc := range map[string]struct {
		idleFor time.Duration // time between the first failures and the end
		takes   time.Duration
		err     error
		// expectations
		took    time.Duration
		stored  int
		dropped map[string]float64
	}{
		"all are written":     {takes: 100 * time.Millisecond, took: time.Second, stored: number},
		"some are written":    {takes: time.Second + time.Millisecond, took: flushTimeout, stored: 4 * writers, dropped: map[string]float64{shutdown: number - 4*writers}},
		"requests hang":       {takes: time.Hour, took: flushTimeout, dropped: map[string]float64{shutdown: number}},
		"the server is away":  {err: syscall.ECONNREFUSED, dropped: map[string]float64{shutdown: number}},
		"during the back-off": {idleFor: 5 * time.Second, err: syscall.ECONNREFUSED, dropped: map[string]float64{shutdown: number}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.answer = func(string) (time.Duration, error) { return tc.takes, tc.err }
				if tc.idleFor == 0 {
					w.busyUntil(w.begin.Add(time.Hour))
				}
				w.start()
				for i := range number {
					w.record(fmt.Sprint("at-", i), corev1.EventTypeNormal, fmt.Sprint(i))
				}
				time.Sleep(tc.idleFor)
				asked := time.Now()
				w.Shutdown()
				if took := time.Since(asked); took != tc.took {
					t.Errorf("it took %v, want %v", took, tc.took)
				}
				if got := len(w.stored(t)); got != tc.stored {
					t.Errorf("%d events were written, want %d", got, tc.stored)
				}
				w.wantDropped(t, tc.dropped)
				wantWaiting(t, 0)
				if dropped := number - tc.stored; dropped > 0 && w.logged(fmt.Sprintf("dropped=%d", dropped)) != 1 {
					t.Errorf("it is not logged that %d events were dropped", dropped)
				}
			})
		})
	}
}

// TestStandby stops a recorder that was not started.
func TestStandby(t *testing.T) {
	w := newWorld(t)
	w.record("at", corev1.EventTypeNormal, "")
	w.Shutdown()
	w.wantDropped(t, map[string]float64{shutdown: 1})
	if got := len(w.log); got != 0 {
		t.Errorf("%d requests, want none", got)
	}
}

// TestSize measures the memory of waiting events.
func TestSize(t *testing.T) {
	const number = 20_000
	r := NewRecorder(context.Background(), cnatscheme.Scheme, "cnat-controller", clock.RealClock{})
	ats := make([]*v1alpha1.At, number)
	for i := range ats {
		ats[i] = at(fmt.Sprintf("at-%06d", i))
	}
	before := heap()
	for _, at := range ats {
		r.Event(at, corev1.EventTypeNormal, "Completed", "The command has ended with exit code 0")
	}
	took := (heap() - before) / number
	estimated := r.buffer.size / r.buffer.len()
	t.Logf("a waiting event takes %d bytes, estimated %d; the %d MiB are enough for %d", took, estimated, maxSize>>20, maxSize/estimated)
	if took > estimated*11/10 || took < estimated*8/10 {
		t.Errorf("a waiting event takes %d bytes, estimated %d", took, estimated)
	}
	runtime.KeepAlive(ats)
	r.Shutdown()
}

func heap() int {
	runtime.GC()
	runtime.GC() // It empties the pools.
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}
