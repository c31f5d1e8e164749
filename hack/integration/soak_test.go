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
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
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
	soakServers   = flag.Int("soak-api-servers", 1, "how often the API server is killed")
	soakEtcds     = flag.Int("soak-etcds", 1, "how often etcd is killed")
	soakKillEvery = flag.Duration("soak-kill-every", 2*time.Second, "time between two kills of a controller")

	soakTrials = flag.Int("soak-trials", 1, "number of trials of each handover; of more than one, the time is judged")
	soakOutage = flag.Duration("soak-outage", 0, "minimum duration of the API server's outage; if there is one, the return is judged")
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

	// Each is killed at regular intervals that do not coincide.
	kills := 0
	events := map[string]int{"kube-apiserver": *soakServers, "etcd": *soakEtcds}
	begin := time.Now()
	next := map[string]time.Time{}
	for name, times := range events {
		next[name] = begin.Add(*soakFor / time.Duration(times+1))
	}
	for round := 1; time.Since(begin) < *soakFor+5*time.Second; round++ {
		time.Sleep(*soakKillEvery)
		i := round % len(controllers)
		controllers[i].kill(t)
		waitAPIServer(t) // Without one, it would exit.
		controllers[i] = startController(t, namespace, "-v=1")
		waitLog(t, controllers[i], "Starting controller")
		kills++
		for name, times := range events {
			if times > 0 && time.Now().After(next[name]) {
				killAndRestart(t, name)
				events[name]--
				next[name] = next[name].Add(*soakFor / time.Duration(times+1))
			}
		}
	}

	// From now on, nothing is killed, and all Ats end.
	var ats *v1alpha1.AtList
	eventually(t, "all Ats to end", func(ctx context.Context) (bool, error) {
		var err error
		if ats, err = cnatClient.CnatV1alpha1().Ats(namespace).List(ctx, metav1.ListOptions{}); err != nil {
			return false, nil //nolint:nilerr // The API server may still be starting.
		}
		return !slices.ContainsFunc(ats.Items, func(at v1alpha1.At) bool { return at.Status.Phase != v1alpha1.PhaseDone }), nil
	})
	ends := map[string]int{}
	for _, at := range ats.Items {
		ends[at.Status.Reason]++
	}
	if ends[v1alpha1.ReasonCompleted] != *soakAts {
		t.Errorf("they ended as %v, want %d Completed", ends, *soakAts)
	}
	// No Pod twice, none early. The log of a killed API server may lack a creation that the
	// kubelet has seen.
	created := map[string]int{}
	var late []time.Duration // of first attempts
	for _, create := range creations(t, namespace) {
		name := create.ObjectRef.Name
		created[name]++
		lateness := create.RequestReceivedTimestamp.Sub(due[name])
		if lateness < 0 {
			t.Errorf("Pod %s was created %v early", name, -lateness)
		}
		if strings.HasSuffix(name, "-pod") {
			late = append(late, lateness)
		}
	}
	for name, number := range created {
		if number > 1 {
			t.Errorf("Pod %s was created %d times", name, number)
		}
	}
	k.lock.Lock()
	defer k.lock.Unlock()
	for name, uids := range k.started {
		if len(uids) > 1 {
			t.Errorf("Pod %s was started %d times", name, len(uids))
		}
	}
	if len(k.started) != len(due) {
		t.Errorf("%d attempts had a container, want %d", len(k.started), len(due))
	}
	if slices.Sort(late); len(late) == 0 {
		t.Fatal("no Pod was created")
	}
	waitReleased(t, namespace)
	t.Logf("the API server was killed %d times, etcd %d times", *soakServers, *soakEtcds)
	t.Logf("%d Ats over %v, 3 controllers of which %d were killed", *soakAts, *soakFor, kills)
	t.Logf("%d attempts, of which %d Pods were deleted as they ended; ends %v; late: median %v, p99 %v, at most %v",
		len(k.started), k.deleted, ends, late[len(late)/2], late[len(late)*99/100], late[len(late)-1])
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
	deleted int
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
	pod.Status.ContainerStatuses = exited(pod, 0, "")
	if pod.Spec.Containers[0].Command[2] == failFirst && strings.HasSuffix(pod.Name, "-pod") {
		pod.Status.Phase = corev1.PodFailed
		pod.Status.ContainerStatuses = exited(pod, 1, "")
	}
	pods := kubeClient.CoreV1().Pods(pod.Namespace)
	if _, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		return
	}
	if pod.UID[0]%2 == 0 && pods.Delete(ctx, pod.Name, metav1.DeleteOptions{}) == nil {
		k.lock.Lock()
		k.deleted++
		k.lock.Unlock()
	}
}

// killAndRestart kills a component of the cluster of hack/localcluster, and waits until
// the cluster has restarted it.
func killAndRestart(t *testing.T, name string) {
	t.Helper()
	killed := find(t, name)
	if len(killed) != 1 {
		t.Fatalf("%d processes are %s of %s, want one", len(killed), name, clusterDir())
	}
	if err := syscall.Kill(killed[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, name+" to be started again", func(context.Context) (bool, error) {
		running := find(t, name)
		return len(running) == 1 && running[0] != killed[0], nil
	})
}

func clusterDir() string { return filepath.Dir(os.Getenv("KUBECONFIG")) }

// find returns the processes of a component of the cluster: those that were started by
// its name, with a path in the cluster's folder among their arguments.
func find(t *testing.T, name string) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		// A process that has ended has no arguments, or is gone.
		cmdline, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		program, arguments, _ := bytes.Cut(cmdline, []byte{0})
		if filepath.Base(string(program)) == name && bytes.Contains(arguments, []byte(clusterDir()+"/")) {
			found = append(found, pid)
		}
	}
	return found
}
