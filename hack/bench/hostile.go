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

package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/hack/hostile"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

const (
	// hostileNamespaces is the number of namespaces that a webhook disturbs.
	hostileNamespaces = 5
	// memoryLimit is that of artifacts/deploy/deployment.yaml, in MiB.
	memoryLimit = 512.0
)

// hostile reports how much later Ats start because of what the users of other namespaces do:
// number Ats in each whose Pods a webhook denies or does not admit in time, number objects
// that look like the controller's, 20 times number small Ats with the longest messages, and a
// fiftieth of number of the largest objects of each shape, edited one after the other.
func (b *bench) hostile(ctx context.Context, number int) (err error) {
	if err := os.Setenv("GOMEMLIMIT", "512000000"); err != nil { // as in artifacts/deploy/deployment.yaml
		return err
	}
	var tenants []*hostile.Tenant
	var namespaces []string
	for range hostileNamespaces {
		tenant, err := b.newTenant(ctx)
		if err != nil {
			return err
		}
		tenants, namespaces = append(tenants, tenant), append(namespaces, tenant.Namespace)
	}
	webhook, err := hostile.StartWebhook(ctx, b.kube, "hostile", namespaces...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, webhook.Stop(context.WithoutCancel(ctx))) }()
	if err := sleep(ctx, 5*time.Second); err != nil { // until the API server knows it
		return err
	}
	if err := b.start(ctx); err != nil {
		return err
	}
	const others, gap = 50, 300 * time.Millisecond
	alone, err := b.lateness(ctx, others, gap)
	if err != nil {
		return err
	}
	reportLater := func(round string) error {
		late, err := b.lateness(ctx, others, gap)
		if err != nil {
			return err
		}
		b.report(round+": median, later by", milliseconds(median(late)-median(alone)), "ms", nil)
		b.report(round+": last, later by", milliseconds(late[len(late)-1]-alone[len(alone)-1]), "ms", ptr.To(1000.0))
		return nil
	}
	for _, behavior := range []hostile.Behavior{hostile.Hangs, hostile.Denies, hostile.SaysMuch} {
		webhook.Behave(behavior)
		for _, tenant := range tenants {
			if err := tenant.Due(ctx, strings.ReplaceAll(behavior.String(), " ", "-"), number, time.Now()); err != nil {
				return err
			}
		}
		if err := reportLater("a webhook that " + behavior.String()); err != nil {
			return err
		}
	}
	webhook.Behave(hostile.Allows)
	for _, tenant := range tenants {
		if err := tenant.Forge(ctx, number); err != nil {
			return err
		}
	}
	if err := reportLater("forged objects"); err != nil {
		return err
	}
	if err := tenants[1].Many(ctx, 20*number, time.Now()); err != nil {
		return err
	}
	if err := reportLater("very many small Ats with long messages"); err != nil {
		return err
	}
	if err := tenants[0].Fill(ctx, max(1, number/50)); err != nil {
		return err
	}
	editing, stop := context.WithCancel(ctx)
	defer stop()
	edited := make(chan error, 1)
	go func() {
		edits, err := tenants[0].Edit(editing)
		progress("%d edits of large objects", edits)
		edited <- err
	}()
	if err := reportLater("edits of large objects"); err != nil {
		return err
	}
	if err := b.reportMemory("memory at most"); err != nil {
		return err
	}
	if err := b.stop(); err != nil {
		return err
	}
	if err := b.start(ctx); err != nil {
		return err
	}
	first, err := b.lateness(ctx, 1, gap)
	if err != nil {
		return err
	}
	b.report("an At that is due 5 s after a restart, later by", milliseconds(first[0]-median(alone)), "ms", nil)
	if err := reportLater("edits, after a restart"); err != nil {
		return err
	}
	stop()
	return errors.Join(<-edited, b.reportMemory("memory at most, after a restart"))
}

func (b *bench) reportMemory(figure string) error {
	_, most, err := b.controller.rss()
	b.report(figure, most/mib, "MiB", ptr.To(memoryLimit))
	return err
}

// newTenant returns a tenant with a namespace and the role edit in it.
func (b *bench) newTenant(ctx context.Context) (*hostile.Tenant, error) {
	namespace, err := b.newNamespace(ctx)
	if err != nil {
		return nil, err
	}
	_, err = b.kube.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "edit"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: namespace}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return nil, err
	}
	config.QPS, config.Impersonate.UserName = -1, namespace
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	tenant := &hostile.Tenant{Client: client, Namespace: namespace, Log: progress}
	return tenant, wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		// The controller-manager adds the permissions of artifacts/deploy/roles.yaml to the role.
		review, err := b.kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               namespace,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "create", Group: v1alpha1.SchemeGroupVersion.Group, Resource: "cronats"},
		}}, metav1.CreateOptions{})
		return err == nil && review.Status.Allowed, err
	})
}
