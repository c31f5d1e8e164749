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
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"programming-kubernetes.info/cnat-controller/hack/hostile"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// TestHostileTenant has a user with the role edit in five namespaces install webhooks that
// hang, deny or answer with a megabyte, and imitate what the controller creates. The Ats of
// another namespace do not wait for that, and the memory of the controller stays below its
// limit, also when it starts again. The largest objects need so much of the API server that
// only hack/bench.sh hostile makes them.
//
// The bounds are for slow machines: the figures are those of hack/bench.sh. They are still
// far from what a controller without bounds shows, which is minutes late.
func TestHostileTenant(t *testing.T) {
	if !inOwnCluster(t) {
		return
	}
	const (
		due   = 50 // in each namespace, while a webhook hangs
		limit = 512 << 20
	)
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
		c = startBinary(t, binary, []string{"GOMEMLIMIT=512000000"}, "", "-metrics-bind-address=127.0.0.1:0", "-health-probe-bind-address=127.0.0.1:0", "-v=0")
		waitLog(t, c, "Starting controller")
	}
	webhook.Behave(hostile.Allows)
	start()
	wantOthersInTime(t, other, "alone")

	for _, behavior := range []hostile.Behavior{hostile.Hangs, hostile.Denies, hostile.SaysMuch} {
		round := "a webhook that " + behavior.String()
		webhook.Behave(behavior)
		for _, tenant := range tenants {
			if err := tenant.Due(t.Context(), strings.ReplaceAll(round, " ", "-"), due, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		wantOthersInTime(t, other, round)
		webhook.Behave(hostile.Allows)
	}

	for _, tenant := range tenants {
		if err := tenant.Forge(t.Context(), 20); err != nil {
			t.Fatal(err)
		}
	}
	wantOthersInTime(t, other, "forged objects")

	most = max(most, memory(t, c, "VmHWM"))
	if err := c.stop(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	start()
	wantOthersInTime(t, other, "after a restart")
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
	_, err := kubeClient.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "edit"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: namespace}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
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

// wantOthersInTime creates Ats in a namespace that become due one after the other, and checks
// how late the controller creates their Pods: not much more than a request of a bare client
// takes at the same time.
func wantOthersInTime(t *testing.T, namespace, round string) {
	t.Helper()
	const number, gap = 20, 300 * time.Millisecond
	first := time.Now().Add(5 * time.Second).Truncate(time.Millisecond)
	dueOf := map[string]time.Time{}
	var names []string
	for i := range number {
		at := newAt(namespace, fmt.Sprintf("%s-%d", strings.ReplaceAll(round, " ", "-"), i), first.Add(time.Duration(i)*gap), "true")
		dueOf[plan.PodName(at)] = first.Add(time.Duration(i) * gap)
		names = append(names, plan.PodName(at))
		if now := time.Now(); now.After(dueOf[plan.PodName(at)]) {
			dueOf[plan.PodName(at)] = now // at the earliest
		}
		createAt(t, at)
	}
	var slowest time.Duration
	late := map[string]time.Duration{}
	eventually(t, "the Pods of the other namespace, with "+round, func(ctx context.Context) (bool, error) {
		before := time.Now()
		probe := newAt(namespace, "probe", before, "true")
		probe.UID = "probe"
		_, err := kubeClient.CoreV1().Pods(namespace).Create(ctx, plan.NewPod(probe, plan.Defaults{Image: "busybox:1.37.0"}), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		slowest = max(slowest, time.Since(before))
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return false, err
		}
		for _, create := range requests(t, namespace, "create", "pods") {
			if due, ok := dueOf[create.ObjectRef.Name]; ok {
				late[create.ObjectRef.Name] = create.RequestReceivedTimestamp.Sub(due)
			}
		}
		return len(late) == number, nil
	})
	var all []time.Duration
	for _, name := range names {
		all = append(all, late[name])
	}
	slices.Sort(all)
	allowed := 20*time.Second + 5*slowest
	t.Logf("%s: late by %v in the median, %v at most; a bare request took up to %v", round, all[len(all)/2], all[len(all)-1], slowest)
	if all[0] < 0 || all[len(all)-1] > allowed {
		t.Errorf("%s: the Ats of another namespace are late by %v, want less than %v", round, all, allowed)
	}
}
