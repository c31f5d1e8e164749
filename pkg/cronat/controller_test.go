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

package cronat

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	typedv1alpha1 "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/typed/cnat/v1alpha1"
	cnatinformers "programming-kubernetes.info/cnat-controller/pkg/generated/informers/externalversions"
	"programming-kubernetes.info/cnat-controller/pkg/metrics"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/preflight"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

const (
	namespace = "default"
	second    = time.Second
	minute    = time.Minute
	day       = 24 * time.Hour
)

// TestMain registers the metrics once, even if the tests run several times.
func TestMain(m *testing.M) {
	metrics.Register()
	os.Exit(m.Run())
}

// world is an API server, and what changed there since its start, by the wall clock.
type world struct {
	t        *testing.T
	begin    time.Time // a full hour
	wall     *harness.Clock
	server   *fakeserver.Server
	watches  *harness.Watches
	cronAts  typedv1alpha1.CronAtInterface // those of users
	ats      typedv1alpha1.AtInterface
	pods     typedcorev1.PodInterface
	recorder *record.FakeRecorder
	stop     func()

	lock    sync.Mutex
	changes []string
	known   map[string]string // the last status of each CronAt
	breaks  bool              // rehearsals
	round   time.Duration     // of the times of changes
	dryRun  time.Time         // the last one
}

// newWorld returns a world in which the requests of controllers get errors or delays.
func newWorld(t *testing.T, answer func(w *world, request *http.Request) error) *world {
	t.Helper()
	wall := &harness.Clock{}
	w := &world{t: t, begin: time.Now(), wall: wall, server: fakeserver.New(wall), recorder: record.NewFakeRecorder(5000), known: map[string]string{}, round: second}
	w.server.Observe = w.observe
	kube, cnat := harness.NewClients(t, w.server)
	w.cronAts, w.ats, w.pods = cnat.CnatV1alpha1().CronAts(namespace), cnat.CnatV1alpha1().Ats(namespace), kube.CoreV1().Pods(namespace)
	w.watches = harness.NewWatches(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
		query := request.URL.Query()
		if limit := query.Get("limit"); query.Has("labelSelector") && limit != "20" { // Each At may be large.
			t.Errorf("Ats are listed with limit %q", limit)
		}
		if query.Has("dryRun") {
			w.noteDryRun()
		}
		if err := answer(w, request); err != nil {
			return fakeserver.Refuse(request, err)
		}
		return w.server.RoundTrip(request)
	}))
	return w
}

func works(*world, *http.Request) error { return nil }

// start runs a controller until the end of the test, or until it is stopped.
func (w *world) start(preflights bool) {
	t := w.t
	t.Helper()
	// Errors that it logs because of faults are irrelevant.
	ctx, _ := harness.Logged(t, 0)
	kube, cnat := harness.NewClients(t, w.watches)
	factory := cnatinformers.NewSharedInformerFactory(cnat, 0)
	ats, cronAts := factory.Cnat().V1alpha1().Ats(), factory.Cnat().V1alpha1().CronAts()
	if err := ats.Informer().SetTransform(func(obj any) (any, error) { return plan.KeepAt(obj.(*v1alpha1.At)), nil }); err != nil {
		t.Fatal(err)
	}
	var checks *preflight.Preflight
	if preflights {
		checks = preflight.New(preflight.Clients{Cnat: cnat, Kube: kube, QPS: 5, Rehearsals: 10, NamespaceRehearsals: 2}, nil, plan.Defaults{Image: "image"}, w.wall)
	}
	c, err := NewController(ctx, cnat, cronAts, ats, harness.NoFreezes{}, checks.CronAts(cronAts.Lister()), w.recorder, w.wall)
	if err != nil {
		t.Fatal(err)
	}
	if c.queue.Add(cache.NewObjectName(namespace, "backup")); c.queue.Len() > 0 {
		t.Error("a standby has work")
	}
	w.stop = harness.Run(ctx, t, func(ctx context.Context) {
		factory.StartWithContext(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { checks.Run(ctx) })
		c.Run(ctx, 2)
		wg.Wait()
		factory.Shutdown()
	})
}

// note notes a change, after the Warning events before.
func (w *world) note(what string) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.noteEvents()
	w.changes = append(w.changes, fmt.Sprint(w.wall.Since(w.begin).Round(w.round), " ", what))
}

// noteDryRun notes a dry-run, unless it follows another one within minutes.
func (w *world) noteDryRun() {
	w.lock.Lock()
	isFirst := w.wall.Since(w.dryRun) > 2*minute
	w.dryRun = w.wall.Now()
	w.lock.Unlock()
	if isFirst {
		w.note("dry-run")
	}
}

func (w *world) noteEvents() {
	for len(w.recorder.Events) > 0 {
		if words := strings.Fields(<-w.recorder.Events); words[0] == corev1.EventTypeWarning {
			w.changes = append(w.changes, words[1])
		}
	}
}

// observe notes what changes. The nodes answer a rehearsal after half a second.
func (w *world) observe(eventType watch.EventType, resource schema.GroupResource, object *unstructured.Unstructured) {
	name := object.GetName()
	_, number, _ := strings.Cut(name, "-")
	if minutes, err := strconv.ParseInt(number, 10, 64); err == nil {
		name = "of " + time.Unix(60*minutes, 0).Sub(w.begin).String()
	}
	switch {
	case resource.Resource == "cronats":
		w.lock.Lock()
		text := status(w.begin, object.Object["status"])
		changed := text != w.known[name]
		w.known[name] = text
		w.lock.Unlock()
		if changed && name == "backup" {
			w.note(text)
		}
	case eventType == watch.Added:
		w.note("creates " + name)
		if resource.Resource == "pods" {
			time.AfterFunc(500*time.Millisecond, w.rehearse)
		}
	case eventType == watch.Deleted:
		w.note("deletes " + name)
	case resource.Resource == "ats" && len(object.GetFinalizers()) == 0 && object.GetGeneration() == 1 && w.known[name] == "":
		w.known[name] = "released"
		w.note("releases " + name)
	}
}

// status returns what a CronAt reports, without words.
func status(begin time.Time, fields any) string {
	status, _ := fields.(map[string]any)
	text := "next"
	if next, err := time.Parse(time.RFC3339, fmt.Sprint(status["nextScheduleTime"])); err == nil {
		text += " " + next.Sub(begin).String()
	}
	if reason, ok := status["reason"]; ok {
		text += fmt.Sprint(", ", reason)
	}
	if missed, ok := status["missed"].(map[string]any); ok {
		text += fmt.Sprint(", missed ", missed["count"])
	}
	return text
}

// rehearse lets the node of a rehearsal find out that it passes, or that an image is missing.
func (w *world) rehearse() {
	pod, err := w.pods.Get(context.Background(), "backup-rehearsal", metav1.GetOptions{})
	if err != nil {
		w.t.Error(err)
		return
	}
	w.lock.Lock()
	container := corev1.ContainerStatus{Name: pod.Spec.Containers[0].Name}
	if w.breaks {
		container.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"}
	} else {
		container.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: 128, Reason: "StartError", Message: pod.Spec.Containers[0].Command[0] + ": no such file"}
		pod.Status.Phase = corev1.PodFailed
	}
	w.lock.Unlock()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{container}
	if _, err := w.pods.UpdateStatus(context.Background(), pod, metav1.UpdateOptions{}); err != nil {
		w.t.Error(err)
	}
}

func (w *world) setBreaks(breaks bool) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.breaks = breaks
}

// create creates an hourly CronAt.
func (w *world) create(edits ...func(*v1alpha1.CronAt)) {
	w.t.Helper()
	cronAt := &v1alpha1.CronAt{
		ObjectMeta: metav1.ObjectMeta{Name: "backup", Namespace: namespace},
		Spec:       v1alpha1.CronAtSpec{Schedule: "0 * * * *", AtTemplate: v1alpha1.AtTemplateSpec{Spec: v1alpha1.RunSpec{Command: "true"}}},
	}
	for _, edit := range edits {
		edit(cronAt)
	}
	_, cnat := harness.NewClients(w.t, w.server)
	harness.Create(w.t, cnat.CnatV1alpha1().CronAts(cronAt.Namespace), cronAt)
}

func (w *world) edit(edit func(*v1alpha1.CronAt)) {
	w.t.Helper()
	cronAt := harness.Get(w.t, w.cronAts, "backup")
	edit(cronAt)
	harness.Update(w.t, w.cronAts, cronAt)
}

// end lets the runs of all Ats succeed.
func (w *world) end() {
	w.t.Helper()
	for _, at := range harness.List(w.t, w.ats).Items {
		now := metav1.Time{Time: w.wall.Now()}
		at.Status.Phase, at.Status.CompletionTime = v1alpha1.PhaseDone, &now
		at.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue, LastTransitionTime: now}}
		harness.UpdateStatus(w.t, w.ats, &at)
	}
}

func schedule(schedule string) func(*v1alpha1.CronAt) {
	return func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Schedule = schedule }
}

func suspend(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = ptr.To(true) }

func forbid(cronAt *v1alpha1.CronAt) { cronAt.Spec.ConcurrencyPolicy = v1alpha1.ForbidConcurrent }

func rehearse(cronAt *v1alpha1.CronAt) {
	cronAt.Spec.Schedule, cronAt.Spec.AtTemplate.Spec.Rehearse = "0 3 * * *", true
}

func edits(edit func(*v1alpha1.CronAt)) func(*world) { return func(w *world) { w.edit(edit) } }

// withoutWatches is what happens while the controller learns nothing.
func withoutWatches(act func(*world)) func(*world) {
	return func(w *world) { w.watches.Hold(); act(w) }
}

// slowLists lets each list of Ats take five seconds, after the first ones.
func slowLists(w *world, request *http.Request) error {
	if request.Method == http.MethodGet && path.Base(request.URL.Path) == "ats" && !harness.IsWatch(request) && time.Since(w.begin) > minute {
		time.Sleep(5 * second)
	}
	return nil
}

// refusesPods refuses Pods for a quarter of an hour, and again after two hours.
func refusesPods(w *world, request *http.Request) error {
	if since := time.Since(w.begin); harness.Creates(request, "pods") && (since < 15*minute || since > 2*time.Hour) {
		return apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("exceeded quota"))
	}
	return nil
}

// TestController runs the controller with one CronAt from midnight on.
func TestController(t *testing.T) {
	var others []string // more finalizers than are cached
	for i := range 20 {
		others = append(others, fmt.Sprintf("example.com/%d", i))
	}
	for name, tc := range map[string]struct {
		cronAt     func(*v1alpha1.CronAt)
		starts     time.Duration // when the controller starts
		preflights bool
		answer     func(w *world, request *http.Request) error
		acts       map[time.Duration]func(*world)
		round      time.Duration // of the times of changes; by default a second
		lasts      time.Duration
		want       string
	}{
		"it runs, and keeps no history": {
			cronAt: func(cronAt *v1alpha1.CronAt) { cronAt.Spec.SuccessfulAtsHistoryLimit = ptr.To[int32](0) },
			acts:   map[time.Duration]func(*world){time.Hour + minute: (*world).end}, lasts: time.Hour + 10*minute,
			want: "0s next; 0s next 1h0m0s; 1h0m0s creates of 1h0m0s; 1h0m0s next 2h0m0s; 1h0m10s releases of 1h0m0s; 1h1m11s deletes of 1h0m0s",
		},
		"a year without a controller": {starts: 365*day + 10*minute, lasts: 365*day + 11*minute, want: "0s next; 8760h10m0s next, missed 100; MissSchedule; 8760h10m0s creates of 8760h0m0s; 8760h10m0s next 8761h0m0s, missed 100; 8760h10m10s releases of 8760h0m0s"},
		"the clock is stepped, and back": {
			acts: map[time.Duration]func(*world){
				90*minute + 30*second: func(w *world) { w.wall.Set(3 * time.Hour) }, 92 * minute: func(w *world) { w.wall.Set(0) },
			},
			lasts: 5*time.Hour + minute,
			want:  "0s next; 0s next 1h0m0s; 1h0m0s creates of 1h0m0s; 1h0m0s next 2h0m0s; 1h0m10s releases of 1h0m0s; 4h31m0s next 2h0m0s, missed 2; MissSchedule; 4h31m0s creates of 4h0m0s; 4h31m0s next 5h0m0s, missed 2; 4h31m10s releases of 4h0m0s; 5h0m0s creates of 5h0m0s; 5h0m0s next 6h0m0s, missed 2; 5h0m10s releases of 5h0m0s",
		},
		"it is edited, suspended and resumed": {
			acts: map[time.Duration]func(*world){
				65 * minute: edits(schedule("3 * * * *")), 66 * minute: edits(suspend),
				4*time.Hour + 6*minute: edits(func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = nil }),
			},
			lasts: 5*time.Hour + 10*minute,
			want:  "0s next; 0s next 1h0m0s; 1h0m0s creates of 1h0m0s; 1h0m0s next 2h0m0s; 1h0m10s releases of 1h0m0s; 1h5m0s next 2h3m0s; 1h6m0s next, Suspended; 4h6m0s next 5h3m0s; 5h3m0s creates of 5h3m0s; 5h3m0s next 6h3m0s; 5h3m10s releases of 5h3m0s",
		},
		"its status is changed by hand": {
			acts: map[time.Duration]func(*world){minute: func(w *world) {
				cronAt := harness.Get(w.t, w.cronAts, "backup")
				cronAt.Status.Active, cronAt.Status.NextScheduleTime = 5, nil
				harness.UpdateStatus(w.t, w.cronAts, cronAt)
			}},
			lasts: 2 * minute,
			want:  "0s next; 0s next 1h0m0s; 1m0s next; 1m0s next 1h0m0s",
		},
		"it is deleted and created again": {
			acts:  map[time.Duration]func(*world){time.Hour + second: func(w *world) { harness.Delete(w.t, w.cronAts, "backup"); w.create() }},
			lasts: 2*time.Hour + minute,
			want:  "0s next; 0s next 1h0m0s; 1h0m0s creates of 1h0m0s; 1h0m0s next 2h0m0s; 1h0m1s next; 1h0m1s next 2h0m0s; 1h0m10s releases of 1h0m0s; 2h0m0s creates of 2h0m0s; 2h0m0s next 3h0m0s; 2h0m10s releases of 2h0m0s",
		},
		"it is suspended, unseen": {acts: map[time.Duration]func(*world){time.Hour - second: withoutWatches(edits(suspend))}, lasts: time.Hour + 8*second, want: "0s next; 0s next 1h0m0s"},
		"its new At is not seen":  {acts: map[time.Duration]func(*world){time.Hour - second: withoutWatches(func(*world) {})}, lasts: time.Hour + 15*second, want: "0s next; 0s next 1h0m0s; 1h0m0s creates of 1h0m0s; 1h0m0s next 2h0m0s"},
		"its Ats are listed slowly, meanwhile it is suspended": {
			cronAt: forbid, answer: slowLists,
			acts: map[time.Duration]func(*world){time.Hour - second: withoutWatches(func(*world) {}), time.Hour + 2*second: edits(suspend)}, lasts: time.Hour + minute,
			want: "0s next; 0s next 1h0m0s; 1h0m5s next, Suspended, missed 1; MissSchedule",
		},
		"others have very many finalizers": {
			acts: map[time.Duration]func(*world){
				time.Hour + second: func(w *world) {
					for _, at := range harness.List(w.t, w.ats).Items {
						at.Finalizers = append(slices.Clone(others), at.Finalizers...)
						harness.Update(w.t, w.ats, &at)
					}
				},
				time.Hour + minute: func(w *world) {
					if ats := harness.List(w.t, w.ats).Items; len(ats) != 1 || !slices.Equal(ats[0].Finalizers, others) {
						w.t.Errorf("Ats %+v, want one with the finalizers of others", ats)
					}
				},
			},
			lasts: time.Hour + 2*minute,
			want:  "0s next; 0s next 1h0m0s; 1h0m0s creates of 1h0m0s; 1h0m0s next 2h0m0s",
		},
		"preflights": {
			cronAt: schedule("0 3,15 * * *"), preflights: true,
			acts:  map[time.Duration]func(*world){4 * time.Hour: edits(func(cronAt *v1alpha1.CronAt) { cronAt.Spec.AtTemplate.Spec.Command = "false" })},
			lasts: 16 * time.Hour,
			want:  "0s next; 0s next 3h0m0s; 1s dry-run; 2h49m18s dry-run; 3h0m0s creates of 3h0m0s; 3h0m0s next 15h0m0s; 3h0m10s releases of 3h0m0s; 4h0m1s dry-run; 14h49m18s dry-run; 15h0m0s creates of 15h0m0s; 15h0m0s next 27h0m0s; 15h0m10s releases of 15h0m0s",
		},
		"preflights, refused": {cronAt: schedule("0 3 * * *"), preflights: true, answer: refusesPods, round: 2 * minute, lasts: 3*time.Hour + minute, want: "0s next; 0s next 3h0m0s; 0s dry-run; 0s next 3h0m0s, PodRefused; PodRefused; 16m0s next 3h0m0s; 2h50m0s dry-run; 2h50m0s next 3h0m0s, PodRefused; PodRefused; 3h0m0s creates of 3h0m0s; 3h0m0s next 27h0m0s, PodRefused; 3h0m0s releases of 3h0m0s"},
		"rehearsals": {
			cronAt: rehearse, preflights: true,
			acts: map[time.Duration]func(*world){
				10 * minute: edits(func(cronAt *v1alpha1.CronAt) {
					cronAt.Annotations = map[string]string{v1alpha1.AnnotationRehearsalRequestedAt: time.Now().UTC().Format(time.RFC3339)}
				}),
				20 * minute: func(w *world) { w.setBreaks(true) }, 2*time.Hour + 55*minute: func(w *world) { w.setBreaks(false) },
			},
			lasts: 3*time.Hour + 30*minute,
			want:  "0s next; 0s next 3h0m0s; 1s dry-run; 1s creates backup-rehearsal; 2s deletes backup-rehearsal; 10m1s dry-run; 10m1s creates backup-rehearsal; 10m2s deletes backup-rehearsal; 2h49m18s dry-run; 2h49m18s creates backup-rehearsal; 2h49m38s deletes backup-rehearsal; 2h49m38s next 3h0m0s, ImagePullFailed; ImagePullFailed; 2h59m37s dry-run; 3h0m0s creates of 3h0m0s; 3h0m0s next 27h0m0s, ImagePullFailed; 3h0m1s creates backup-rehearsal; 3h0m2s deletes backup-rehearsal; 3h0m2s next 27h0m0s; 3h0m10s releases of 3h0m0s",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if tc.answer == nil {
					tc.answer = works
				}
				w := newWorld(t, tc.answer)
				w.round = max(w.round, tc.round)
				w.create(func(cronAt *v1alpha1.CronAt) {
					if tc.cronAt != nil {
						tc.cronAt(cronAt)
					}
				})
				time.Sleep(tc.starts)
				w.start(tc.preflights)
				for _, after := range slices.Sorted(maps.Keys(tc.acts)) {
					time.Sleep(time.Until(w.begin.Add(after)))
					tc.acts[after](w)
				}
				time.Sleep(time.Until(w.begin.Add(tc.lasts)))
				w.lock.Lock()
				defer w.lock.Unlock()
				w.noteEvents()
				if got := strings.Join(w.changes, "; "); got != tc.want {
					t.Errorf("\n got %s\nwant %s", got, tc.want)
				}
			})
		})
	}
}

// TestMany lets very many CronAts become due at one instant. Their Ats are created before most of
// their statuses are written. While the watch reports the writes of the controller, few CronAts are
// read. If the watch begins to lag, the controller reads them again after half a second.
func TestMany(t *testing.T) {
	const number = 500
	for name, tc := range map[string]struct {
		lags     bool
		min, max int64
	}{
		"watch is up to date": {min: 1, max: number / 20},
		"watch lags":          {lags: true, min: number / 4, max: number * 3 / 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var reads, recorded, before atomic.Int64 // before: the last At was created
				w := newWorld(t, func(_ *world, request *http.Request) error {
					if !harness.IsWatch(request) {
						time.Sleep(3 * time.Millisecond)
					}
					switch {
					case harness.Creates(request, "ats"):
						before.Store(recorded.Load())
					case request.Method == http.MethodPatch:
						recorded.Add(1)
					case path.Base(path.Dir(request.URL.Path)) == "cronats":
						reads.Add(1)
					}
					return nil
				})
				for i := range number {
					w.create(func(cronAt *v1alpha1.CronAt) { cronAt.Name = fmt.Sprint("cronat-", i) })
				}
				w.start(false)
				due := w.begin.Add(time.Hour)
				time.Sleep(time.Until(due))
				reads.Store(0)
				recorded.Store(0)
				if tc.lags {
					time.Sleep(100 * time.Millisecond)
					w.watches.Hold()
				}
				time.Sleep(5 * second)
				if got := reads.Load(); got < tc.min || got > tc.max {
					t.Errorf("%d CronAts were read, want %d to %d", got, tc.min, tc.max)
				}
				if got := before.Load(); got > number/5 {
					t.Errorf("%d of %d statuses were written before the last At was created", got, number)
				}
				w.watches.Release()
				time.Sleep(minute)
				if got := len(harness.List(t, w.ats).Items); got != number {
					t.Errorf("%d Ats were created, want %d", got, number)
				}
				for _, cronAt := range harness.List(t, w.cronAts).Items {
					if last := cronAt.Status.LastScheduleTime; !last.Equal(&metav1.Time{Time: due}) || cronAt.Status.Missed != nil {
						t.Errorf("CronAt %s: last %v, missed %+v; want %s, and none", cronAt.Name, last, cronAt.Status.Missed, due)
					}
				}
			})
		})
	}
}

// TestSlowTenants has very many CronAts in namespaces whose webhooks hang. That of another
// namespace is not delayed.
func TestSlowTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(_ *world, request *http.Request) error {
			if request.Method == http.MethodPost && strings.Contains(request.URL.Path, "/slow-") {
				time.Sleep(10 * second)
			}
			return nil
		})
		for i := range 300 {
			w.create(func(cronAt *v1alpha1.CronAt) {
				cronAt.Namespace, cronAt.Name = fmt.Sprint("slow-", i%3), fmt.Sprint("slow-", i)
			})
		}
		w.create()
		w.start(false)
		time.Sleep(time.Hour + 2*second) // Each of the two workers here may be lent twice, for half a second each.
		if got := len(harness.List(t, w.ats).Items); got != 1 {
			t.Errorf("%d Ats were created, want 1", got)
		}
		time.Sleep(time.Hour)
	})
}

// TestBlockedAllow lets the Pods of a CronAt be refused for two days, with concurrencyPolicy
// Allow and without a starting deadline. When the cause is gone, one At starts.
func TestBlockedAllow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, works)
		w.create(schedule("*/10 * * * *"))
		w.start(false)
		var left []string
		for range 2 * 24 * 6 {
			time.Sleep(10*minute + second)
			left = nil
			for _, at := range harness.List(t, w.ats).Items {
				now := metav1.Time{Time: w.wall.Now()}
				due, err := plan.Instant(&at.Spec)
				switch {
				case err != nil:
					t.Fatal(err)
				case at.Status.Phase == v1alpha1.PhaseDone:
					continue
				case plan.StartingTimeLeft(due, at.Spec.StartingDeadlineSeconds, now.Time) <= 0:
					at.Status.Phase, at.Status.CompletionTime = v1alpha1.PhaseDone, &now
					at.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionFailed, Status: metav1.ConditionTrue, LastTransitionTime: now, Reason: v1alpha1.ReasonStartingDeadlineExceeded}}
				default:
					left = append(left, at.Name)
					at.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionTrue, LastTransitionTime: now, Reason: v1alpha1.ReasonPodRefused, Message: "exceeded quota"}}
				}
				harness.UpdateStatus(t, w.ats, &at)
			}
		}
		if len(left) != 1 {
			t.Errorf("%d Ats can still start, want 1: %v", len(left), left)
		}
	})
}

// TestOverdue looks each minute for CronAts whose next time is past. From one hour on until two,
// something does not work.
func TestOverdue(t *testing.T) {
	faulty := func(isFaulty func(*http.Request) bool, err error) func(*world, *http.Request) error {
		return func(w *world, request *http.Request) error {
			if since := time.Since(w.begin); since < time.Hour || since >= 2*time.Hour || !isFaulty(request) {
				return nil
			}
			return err
		}
	}
	creates := func(request *http.Request) bool { return harness.Creates(request, "ats") }
	writesStatus := func(request *http.Request) bool { return path.Base(request.URL.Path) == "status" }
	quota, lost := apierrors.NewForbidden(v1alpha1.Resource("ats"), "backup", errors.New("exceeded quota")), errors.New("connection refused")
	for name, tc := range map[string]struct {
		edit   func(*v1alpha1.CronAt)
		answer func(*world, *http.Request) error
		want   bool
	}{
		"steady":                       {edit: schedule("*/10 * * * *"), answer: works},
		"waits for an earlier At":      {edit: forbid, answer: works},
		"a short deadline":             {edit: func(cronAt *v1alpha1.CronAt) { cronAt.Spec.StartingDeadlineSeconds = ptr.To[int64](1) }, answer: works},
		"spread":                       {edit: func(cronAt *v1alpha1.CronAt) { cronAt.Spec.SpreadSeconds = ptr.To[int32](3600) }, answer: works},
		"suspended":                    {edit: suspend, answer: works},
		"never":                        {edit: schedule("0 0 30 2 *"), answer: works},
		"the At is refused":            {edit: schedule("*/10 * * * *"), answer: faulty(creates, quota)},
		"the At cannot be created":     {edit: schedule("*/10 * * * *"), answer: faulty(creates, lost), want: true},
		"the status cannot be written": {edit: schedule("*/10 * * * *"), answer: faulty(writesStatus, lost), want: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, tc.answer)
				w.create(tc.edit)
				w.start(false)
				for minutes := range 180 {
					time.Sleep(minute)
					if tc.want && (minutes >= 60 && minutes < 75 || minutes >= 120 && minutes < 125) {
						continue // Due times come every ten minutes, and retries every minute.
					}
					overdue := cronplan.Overdue(harness.Get(t, w.cronAts, "backup"), w.wall.Now())
					if want := tc.want && minutes >= 75 && minutes < 120; (overdue > minute) != want {
						t.Errorf("after %d minutes it is overdue for %s", minutes, overdue)
					}
				}
			})
		})
	}
}

// TestPreflightStart creates very many CronAts of the same Pod: they share a dry-run. A controller
// that starts does not send it again, unless it was refused.
func TestPreflightStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refuses atomic.Bool
		w := newWorld(t, func(_ *world, request *http.Request) error {
			if refuses.Load() && harness.Creates(request, "pods") {
				return apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("exceeded quota"))
			}
			return nil
		})
		for i := range 300 {
			w.create(schedule("0 9 * * *"), func(cronAt *v1alpha1.CronAt) {
				cronAt.Name, cronAt.Spec.Suspend = fmt.Sprint("cronat-", i), ptr.To(i%2 == 0)
			})
		}
		w.start(true)
		time.Sleep(20 * minute) // so that no answer is shared any more
		w.stop()
		w.start(true)
		time.Sleep(20 * minute)
		refuses.Store(true)
		w.create(schedule("0 9 * * *"))
		time.Sleep(3 * second)
		w.stop()
		refuses.Store(false)
		w.start(true)
		time.Sleep(3 * second)
		w.lock.Lock()
		defer w.lock.Unlock()
		want := "1s dry-run; 40m0s next; 40m0s next 9h0m0s; 40m1s dry-run; 40m1s next 9h0m0s, PodRefused; PodRefused; 40m4s next 9h0m0s"
		if got := strings.Join(w.changes, "; "); got != want {
			t.Errorf("\n got %s\nwant %s", got, want)
		}
	})
}
