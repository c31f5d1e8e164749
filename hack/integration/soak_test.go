//go:build integration

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

package integration

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// hack/soak.sh sets them higher.
var (
	soakAts       = flag.Int("soak-ats", 100, "number of Ats")
	soakFor       = flag.Duration("soak-for", 6*time.Second, "time over which they are due")
	soakKillEvery = flag.Duration("soak-kill-every", 2*time.Second, "time between two kills of a controller")
)

// TestSoak creates many Ats that become due while three controllers are running. One
// controller is killed repeatedly, and so are the API server and etcd. The first attempt
// of every tenth At fails, and half of the Pods are deleted as soon as they have ended.
// Each attempt must be made once, not early, and each At must end.
func TestSoak(t *testing.T) {
	if !inOwnCluster(t) {
		return
	}
	namespace := newNamespace(t)
	controllers := make([]*controller, 3)
	for i := range controllers {
		controllers[i] = startController(t, namespace, "-v=1")
	}
	first := time.Now().Add(3 * time.Second).Truncate(time.Millisecond)
	due := map[string]time.Time{}
	for i := range *soakAts {
		instant := first.Add(*soakFor * time.Duration(i) / time.Duration(*soakAts))
		at := newAt(namespace, fmt.Sprintf("at-%d", i), instant, "true")
		due[at.Name+"-pod"] = instant
		if i%10 == 0 {
			at.Spec.Command, at.Spec.BackoffLimit = failFirst, ptr.To[int32](1)
			due[at.Name+"-pod-1"] = instant.Add(10 * time.Second)
		}
		createAt(t, at)
	}
	k := startKubelet(t, namespace)
	begin, round := time.Now(), 1
	for ; time.Since(begin) < *soakFor+5*time.Second; round++ {
		time.Sleep(*soakKillEvery)
		i := round % len(controllers)
		controllers[i].kill(t)
		waitAPIServer(t) // Without one, it would exit.
		controllers[i] = startController(t, namespace, "-v=1")
		waitLog(t, controllers[i], "Starting controller")
		if round%4 == 2 {
			killAndRestart(t, "kube-apiserver")
		}
		if round%8 == 4 {
			killAndRestart(t, "etcd")
		}
	}

	// From now on, nothing is killed, and all Ats end.
	eventually(t, "all Ats to have Completed", func(ctx context.Context) (bool, error) {
		ats, err := cnatClient.CnatV1alpha1().Ats(namespace).List(ctx, metav1.ListOptions{})
		// The API server may still be starting.
		return err == nil && !slices.ContainsFunc(ats.Items, func(at v1alpha1.At) bool { return at.Status.Reason != v1alpha1.ReasonCompleted }), nil
	})
	// No Pod twice, none early. The log of a killed API server may lack a creation that the
	// kubelet has seen.
	created := map[string]bool{}
	for _, create := range creations(t, namespace, "pods") {
		name := create.ObjectRef.Name
		if lateness := create.RequestReceivedTimestamp.Sub(due[name]); lateness < 0 || created[name] {
			t.Errorf("Pod %s was created late by %v; twice: %v", name, lateness, created[name])
		}
		created[name] = true
	}
	k.wantOnceEach(t, len(due))
	waitReleased(t, namespace)
	t.Logf("%d controllers were killed, and the API server in every fourth round", round-1)
}

// waitAPIServer waits until the API server is ready.
func waitAPIServer(t *testing.T) {
	t.Helper()
	eventually(t, "the API server", func(ctx context.Context) (bool, error) {
		return kubeClient.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() == nil, nil
	})
}

// failFirst is a command whose first attempt fails.
const failFirst = "fail first"

// kubelet simulates a kubelet that ends each Pod of an At as soon as it sees it, and a user
// who then deletes half of them.
type kubelet struct {
	lock    sync.Mutex
	started map[string]map[types.UID]bool // by name
}

func startKubelet(t *testing.T, namespace string) *kubelet {
	t.Helper()
	k := &kubelet{started: map[string]map[types.UID]bool{}}
	playPods(t, namespace, metav1.ListOptions{LabelSelector: v1alpha1.LabelAtUID, FieldSelector: "status.phase=Pending"}, k.run)
	return k
}

func (k *kubelet) run(ctx context.Context, pod *corev1.Pod) {
	k.lock.Lock()
	if k.started[pod.Name] == nil {
		k.started[pod.Name] = map[types.UID]bool{}
	}
	k.started[pod.Name][pod.UID] = true
	k.lock.Unlock()
	pod.Status.Phase = corev1.PodSucceeded
	pod.Status.ContainerStatuses = exited(pod, 0)
	if pod.Spec.Containers[0].Command[2] == failFirst && strings.HasSuffix(pod.Name, "-pod") {
		pod.Status.Phase = corev1.PodFailed
		pod.Status.ContainerStatuses = exited(pod, 1)
	}
	pods := kubeClient.CoreV1().Pods(pod.Namespace)
	if _, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err == nil && pod.UID[0]%2 == 0 {
		_ = pods.Delete(ctx, pod.Name, metav1.DeleteOptions{})
	}
}

// wantOnceEach checks that a number of Pods had a container, each once.
func (k *kubelet) wantOnceEach(t *testing.T, number int) {
	t.Helper()
	k.lock.Lock()
	defer k.lock.Unlock()
	for name, uids := range k.started {
		if len(uids) != 1 {
			t.Errorf("%d containers of %s were started", len(uids), name)
		}
	}
	if len(k.started) != number {
		t.Errorf("%d Pods had a container, want %d", len(k.started), number)
	}
}

// killAndRestart kills a component of the cluster of hack/localcluster, and waits until
// the cluster has restarted it.
func killAndRestart(t *testing.T, name string) {
	t.Helper()
	killed := find(t, name)
	if out, err := exec.CommandContext(t.Context(), "kill", "-KILL", killed).CombinedOutput(); err != nil {
		t.Fatalf("kill %s %q: %v: %s", name, killed, err, out)
	}
	eventually(t, name+" to be started again", func(context.Context) (bool, error) {
		running := find(t, name)
		return running != "" && running != killed, nil
	})
}

// find returns the process of a component of the cluster of these tests, or "": the one with a path in the
// cluster's folder among its arguments.
func find(t *testing.T, name string) string {
	t.Helper()
	out, _ := exec.CommandContext(t.Context(), "pgrep", "-f", "^[^ ]*"+name+" .*"+filepath.Dir(os.Getenv("KUBECONFIG"))+"/").Output() // It fails if there is none.
	return strings.TrimSpace(string(out))
}
