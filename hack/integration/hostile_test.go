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
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"programming-kubernetes.info/cnat-controller/hack/hostile"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// TestHostileTenant has users with the role edit in five namespaces install webhooks that
// hang, deny or answer with a megabyte, and imitate what the controller creates. Meanwhile,
// the Ats of another namespace start, and the memory of the controller stays below its limit,
// also when it starts again. The largest objects need so much of the API server that only
// hack/bench.sh hostile makes them. That benchmark also measures how late the others are.
// TestSlowTenants checks with a simulated clock that it is less than a second.
func TestHostileTenant(t *testing.T) {
	if !inOwnCluster(t) {
		return
	}
	const limit = 512 << 20
	kubectl(t, "", "apply", "-f", deploy+"/roles.yaml")
	other := newNamespace(t)
	var tenants []*hostile.Tenant
	var namespaces []string
	for range 5 {
		tenant := newTenant(t)
		tenants = append(tenants, tenant)
		namespaces = append(namespaces, tenant.Namespace)
	}
	webhook, err := hostile.StartWebhook(t.Context(), kubeClient, "hostile", namespaces...)
	if err != nil {
		t.Fatal(err)
	}
	// Otherwise, nothing in the namespaces could be deleted.
	t.Cleanup(func() {
		if err := webhook.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	webhook.Behave(hostile.Denies)
	eventually(t, "the webhook to be in force", func(ctx context.Context) (bool, error) {
		probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe"}}
		_, err := kubeClient.CoreV1().ConfigMaps(namespaces[len(namespaces)-1]).Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "denied the request"), nil
	})

	var c *controller
	most := 0 // bytes
	start := func() {
		t.Helper()
		c = startBinary(t, binary, []string{"GOMEMLIMIT=512000000"}, "", "-v=0")
		waitLog(t, c, "Starting controller")
	}
	webhook.Behave(hostile.Allows)
	start()
	startOthers(t, other, "alone")
	for _, round := range []struct {
		behavior hostile.Behavior
		due      int // Ats of each tenant
	}{
		// The API server logs each refusal, with its megabyte. So this round is the first one:
		// nothing is left to retry from another one.
		{hostile.SaysMuch, 2},
		{hostile.Hangs, 30},
		{hostile.Denies, 30},
	} {
		name := strings.ReplaceAll(round.behavior.String(), " ", "-")
		webhook.Behave(round.behavior)
		for _, tenant := range tenants {
			if err := tenant.Due(t.Context(), name, round.due, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		for _, tenant := range tenants {
			eventually(t, "the webhook to be asked for "+tenant.Namespace, func(context.Context) (bool, error) {
				return webhook.HasRefused(tenant.Namespace, name+"-0-pod"), nil
			})
		}
		startOthers(t, other, name)
		for _, tenant := range tenants {
			pods, err := kubeClient.CoreV1().Pods(tenant.Namespace).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, pod := range pods.Items {
				if strings.HasPrefix(pod.Name, name) {
					t.Errorf("Pod %s was created although the webhook %s", pod.Name, round.behavior)
				}
			}
		}
		webhook.Behave(hostile.Allows)
	}

	for _, tenant := range tenants {
		// The policies refuse that to tenants. The controller must do without them.
		forger := hostile.Tenant{Client: dynamicClient, Namespace: tenant.Namespace, Log: t.Logf}
		if err := forger.Forge(t.Context(), 20); err != nil {
			t.Fatal(err)
		}
	}
	startOthers(t, other, "forged")

	most = max(most, memory(t, c, "VmHWM"))
	if err := c.stop(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	start()
	startOthers(t, other, "restarted")
	most = max(most, memory(t, c, "VmHWM"))
	t.Logf("the controller had %d MiB at most", most>>20)
	if !raceEnabled && most > limit {
		t.Errorf("the controller had %d MiB, want less than its limit, %d MiB", most>>20, limit>>20)
	}
}

// newTenant returns a tenant with a namespace and the role edit in it.
func newTenant(t *testing.T) *hostile.Tenant {
	t.Helper()
	namespace := newNamespace(t)
	kubectl(t, "", "create", "rolebinding", "edit", "-n", namespace, "--clusterrole=edit", "--user="+namespace)
	waitAllowed(t, namespace, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "create", Group: v1alpha1.SchemeGroupVersion.Group, Resource: "cronats"})
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Impersonate.UserName = -1, namespace
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return &hostile.Tenant{Client: client, Namespace: namespace, Log: t.Logf}
}

// startOthers creates Ats in a namespace that become due one after the other, and waits for
// their Pods. None is early.
func startOthers(t *testing.T, namespace, prefix string) {
	t.Helper()
	const number, gap = 10, 200 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	pods := kubeClient.CoreV1().Pods(namespace)
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	watcher := retryWatch(ctx, t, list.ResourceVersion, pods.Watch)
	defer watcher.Stop()
	first := time.Now().Add(3 * time.Second).Truncate(time.Millisecond)
	due := map[string]time.Time{}
	for i := range number {
		schedule := first.Add(time.Duration(i) * gap)
		at := newAt(namespace, fmt.Sprintf("%s-%d", prefix, i), schedule, "true")
		due[plan.PodName(at)] = schedule
		createAt(t, at)
		if now := time.Now(); now.After(schedule) {
			due[plan.PodName(at)] = now // At the earliest, on a slow machine.
		}
	}
	defer announce(t.Name() + ": the Pods of " + prefix)()
	var late []time.Duration
	for event := range watcher.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		if !ok {
			t.Fatalf("the watch ended: %v", event.Object)
		}
		if schedule, ok := due[pod.Name]; ok && event.Type == watch.Added {
			late = append(late, time.Since(schedule))
		}
		if len(late) == number {
			break
		}
	}
	if len(late) < number {
		t.Fatalf("%s: %d of %d Pods after %v", prefix, len(late), number, patience)
	}
	slices.Sort(late)
	t.Logf("%s: late by %v to %v, %v in the median", prefix, late[0], late[number-1], late[number/2])
	if late[0] < 0 {
		t.Errorf("%s: early by %v", prefix, -late[0])
	}
}
