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
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2/ktesting"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	listers "programming-kubernetes.info/cnat-controller/pkg/generated/listers/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

var podsResource = corev1.SchemeGroupVersion.WithResource("pods")

// rehearse is the API server's answer to the creation of a rehearsal. The kubelet runs it half a
// second later.
func (f *fixture) rehearse(pod *corev1.Pod) (bool, runtime.Object, error) {
	f.note(&f.rehearsed, pod.Name)
	if f.refuse != nil {
		if err := f.refuse(pod); err != nil {
			return true, nil, err
		}
	}
	pod = pod.DeepCopy()
	pod.UID, pod.CreationTimestamp = types.UID(fmt.Sprint(pod.Name, time.Now())), metav1.Now()
	if err := f.kube.Tracker().Create(podsResource, pod, pod.Namespace); err != nil {
		return true, nil, err
	}
	time.AfterFunc(500*time.Millisecond, func() {
		ran := pod.DeepCopy()
		if f.kubelet != nil {
			f.kubelet(ran)
		} else {
			start(ran)
		}
		_ = f.kube.Tracker().Update(podsResource, ran, ran.Namespace) // It may be gone.
	})
	return true, pod, nil
}

// start makes the start of each container fail, because its command does not exist.
func start(pod *corev1.Pod) {
	pod.Status.Phase = corev1.PodFailed
	for _, c := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: 128, Reason: "StartError", Message: c.Command[0] + ": no such file"},
		}})
	}
}

// notPulled is a node that cannot pull the image.
func notPulled(pod *corev1.Pod) {
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"},
	}}}
}

// unschedulable is a cluster without a node for the Pod.
func unschedulable(pod *corev1.Pod) {
	pod.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes are available", LastTransitionTime: metav1.Now(),
	}}
}

func withRehearse(at *v1alpha1.At) { at.Spec.Rehearse = true }

// wantRehearsal checks the result of the last rehearsal of an At.
func (f *fixture) wantRehearsal(at *v1alpha1.At, reason, message string) {
	f.t.Helper()
	var got plan.Rehearsal
	if forecast := f.forecast(at); forecast != nil {
		got = forecast.Rehearsal
	}
	if got.Reason != reason || !strings.HasPrefix(got.Message, message) {
		f.t.Errorf("the rehearsal of %s is %q: %q, want %q: %q", at.Name, got.Reason, got.Message, reason, message)
	}
}

// wantPods checks which Pods exist.
func (f *fixture) wantPods(want ...string) {
	f.t.Helper()
	list, err := f.kube.CoreV1().Pods("").List(f.t.Context(), metav1.ListOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	var got []string
	for _, pod := range list.Items {
		got = append(got, pod.Name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		f.t.Errorf("Pods (-want +got):\n%s", diff)
	}
}

// TestRehearsalOnceForStaleAnswer lets the status of an At have the result after its next rehearsal
// has read the At, and before it looks for a result.
func TestRehearsalOnceForStaleAnswer(t *testing.T) {
	run(t, func(f *fixture) {
		at := f.at("at", 20*time.Hour, withRehearse)
		var isWritten atomic.Bool
		f.cnat.PrependReactor("get", "ats", func(clienttesting.Action) (bool, runtime.Object, error) {
			answer := at.DeepCopy()
			if f.forecast(at) != nil {
				f.write(at, f.forecast(at))
				f.wantRehearsal(at, "", "") // Its controller has seen it.
				isWritten.Store(true)
			}
			return true, answer, nil
		})
		f.add(1200*time.Millisecond, at)
		f.add(15*time.Second, at)
		if !isWritten.Load() {
			t.Error("the At was not read after its rehearsal")
		}
		f.wantList("rehearsals", &f.rehearsed, "at-rehearsal 1s")
	})
}

// TestRehearsalAgainForStaleCache lets an At be enqueued after its rehearsal has failed, while the cache
// does not have the result. It is repeated all the same.
func TestRehearsalAgainForStaleCache(t *testing.T) {
	run(t, func(f *fixture) {
		at := f.at("at", 20*time.Hour, withRehearse)
		f.kubelet = notPulled
		f.add(30*time.Second, at)
		f.wantList("rehearsals", &f.rehearsed, "at-rehearsal 1s")
		cached := at.DeepCopy()
		f.write(at, f.forecast(at))
		if err := f.ats.Update(cached); err != nil {
			t.Fatal(err)
		}
		f.add(plan.RehearsalPeriod, at)
		f.wantList("rehearsals after ten minutes", &f.rehearsed, "at-rehearsal 10m21s")
	})
}

func node(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

func withNodes(at *v1alpha1.At) { at.Spec.Nodes = &v1alpha1.AtNodes{} }

// TestRehearsalOfOtherNodes covers on which nodes an At is rehearsed: on others each time, but first
// on the one on which it did not pass.
func TestRehearsalOfOtherNodes(t *testing.T) {
	run(t, func(f *fixture) {
		var on []string
		nodeOf := func(pod *corev1.Pod) string {
			return pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0]
		}
		f.refuse = func(pod *corev1.Pod) error { on = append(on, nodeOf(pod)); return nil }
		f.nodes = []*corev1.Node{node("e"), node("d"), node("c"), node("b"), node("a")}
		at := f.at("at", 20*time.Hour, withRehearse, withNodes)
		// again edits the At, and returns where it is rehearsed.
		again := func() []string {
			on = nil
			f.store(at, func(at *v1alpha1.At) { at.Generation++ })
			f.add(30*time.Second, at)
			return on
		}
		first := again()
		wantOn := func(what string, want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, again()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		next := strings.Index("abcde", first[0]) + 3
		around := strings.Split("abcdeabcdeabc", "")
		wantOn("on others", around[next:next+3]...)
		next = (next + 3) % 5
		f.kubelet = func(pod *corev1.Pod) {
			if nodeOf(pod) == around[next+1] {
				notPulled(pod)
			} else {
				start(pod)
			}
		}
		wantOn("until one fails", around[next:next+2]...)
		f.wantRehearsal(at, v1alpha1.ReasonImagePullFailed, "Node "+around[next+1]+": ")
		wantOn("first where it failed", around[next+1])
		f.nodes = slices.DeleteFunc(f.nodes, func(n *corev1.Node) bool { return n.Name == around[next+1] })
		wantOn("after that node is gone", around[next+2:next+5]...)
	})
}

// TestRehearsalOfTwoControllers lets two controllers work at the same time: none ends the rehearsals of
// the other, and what one has found is enough for both.
func TestRehearsalOfTwoControllers(t *testing.T) {
	run(t, func(f *fixture) {
		other := New(f.Clients, nil, f.defaults, f.clock)
		checks := other.Ats(listers.NewAtLister(f.ats))
		_, ctx := ktesting.NewTestContext(f.t)
		harness.Run(ctx, f.t, other.Run)
		time.Sleep(leftPeriod) // It has looked for Pods that are left.
		f.kubelet = notPulled  // It takes twenty seconds.
		at := f.at("at", 20*time.Hour, withRehearse)
		checks.Add(cache.MetaObjectToName(at))
		f.add(25*time.Second, at)
		found := 0
		for _, c := range []*Checks{f.Checks, checks} {
			if forecast := c.Forecast(at, plan.RehearsedOf(&at.Status)); forecast != nil {
				found++
				f.write(at, forecast)
			}
		}
		if found != 1 {
			t.Errorf("%d results, want 1", found)
		}
		f.taken(&f.rehearsed)
		time.Sleep(9 * time.Minute)
		f.wantList("rehearsals after that", &f.rehearsed)
	})
}

// TestRehearsalYields ends the rehearsals of a namespace, and lets no other begin there for ten minutes,
// so that this is not repeated sooner. They say so, and are repeated after that.
func TestRehearsalYields(t *testing.T) {
	run(t, func(f *fixture) {
		f.kubelet = func(*corev1.Pod) {}
		other := func(at *v1alpha1.At) { at.Namespace = "other" }
		ends, stays, waits := f.at("ends", time.Hour, withRehearse), f.at("stays", time.Hour, withRehearse, other), f.at("waits", 2*time.Hour, withRehearse)
		f.Yield("shop") // There is none to end, so this does not keep any from beginning.
		f.add(3250*time.Millisecond, ends, stays)
		f.wantPods("stays-rehearsal", "ends-rehearsal")
		f.Yield("shop")
		f.add(2*time.Second, waits)
		f.wantPods("stays-rehearsal")
		for _, at := range []*v1alpha1.At{ends, waits} {
			f.wantRehearsal(at, v1alpha1.ReasonRehearsalRefused, "Ended because a run of the namespace was refused for quota.")
			f.write(at, f.forecast(at))
		}
		f.wantRehearsal(stays, "", "")
		f.taken(&f.rehearsed)
		for range 9 {
			time.Sleep(time.Minute)
			f.Yield("shop")
		}
		f.wantList("rehearsals soon after that", &f.rehearsed)
		time.Sleep(2 * time.Minute)
		f.wantList("rehearsals later", &f.rehearsed, "ends-rehearsal 10m3.25s", "waits-rehearsal 10m4.25s")
	})
}

// TestRehearsalAsAdmitted covers that a rehearsal asks for what the run was admitted with. TestOneAt has
// one for which that is not known.
func TestRehearsalAsAdmitted(t *testing.T) {
	run(t, func(f *fixture) {
		want := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
		f.kube.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			create := action.(clienttesting.CreateActionImpl)
			admitted := create.Object.(*corev1.Pod).DeepCopy()
			admitted.Spec.Containers[0].Resources.Limits = want
			return len(create.CreateOptions.DryRun) > 0, admitted, nil
		})
		var got corev1.ResourceList
		f.kubelet = func(pod *corev1.Pod) { got = pod.Spec.Containers[0].Resources.Limits }
		f.add(5*time.Second, f.at("at", time.Hour, withRehearse))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("limits (-want +got):\n%s", diff)
		}
	})
}

// TestRehearsalsAtOnce covers how many rehearsals there are at the same time.
func TestRehearsalsAtOnce(t *testing.T) {
	for namespaces, want := range map[int]int{1: 2, 2: 4, 20: 10} {
		run(t, func(f *fixture) {
			f.kubelet = notPulled // It takes twenty seconds.
			for i := range 10 * namespaces {
				f.add(0, f.at(fmt.Sprint("at-", i), time.Hour, withRehearse, func(at *v1alpha1.At) {
					at.Namespace = fmt.Sprint("shop-", i%namespaces)
				}))
			}
			most := 0
			for range 90 {
				time.Sleep(time.Second)
				list, err := f.kube.CoreV1().Pods("").List(f.t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				most = max(most, len(list.Items))
			}
			if most != want {
				t.Errorf("%d at the same time, want %d", most, want)
			}
			if rehearsed := len(f.taken(&f.rehearsed)); rehearsed < 4*want {
				t.Errorf("%d rehearsals within 90 seconds, want at least %d", rehearsed, 4*want)
			}
		})
	}
}

// TestRehearsalLeft covers the Pods that are left when a controller is killed, or a request is
// lost: they are removed, and no others, such as that of a rehearsal that goes on.
func TestRehearsalLeft(t *testing.T) {
	at := &v1alpha1.At{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "at", UID: "at"}}
	left := plan.NewRehearsalPod(at, v1alpha1.AtKind, plan.NewPod(&v1alpha1.At{Spec: v1alpha1.AtSpec{RunSpec: v1alpha1.RunSpec{Command: "true"}}}, plan.Defaults{}))
	left.UID = "left"
	labelled := left.DeepCopy()
	labelled.Name, labelled.OwnerReferences = "labelled", nil
	ofRun := left.DeepCopy()
	ofRun.Name, ofRun.Finalizers = "of-run", []string{v1alpha1.FinalizerTracking}
	run(t, func(f *fixture) {
		create := func(pods ...*corev1.Pod) {
			for _, pod := range pods {
				if err := f.kube.Tracker().Create(podsResource, pod, "shop"); err != nil {
					t.Fatal(err)
				}
			}
		}
		// They appear after the start, as if a creation had been delayed.
		create(left, labelled, ofRun)
		at := f.at("at", time.Hour, withRehearse)
		f.add(5*time.Second, at)
		f.wantPods("labelled", "of-run") // removed because it has the name
		time.Sleep(time.Minute)
		f.wantRehearsal(at, v1alpha1.ReasonPassed, "")

		create(left)
		f.rehearsals.mayHaveLeft()
		f.kubelet = notPulled // It takes twenty seconds.
		time.Sleep(leftPeriod - 10500*time.Millisecond)
		f.add(15*time.Second, f.at("going-on", time.Hour, withRehearse))
		f.wantPods("going-on-rehearsal", "labelled", "of-run")
	})
}

// TestRehearsalOfCronAt covers whose Pod it is. The tests of package cronat have when it is rehearsed.
func TestRehearsalOfCronAt(t *testing.T) {
	run(t, func(f *fixture) {
		var owner *metav1.OwnerReference
		f.refuse = func(pod *corev1.Pod) error { owner = metav1.GetControllerOf(pod); return nil }
		f.add(15*time.Second, f.cronAt("night", func(cronAt *v1alpha1.CronAt) { cronAt.Spec.AtTemplate.Spec.Rehearse = true }))
		f.wantList("rehearsals", &f.rehearsed, "night-rehearsal 1s")
		if owner == nil || owner.Kind != v1alpha1.CronAtKind || owner.UID != "night" {
			t.Errorf("owner %v, want the CronAt", owner)
		}
	})
}
