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
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/preflight"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

// preflights is a world with a controller that has preflights.
type preflights struct {
	*world
	start    time.Time
	recorder *record.FakeRecorder

	lock    sync.Mutex
	refuses bool
	dryRuns []time.Duration // since the start
	// breaks makes the node unable to pull images.
	breaks     bool
	rehearsals []time.Duration // since the start
}

// withPreflights calls test with a running controller. restart starts another one instead.
func withPreflights(t *testing.T, test func(w *preflights, restart func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &preflights{world: newWorld(t), start: time.Now(), recorder: record.NewFakeRecorder(2000)}
		kubelet, _ := harness.NewClients(t, w)
		transport := harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
			switch {
			case !harness.Creates(request, "pods"):
				return w.RoundTrip(request)
			case !request.URL.Query().Has("dryRun"):
				time.AfterFunc(500*time.Millisecond, func() { w.rehearse(t, kubelet.CoreV1().Pods(namespace)) })
				return w.RoundTrip(request)
			}
			w.lock.Lock()
			defer w.lock.Unlock()
			w.dryRuns = append(w.dryRuns, time.Since(w.start))
			if w.refuses {
				return fakeserver.Refuse(request, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("exceeded quota")))
			}
			return w.RoundTrip(request)
		})
		kubeClient, cnatClient := harness.NewClients(t, transport)
		start := func() (stop func()) {
			return runWith(t, transport, w.clock, preflight.New(preflight.Clients{Cnat: cnatClient, Kube: kubeClient, QPS: 5, Rehearsals: 10, NamespaceRehearsals: 2}, nil, plan.Defaults{Image: "image"}, w.clock), w.recorder)
		}
		stop := start()
		test(w, func() {
			stop()
			stop = start()
		})
	})
}

// rehearse does with the Pod of a rehearsal what a kubelet does.
func (w *preflights) rehearse(t *testing.T, pods typedcorev1.PodInterface) {
	t.Helper()
	pod := harness.Get(t, pods, "backup-rehearsal")
	w.lock.Lock()
	w.rehearsals = append(w.rehearsals, time.Since(w.start))
	status := corev1.ContainerStatus{Name: pod.Spec.Containers[0].Name}
	if w.breaks {
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"}
	} else {
		status.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: 128, Reason: "StartError", Message: pod.Spec.Containers[0].Command[0] + ": no such file"}
		pod.Status.Phase = corev1.PodFailed
	}
	w.lock.Unlock()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{status}
	if _, err := pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
}

// setBreaks breaks or repairs the node. It returns when the rehearsals since the last call were.
func (w *preflights) setBreaks(breaks bool) []time.Duration {
	w.lock.Lock()
	defer w.lock.Unlock()
	taken := w.rehearsals
	w.breaks, w.rehearsals = breaks, nil
	return taken
}

func (w *preflights) setRefuses(refuses bool) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.refuses = refuses
}

// after returns the CronAt after a while.
func (w *preflights) after(t *testing.T, duration time.Duration) *v1alpha1.CronAt {
	t.Helper()
	wait(duration)
	return w.cronAt(t)
}

// taken returns when the dry-runs since the last call were, since the start.
func (w *preflights) taken() []time.Duration {
	w.lock.Lock()
	defer w.lock.Unlock()
	taken := w.dryRuns
	w.dryRuns = nil
	return taken
}

// wantWarnings checks the reasons of the Warning events since the last call.
func (w *preflights) wantWarnings(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for len(w.recorder.Events) > 0 {
		if words := strings.Fields(<-w.recorder.Events); words[0] == corev1.EventTypeWarning {
			got = append(got, words[1])
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Warning events (-want +got):\n%s", diff)
	}
}

// TestPreflightTimes checks that a CronAt has a preflight when it is created and edited, and
// about ten minutes before each time. Each time runs.
func TestPreflightTimes(t *testing.T) {
	withPreflights(t, func(w *preflights, _ func()) {
		w.create(t, newCronAt("0 3,15 * * *"))
		w.after(t, time.Minute)
		if got := w.taken(); len(got) != 1 || got[0] != time.Second {
			t.Errorf("dry-runs %v, want one a second after the creation", got)
		}
		three := w.start.Truncate(24 * time.Hour).Add(3 * time.Hour)
		w.after(t, time.Until(three.Add(5*time.Minute)))
		w.end(t)
		w.after(t, time.Until(three.Add(12*time.Hour+5*time.Minute)))
		w.end(t)
		w.after(t, time.Second) // so that the controller does not write while it is edited
		got := w.taken()
		if len(got) != 2 {
			t.Fatalf("dry-runs %v, want one before each time", got)
		}
		for i, due := range []time.Time{three, three.Add(12 * time.Hour)} {
			if before := due.Sub(w.start.Add(got[i])); before > 11*time.Minute || before < 9*time.Minute {
				t.Errorf("dry-run %v before the time, want ten minutes", before)
			}
		}
		w.edit(t, func(cronAt *v1alpha1.CronAt) { cronAt.Spec.AtTemplate.Spec.Node = "n1" })
		w.after(t, time.Minute)
		if got := w.taken(); len(got) != 1 {
			t.Errorf("dry-runs %v, want one after the edit", got)
		}
		w.wantCreated(t, time.Second, three, three.Add(12*time.Hour))
	})
}

// TestPreflightRefused makes the API server refuse the Pod for a while.
func TestPreflightRefused(t *testing.T) {
	withPreflights(t, func(w *preflights, _ func()) {
		w.setRefuses(true)
		w.create(t, newCronAt("0 3 * * *"))
		status := w.after(t, 3*time.Second).Status
		if want := "If it were due now: create Pod: "; status.Reason != v1alpha1.ReasonPodRefused || !strings.HasPrefix(status.Message, want) {
			t.Errorf("status %+v, want PodRefused and %q", status, want)
		}
		w.after(t, 10*time.Minute)
		w.wantWarnings(t, v1alpha1.ReasonPodRefused)
		w.setRefuses(false)
		if status := w.after(t, 31*time.Second).Status; status.Reason != "" || len(status.Conditions) > 0 {
			t.Errorf("status %+v half a minute after it is fixed", status)
		}
		w.setRefuses(true)
		three := w.start.Truncate(24 * time.Hour).Add(3 * time.Hour)
		if status := w.after(t, time.Until(three.Add(-9*time.Minute))).Status; status.Reason != v1alpha1.ReasonPodRefused {
			t.Errorf("status %+v before the time, want PodRefused", status)
		}
		w.after(t, time.Until(three.Add(time.Minute)))
		w.wantCreated(t, time.Second, three)
		w.wantWarnings(t, v1alpha1.ReasonPodRefused)
	})
}

// TestRehearsals checks that an hourly CronAt is rehearsed when it is created and before each
// time, and that a rehearsal that fails is reported once, and repeated until it passes.
func TestRehearsals(t *testing.T) {
	withPreflights(t, func(w *preflights, _ func()) {
		w.create(t, newCronAt("0 * * * *", func(cronAt *v1alpha1.CronAt) { cronAt.Spec.AtTemplate.Spec.Rehearse = true }))
		midnight := w.start.Truncate(24 * time.Hour)
		untilTime := func(hour int, more time.Duration) time.Duration {
			return time.Until(midnight.Add(time.Duration(hour)*time.Hour + more))
		}
		status := w.after(t, untilTime(3, 30*time.Minute)).Status
		if !meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionRehearsed) || status.Reason != "" {
			t.Errorf("status %+v, want Rehearsed", status)
		}
		got := w.setBreaks(true)
		if len(got) != 3 || got[0] > 2*time.Second {
			t.Fatalf("rehearsals %v, want one when it is created, and two others", got)
		}
		for i, hour := range []int{2, 3} {
			if before := time.Duration(hour)*time.Hour - got[i+1]; before > 11*time.Minute || before < 9*time.Minute {
				t.Errorf("rehearsal %v before %d o'clock, want ten minutes", before, hour)
			}
		}
		w.wantWarnings(t)
		status = w.after(t, untilTime(4, 28*time.Minute)).Status
		if status.Reason != v1alpha1.ReasonImagePullFailed || !strings.HasPrefix(status.Message, "Rehearsed at 2000-01-01T04:2") {
			t.Errorf("status %+v, want ImagePullFailed some minutes ago", status)
		}
		w.wantWarnings(t, v1alpha1.ReasonImagePullFailed)
		if failed := len(w.setBreaks(false)); failed < 4 {
			t.Errorf("%d rehearsals until one passes, want one in ten minutes", failed)
		}
		status = w.after(t, 12*time.Minute).Status
		if !meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionRehearsed) || status.Reason != "" {
			t.Errorf("status %+v after the repair, want Rehearsed", status)
		}
		w.wantWarnings(t)
		w.wantCreated(t, time.Second, midnight.Add(time.Hour), midnight.Add(2*time.Hour), midnight.Add(3*time.Hour), midnight.Add(4*time.Hour))
	})
}

// TestRehearsalRequested asks for another rehearsal although the last one passed.
func TestRehearsalRequested(t *testing.T) {
	withPreflights(t, func(w *preflights, _ func()) {
		w.create(t, newCronAt("0 3 * * *", func(cronAt *v1alpha1.CronAt) { cronAt.Spec.AtTemplate.Spec.Rehearse = true }))
		cronAt := w.after(t, 5*time.Minute)
		if first := w.setBreaks(false); len(first) != 1 {
			t.Errorf("rehearsals %v, want one", first)
		}
		cronAt.Annotations = map[string]string{v1alpha1.AnnotationRehearsalRequestedAt: time.Now().UTC().Format(time.RFC3339)}
		_, client := harness.NewClients(t, w)
		harness.Update(t, client.CnatV1alpha1().CronAts(namespace), cronAt)
		status := w.after(t, 5*time.Minute).Status
		if second := w.setBreaks(false); len(second) != 1 || !meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionRehearsed) || status.RehearsedAt.Equal(cronAt.Status.RehearsedAt) {
			t.Errorf("rehearsals %v after a request, status %+v, want one more", second, status)
		}
	})
}

// TestPreflightStart restarts the controller: of a thousand CronAts, only those are checked
// that may have missed a preflight, or that have the forecast of the earlier controller.
func TestPreflightStart(t *testing.T) {
	withPreflights(t, func(w *preflights, restart func()) {
		for i := range 1000 {
			w.create(t, newCronAt("0 3 * * *", func(cronAt *v1alpha1.CronAt) {
				cronAt.Name = fmt.Sprint("other-", i)
				if i%2 == 0 {
					cronAt.Spec.Suspend = ptr.To(true)
				}
			}))
		}
		wait(time.Minute)
		if got := w.taken(); len(got) != 1 {
			t.Errorf("dry-runs %v, want one for all", got)
		}
		time.Sleep(20 * time.Minute) // so that no answer is shared any more
		restart()
		wait(time.Minute)
		if got := w.taken(); len(got) > 0 {
			t.Errorf("dry-runs %v after a restart, want none", got)
		}
		w.setRefuses(true)
		w.create(t, newCronAt("0 3 * * *"))
		w.after(t, 3*time.Second)
		restart()
		w.taken()
		w.setRefuses(false)
		if status := w.after(t, 3*time.Second).Status; status.Reason != "" || len(w.taken()) != 1 {
			t.Errorf("status %+v after a restart, want no forecast", status)
		}
	})
}

func wait(duration time.Duration) {
	time.Sleep(duration)
	synctest.Wait()
}
