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

package preflight

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	cnatfake "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/fake"
	listers "programming-kubernetes.info/cnat-controller/pkg/generated/listers/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

var (
	pods = schema.GroupResource{Resource: "pods"}
	// refusal is the API server's answer if a quota is exceeded.
	refusal = func(pod string) error { return apierrors.NewForbidden(pods, pod, errors.New("exceeded quota")) }
)

// fixture is a Preflight that uses fakes, in virtual time.
type fixture struct {
	*Preflight
	*Checks // of Ats
	t       *testing.T
	start   time.Time
	ats     cache.Indexer
	// cronAts has the CronAts, and crons are their checks.
	cronAts cache.Indexer
	crons   *Checks
	cnat    *cnatfake.Clientset
	kube    *kubefake.Clientset

	lock sync.Mutex
	// answer is the API server's answer to the creation of a Pod; nil means that it accepts
	// the Pod.
	answer  func(pod string) error
	dryRuns []string     // name of the Pod, and when
	reads   []string     // name of the At, and when
	changed []string     // name of the At, and when
	lookups atomic.Int32 // in the cache

	// kubelet runs a rehearsal; nil means that it passes. refuse is the answer to its creation.
	kubelet   func(pod *corev1.Pod)
	refuse    func(pod *corev1.Pod) error
	rehearsed []string // name of the Pod, and when it is created

	// The result of reading the nodes.
	nodes    []*corev1.Node
	nodesErr error

	// log has everything that happens. If writes is set, the statuses of Ats are written as their
	// controller does.
	log    []string
	writes bool
	round  time.Duration // of the times in the log
	stored map[string]*v1alpha1.At
}

// run calls test with a running Preflight.
func run(t *testing.T, test func(f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		kubeClient := kubefake.NewClientset()
		f := &fixture{t: t, start: time.Now(), stored: map[string]*v1alpha1.At{}, cnat: cnatfake.NewSimpleClientset(), kube: kubeClient, ats: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}), cronAts: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})}
		kubeClient.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			create := action.(clienttesting.CreateActionImpl)
			f.lock.Lock()
			defer f.lock.Unlock()
			pod := create.Object.(*corev1.Pod)
			if pod.Labels[v1alpha1.LabelRehearsalOf] != "" {
				return f.rehearse(pod)
			}
			if !slices.Equal(create.CreateOptions.DryRun, []string{metav1.DryRunAll}) {
				t.Errorf("a Pod is created with %+v, want dry-run", create.CreateOptions)
			}
			f.note(&f.dryRuns, pod.Name)
			if f.answer != nil {
				if err := f.answer(pod.Name); err != nil {
					return true, nil, err
				}
			}
			return true, pod, nil
		})
		f.cnat.PrependReactor("get", "ats", func(action clienttesting.Action) (bool, runtime.Object, error) {
			f.lock.Lock()
			defer f.lock.Unlock()
			f.note(&f.reads, action.(clienttesting.GetAction).GetName())
			return false, nil, nil
		})
		f.Preflight = New(Clients{Cnat: f.cnat, Kube: kubeClient, QPS: 5, Rehearsals: 10, NamespaceRehearsals: 2}, f.listNodes, plan.Defaults{Image: "image"}, clock.RealClock{})
		changed := func(name cache.ObjectName) {
			f.lock.Lock()
			defer f.lock.Unlock()
			f.note(&f.changed, name.Name)
			f.follow(name)
		}
		f.Checks, f.crons = f.Ats(listers.NewAtLister(f.ats)), f.CronAts(listers.NewCronAtLister(f.cronAts))
		for _, checks := range []*Checks{f.Checks, f.crons} {
			cached := checks.cached
			checks.cached = func(name cache.ObjectName) *subject {
				f.lookups.Add(1)
				return cached(name)
			}
			checks.Notify(changed)
		}
		_, ctx := ktesting.NewTestContext(t)
		harness.Run(ctx, t, func(ctx context.Context) {
			f.Run(ctx)
		})
		synctest.Wait() // It has looked for Pods of rehearsals, so that test can add reactors.
		test(f)
	})
}

func (f *fixture) listNodes(context.Context) ([]*corev1.Node, error) {
	f.lock.Lock()
	defer f.lock.Unlock()
	return f.nodes, f.nodesErr
}

// setAnswer changes the answer.
func (f *fixture) setAnswer(answer func(pod string) error) {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.answer = answer
}

// forecast returns what is known of an At.
func (f *fixture) forecast(at *v1alpha1.At) *plan.Forecast {
	return f.Forecast(at, plan.RehearsedOf(&at.Status))
}

// note appends a name and the time since the start to a list.
func (f *fixture) note(list *[]string, name string) {
	*list = append(*list, fmt.Sprintf("%s %v", name, time.Since(f.start)))
}

// decide returns the status that the controller of an At writes for a Forecast, or nil.
func decide(at *v1alpha1.At, forecast *plan.Forecast) *v1alpha1.AtStatus {
	return plan.Decide(plan.World{At: at, Forecast: forecast, Rehearses: true, Now: time.Now()}).Status
}

// write writes that status.
func (f *fixture) write(at *v1alpha1.At, forecast *plan.Forecast) {
	f.store(at, func(at *v1alpha1.At) { at.Status = *decide(at, forecast) })
}

// follow writes what was found for an At to its status, as its controller does.
func (f *fixture) follow(name cache.ObjectName) {
	at := f.stored[name.Name]
	if !f.writes || at == nil {
		return
	}
	if status := decide(at, f.forecast(at)); status != nil {
		f.store(at, func(at *v1alpha1.At) { at.Status = *status })
		text := "reports"
		for _, condition := range at.Status.Conditions {
			text += " " + condition.Type + " " + condition.Reason
		}
		f.logged(text)
	}
}

// logged appends to the log, unless that says the same already.
func (f *fixture) logged(what string) {
	f.log = slices.Compact(append(f.log, fmt.Sprint(time.Since(f.start).Round(f.round), " ", what)))
}

// taken returns a list and empties it.
func (f *fixture) taken(list *[]string) []string {
	f.lock.Lock()
	defer f.lock.Unlock()
	taken := *list
	*list = nil
	return taken
}

// at creates an At that is due after a while, and stores it.
func (f *fixture) at(name string, due time.Duration, mutate ...func(*v1alpha1.At)) *v1alpha1.At {
	f.t.Helper()
	at := &v1alpha1.At{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", UID: types.UID(name), Generation: 1},
		Spec:       v1alpha1.AtSpec{Schedule: f.start.Add(due).Format(time.RFC3339Nano), RunSpec: v1alpha1.RunSpec{Command: "echo " + name}},
		Status:     v1alpha1.AtStatus{Phase: v1alpha1.PhasePending},
	}
	f.store(at, mutate...)
	f.stored[name] = at
	return at
}

// store stores an At after the mutations in the API server and in the cache.
func (f *fixture) store(at *v1alpha1.At, mutate ...func(*v1alpha1.At)) {
	f.t.Helper()
	store(f, "ats", f.ats, at, plan.KeepAt, mutate)
}

func store[T interface {
	runtime.Object
	metav1.Object
}](f *fixture, plural string, cached cache.Indexer, object T, keep func(T) T, mutate []func(T)) {
	f.t.Helper()
	for _, m := range mutate {
		m(object)
	}
	resource := v1alpha1.SchemeGroupVersion.WithResource(plural)
	err := f.cnat.Tracker().Create(resource, object.DeepCopyObject(), object.GetNamespace())
	if apierrors.IsAlreadyExists(err) {
		err = f.cnat.Tracker().Update(resource, object.DeepCopyObject(), object.GetNamespace())
	}
	if err := errors.Join(err, cached.Add(keep(object))); err != nil {
		f.t.Fatal(err)
	}
}

// add adds stored Ats and CronAts, and lets some time pass.
func (f *fixture) add(wait time.Duration, objects ...metav1.Object) {
	for _, object := range objects {
		checks := f.Checks
		if _, ok := object.(*v1alpha1.CronAt); ok {
			checks = f.crons
		}
		checks.Add(cache.MetaObjectToName(object))
	}
	time.Sleep(wait)
	synctest.Wait()
}

func (f *fixture) wantList(what string, list *[]string, want ...string) {
	f.t.Helper()
	if diff := cmp.Diff(want, f.taken(list)); diff != "" {
		f.t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func (f *fixture) wantForecast(at *v1alpha1.At, want *plan.Forecast) {
	f.t.Helper()
	if diff := cmp.Diff(want, f.forecast(at)); diff != "" {
		f.t.Errorf("Forecast (-want +got):\n%s", diff)
	}
}

// wantNothingKept checks that no At is waiting, and that nothing is remembered.
func (f *fixture) wantNothingKept() {
	f.t.Helper()
	before := f.lookups.Load()
	time.Sleep(time.Hour)
	synctest.Wait()
	if lookups := f.lookups.Load() - before; lookups > 0 {
		f.t.Errorf("%d lookups within an hour, want none", lookups)
	}
	if kept := f.found.Len(); kept > 0 {
		f.t.Errorf("%d findings are kept", kept)
	}
}

// edited makes an At one whose command is not in the cache.
func edited(at *v1alpha1.At) { at.Generation = 2 }

// unlike makes the Pod of an At unlike those of other Ats.
func unlike(at *v1alpha1.At) {
	at.Spec.Template = &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": at.Name + fmt.Sprint(at.Generation)}}}
	at.Spec.Template.Spec.Containers = []corev1.Container{{Name: "a", Image: "image"}}
}

func podRefused(pod string) *plan.Forecast {
	return &plan.Forecast{Reason: v1alpha1.ReasonPodRefused, Message: "create Pod: " + refusal(pod).Error()}
}

// TestOtherController lets another controller, which sees it otherwise, write over what is found: each
// result is written once, not again and again.
func TestOtherController(t *testing.T) {
	run(t, func(f *fixture) {
		f.answer = refusal
		at := f.at("a", 24*time.Hour)
		f.add(2*time.Second, at)
		f.write(at, f.forecast(at))
		f.forecast(at) // as its next sync does
		f.write(at, &plan.Forecast{})
		f.wantNews(at, false)
		f.taken(&f.changed)
		f.add(sharedTime - time.Minute)
		f.wantList("changes", &f.changed)
		f.wantNews(at, false)

		f.setAnswer(func(pod string) error { return apierrors.NewForbidden(pods, pod, errors.New("another quota")) })
		f.add(31 * time.Second)
		f.wantNews(at, true)
	})
}

// wantNews checks whether there is a status to write.
func (f *fixture) wantNews(at *v1alpha1.At, want bool) {
	f.t.Helper()
	if got := decide(at, f.forecast(at)); got != nil != want {
		f.t.Errorf("a status to write: %+v, want one: %t", got, want)
	}
}

// TestOrder checks that many Ats are checked not faster than allowed, and one that is moved
// before the others.
func TestOrder(t *testing.T) {
	run(t, func(f *fixture) {
		const many = 50
		ats := make([]*v1alpha1.At, many)
		for _, i := range rand.Perm(many) {
			ats[i] = f.at(fmt.Sprintf("at-%02d", i), time.Hour+time.Duration(i)*time.Minute, unlike)
		}
		// Two earlier Ats keep it busy: when it is idle, it may take any of the Ats that arrive
		// at one instant.
		f.add(100*time.Millisecond, f.at("early-0", time.Hour, unlike), f.at("early-1", time.Hour, unlike))
		for _, i := range rand.Perm(many - 1) {
			f.add(0, ats[i])
		}
		time.Sleep(time.Millisecond)
		f.add(0, ats[many-1]) // So it is the last one, until it is moved.
		f.add(3 * time.Second)
		f.store(ats[many-1], func(at *v1alpha1.At) {
			at.Spec.Schedule, at.Generation = f.start.Add(time.Minute).Format(time.RFC3339Nano), 2
		})
		f.add(time.Minute, ats[many-1])
		got := f.taken(&f.dryRuns)
		if len(got) != many+2 {
			t.Fatalf("%d dry-runs, want %d", len(got), many+2)
		}
		got = got[2:]
		for i := range 10 {
			if want := fmt.Sprint(1400*time.Millisecond + time.Duration(i)*200*time.Millisecond); !strings.HasSuffix(got[i], " "+want) {
				t.Errorf("dry-run %d is %s, want it after %s", i, got[i], want)
			}
		}
		if moved := slices.IndexFunc(got, func(s string) bool { return strings.HasPrefix(s, "at-49") }); moved < 10 || moved > 17 {
			t.Errorf("the At that was moved is number %d, want it a second after it was moved", moved)
		}
	})
}

// TestShared checks that Ats with the same Pod share an answer for ten minutes. TestCommands has a bad one.
func TestShared(t *testing.T) {
	same := func(at *v1alpha1.At) { at.Spec.Command = "echo YAY" }
	run(t, func(f *fixture) {
		a, b, c := f.at("a", 24*time.Hour, same), f.at("b", 23*time.Hour, same), f.at("c", 22*time.Hour, same)
		f.add(2*time.Second, a)
		f.add(10*time.Minute-2*time.Second, b)
		f.wantList("dry-runs", &f.dryRuns, "a-pod 1s")
		f.add(2*time.Second, c)
		f.wantList("dry-runs after ten minutes", &f.dryRuns, "c-pod 10m1s")
	})
}

// TestCommands checks that Ats whose Pods differ only in the command share an answer,
// except where a webhook or a policy has refused one of them, maybe for its command.
func TestCommands(t *testing.T) {
	run(t, func(f *fixture) {
		f.answer = refusal
		a, b := f.at("a", 24*time.Hour), f.at("b", 24*time.Hour)
		f.add(2*time.Second, a)
		f.add(2*time.Second, b)
		f.wantList("dry-runs", &f.dryRuns, "a-pod 1s")
		f.wantForecast(b, podRefused("b-pod"))
	})
	run(t, func(f *fixture) {
		denied := func(pod string) error {
			return apierrors.NewForbidden(pods, pod, errors.New(`admission webhook "a" denied the request: no curl`))
		}
		f.answer = func(pod string) error {
			if pod == "curl-pod" || pod == "curl-2-pod" {
				return denied(pod)
			}
			return nil
		}
		same := func(at *v1alpha1.At) { at.Spec.Command = "curl" }
		curl, again, other := f.at("curl", 24*time.Hour, same), f.at("curl-2", 24*time.Hour, same), f.at("other", 24*time.Hour)
		f.add(2*time.Second, curl)
		f.add(2*time.Second, again)
		f.add(2*time.Second, other)
		f.wantList("dry-runs", &f.dryRuns, "curl-pod 1s", "other-pod 5s")
		f.wantForecast(curl, &plan.Forecast{Reason: v1alpha1.ReasonPodRefused, Message: "create Pod: " + denied("curl-pod").Error()})
		f.wantForecast(again, &plan.Forecast{Reason: v1alpha1.ReasonPodRefused, Message: "create Pod: " + denied("curl-2-pod").Error()})
		f.wantForecast(other, nil)
	})
}

// TestManyAlike creates very many Ats with the same Pod: they cost one dry-run in ten minutes. At most
// 50 per second are read, and only those that the cache does not have whole. If they are refused with
// a message that always changes, at most 50 per second need a new status.
func TestManyAlike(t *testing.T) {
	for name, tc := range map[string]struct {
		mutate          func(*v1alpha1.At)
		refused         bool
		reads, statuses int // within 100 s
	}{
		"whole":   {mutate: func(*v1alpha1.At) {}},
		"edited":  {mutate: edited, reads: 5000},
		"refused": {mutate: func(*v1alpha1.At) {}, refused: true, statuses: 5000},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(f *fixture) {
				if tc.refused {
					f.answer = func(pod string) error {
						return apierrors.NewForbidden(pods, pod, fmt.Errorf("exceeded quota at %v", time.Since(f.start)))
					}
				}
				for i := range 10_000 {
					f.add(0, f.at(fmt.Sprint("at-", i), 24*time.Hour, func(at *v1alpha1.At) { at.Spec.Command = "echo YAY" }, tc.mutate))
				}
				f.add(time.Second + 100*time.Second)
				reads, statuses, dryRuns := len(f.taken(&f.reads)), len(f.taken(&f.changed)), f.taken(&f.dryRuns)
				if reads < tc.reads*998/1000 || reads > tc.reads+1 || statuses < tc.statuses*998/1000 || statuses > tc.statuses+1 {
					t.Errorf("%d reads and %d new statuses within 100 s, want %d and %d", reads, statuses, tc.reads, tc.statuses)
				}
				if tc.refused {
					return
				}
				if len(dryRuns) != 1 {
					t.Errorf("dry-runs %v, want one", dryRuns)
				}
				time.Sleep(10 * time.Minute)
				f.wantNothingKept()
			})
		})
	}
}

// TestPanic makes the Preflight panic for one At: the others are still checked.
func TestPanic(t *testing.T) {
	run(t, func(f *fixture) {
		noContainer := func(at *v1alpha1.At) { at.Spec.Template = &corev1.PodTemplateSpec{} }
		f.add(2*time.Second, f.at("a", time.Hour, noContainer), f.at("b", 2*time.Hour))
		f.wantList("dry-runs", &f.dryRuns, "b-pod 1s")
		f.wantNothingKept()
	})
}

// TestOff calls a Preflight that is turned off: the findings of an earlier one are
// removed.
func TestOff(t *testing.T) {
	var p *Preflight
	p.Run(t.Context())
	for _, checks := range []*Checks{p.Ats(nil), p.CronAts(nil)} {
		checks.Add(cache.ObjectName{})
		if diff := cmp.Diff(&plan.Forecast{}, checks.Forecast(&v1alpha1.At{}, plan.Rehearsed{})); diff != "" {
			t.Errorf("Forecast (-want +got):\n%s", diff)
		}
	}
}

// TestKeptSize checks that little of a refusal is kept.
func TestKeptSize(t *testing.T) {
	long := strings.Repeat("no ", 1<<20)
	for name, err := range map[string]error{
		"refused":   apierrors.NewForbidden(pods, "at", errors.New(long)),
		"invalid":   apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "at", field.ErrorList{field.Invalid(field.NewPath("spec"), long, long)}),
		"no answer": apierrors.NewInternalError(errors.New("timeout " + long)),
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(f *fixture) {
				f.answer = func(string) error { return err }
				at := f.at("at", time.Hour)
				f.add(5*time.Second, at)
				like, _ := plan.PodKeys(plan.NewPod(at, f.defaults))
				shared, ok := f.shared.Get(like)
				if !ok {
					t.Fatal("no answer is kept")
				}
				for what, kept := range map[string]any{"answer": shared, "its forecast": shared.(verdict).forecast, "findings": f.found} {
					if size := len(fmt.Sprintf("%+v", kept)); size > 5000 {
						t.Errorf("%d bytes are kept: %s", size, what)
					}
				}
			})
		})
	}
}
