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
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestNodesForbidden runs a controller with the Role of the namespaced variant, which
// does not cover nodes.
func TestNodesForbidden(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	_, role, err := readRBAC(root + "/artifacts/namespaced/role.yaml")
	if err != nil {
		t.Fatal(err)
	}
	user := bindRole(t, namespace, "namespaced", role.Rules)
	config := filepath.Join(t.TempDir(), "config")
	if err := writeConfig(config, namespace, "namespaced"); err != nil {
		t.Fatal(err)
	}
	waitAllowed(t, user, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "create", Resource: "pods"})
	f := startFleet(t, namespace, "a", "b")
	startController(t, namespace, "-kubeconfig="+config)
	createAt(t, newNodesAt(f))
	pinned := newAt(namespace, "pinned", time.Now(), "true")
	pinned.Spec.Node = f.name("a")
	createAt(t, pinned)
	blocked := waitBlocked(t, namespace, v1alpha1.ReasonNodesForbidden)
	wantOutput(t, blocked.Message, `require that the controller can get, list and watch nodes: nodes is forbidden: User "`+user+`"`)
	waitAt(t, namespace, "pinned", "to be blocked", func(at *v1alpha1.At) bool {
		return at.Status.Reason == v1alpha1.ReasonNodesForbidden && at.Status.Message == blocked.Message
	})
	createAt(t, newAt(namespace, "ordinary", time.Now(), "true"))
	waitPhase(t, namespace, "ordinary", v1alpha1.PhaseRunning)
	wantCreated(t, namespace, "ordinary-pod")

	nodes := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch"}}}
	roles, bindings := kubeClient.RbacV1().ClusterRoles(), kubeClient.RbacV1().ClusterRoleBindings()
	if _, err := roles.Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Rules: nodes}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = bindings.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: namespace},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "namespaced"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		for _, err := range []error{bindings.Delete(ctx, namespace, metav1.DeleteOptions{}), roles.Delete(ctx, namespace, metav1.DeleteOptions{})} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	for _, name := range []string{"at", "pinned"} {
		wantEnd(t, waitPhase(t, namespace, name, v1alpha1.PhaseDone), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
	}
	wantCreated(t, namespace, "ordinary-pod", "pinned-pod", "at-"+f.name("a")+"-pod", "at-"+f.name("b")+"-pod")
}

// TestNodesSecret has a user who may write Ats and Pods in a namespace whose quota admits no
// Pod. Whatever the Ats ask for, the user learns neither which nodes there are nor how many.
func TestNodesSecret(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	f := startFleet(t, namespace, "a", "secret")
	admitNoPods(t, namespace)
	user := bindRole(t, namespace, "tenant", []rbacv1.PolicyRule{
		{APIGroups: []string{cnat.GroupName}, Resources: []string{"ats", "cronats"}, Verbs: []string{"create", "get", "list"}},
		{APIGroups: []string{""}, Resources: []string{"pods", "events"}, Verbs: []string{"create", "get", "list"}},
	})
	waitAllowed(t, user, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "list", Resource: "events"})
	startController(t, namespace)

	selecting := func(value string) v1alpha1.RunSpec {
		return v1alpha1.RunSpec{Command: "true", Nodes: &v1alpha1.AtNodes{Selector: metav1.LabelSelector{MatchLabels: map[string]string{"fleet": value}}}}
	}
	runs := map[string]v1alpha1.RunSpec{
		"some":    selecting(namespace),
		"none":    selecting("none"),
		"there":   {Command: "true", Node: f.name("a")},
		"nowhere": {Command: "true", Node: f.name("b")},
	}
	create := func(object any) {
		t.Helper()
		manifest, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		kubectl(t, string(manifest), "create", "--as="+user, "-n", namespace, "-f", "-")
	}
	for name, run := range runs {
		for suffix, due := range map[string]time.Duration{"-now": 0, "-later": time.Hour} {
			at := newAt(namespace, name+suffix, time.Now().Add(due), "")
			at.TypeMeta, at.Spec.RunSpec = metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: v1alpha1.AtKind}, run
			create(at)
		}
		create(&v1alpha1.CronAt{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: v1alpha1.CronAtKind},
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
			Spec:       v1alpha1.CronAtSpec{Schedule: "* * * * *", AtTemplate: v1alpha1.AtTemplateSpec{Spec: run}},
		})
	}
	refusal := regexp.MustCompile(`^(If it were due now: )?create Pod: pods "\S+" is forbidden: exceeded quota: quota, requested: pods=1, used: pods=0, limited: pods=0$`)
	// The CronAts create Ats within a minute.
	eventually(t, "an At of each CronAt to be refused", func(ctx context.Context) (bool, error) {
		ats, err := cnatClient.CnatV1alpha1().Ats(namespace).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelCronAtUID})
		refused := map[string]bool{}
		for _, at := range ats.Items {
			if at.Status.Reason == v1alpha1.ReasonPodRefused {
				refused[at.OwnerReferences[0].Name] = true
			}
		}
		return len(refused) == len(runs), err
	})
	for name := range runs {
		for _, suffix := range []string{"-now", "-later"} {
			waitBlockedAt(t, namespace, name+suffix, v1alpha1.ReasonPodRefused)
		}
	}
	ats, err := cnatClient.CnatV1alpha1().Ats(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range ats.Items {
		if at.Status.Phase != v1alpha1.PhasePending || at.Status.Nodes != nil || at.Status.Message != "" && !refusal.MatchString(at.Status.Message) {
			t.Errorf("At %s tells %+v", at.Name, at.Status)
		}
	}
	seen := kubectl(t, "", "get", "ats,cronats,pods,events", "--as="+user, "-n", namespace, "-o", "json")
	for _, secret := range []string{f.name("secret"), v1alpha1.ReasonNoNodes, v1alpha1.ReasonNodeGone, v1alpha1.ReasonNodesForbidden, "No node matches", "does not exist"} {
		if strings.Contains(seen, secret) {
			t.Errorf("the user sees %q", secret)
		}
	}

	// Who may run a Pod learns all that.
	kubectl(t, "", "delete", "-n", namespace, "quota/quota")
	for name, want := range map[string]string{"some": v1alpha1.ReasonCompleted, "none": v1alpha1.ReasonNoNodes, "there": v1alpha1.ReasonCompleted, "nowhere": v1alpha1.ReasonNodeGone} {
		if at := waitPhase(t, namespace, name+"-now", v1alpha1.PhaseDone); at.Status.Reason != want {
			t.Errorf("At %s ended as %s: %s, want %s", at.Name, at.Status.Reason, at.Status.Message, want)
		}
	}
}

// TestNodesQuota uses a quota that only admits some of the children.
func TestNodesQuota(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	f := startFleet(t, namespace, "a", "b", "c", "d")
	quotas := kubeClient.CoreV1().ResourceQuotas(namespace)
	counted := corev1.ResourceName("count/ats." + cnat.GroupName)
	quota, err := quotas.Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "quota"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{counted: resource.MustParse("3")}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	edits := int64(0)
	eventually(t, "the quota to be in force", func(ctx context.Context) (bool, error) {
		if quota, err = quotas.Get(ctx, "quota", metav1.GetOptions{}); err != nil {
			return false, err
		}
		if _, counts := quota.Status.Used[counted]; counts {
			return true, nil
		}
		// The controller-manager discovers a new CRD within half a minute, and counts again
		// when the quota is edited.
		edits++
		quota.Spec.Hard["count/podtemplates"] = *resource.NewQuantity(edits, resource.DecimalSI)
		if _, err = quotas.Update(ctx, quota, metav1.UpdateOptions{}); apierrors.IsConflict(err) {
			err = nil
		}
		return false, err
	})
	startController(t, namespace)
	createAt(t, newNodesAt(f))
	wantOutput(t, waitBlocked(t, namespace, v1alpha1.ReasonAtRefused).Message, "exceeded quota")
	eventually(t, "two children", func(ctx context.Context) (bool, error) {
		children, err := cnatClient.CnatV1alpha1().Ats(namespace).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelAtName + "=at"})
		return err == nil && len(children.Items) == 2, err
	})
	at := waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
	if nodes := nodesOf(at); nodes != (v1alpha1.AtNodesStatus{}) {
		t.Errorf("the nodes are counted: %+v", nodes)
	}
	wantCreated(t, namespace)
	kubectl(t, "", "patch", "-n", namespace, "quota/quota", "--type=merge", "-p", fmt.Sprintf(`{"spec":{"hard":{%q:"5"}}}`, counted))
	at = waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	wantEnd(t, at, v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
	wantNodes(t, at, v1alpha1.AtNodesStatus{Desired: 4, Succeeded: 4})
	wantOnceEach(t, f, "a", "b", "c", "d")
}

// TestNodesNameConflict creates an unrelated At with the name of a child. Nothing runs
// while that At exists, or after startingDeadlineSeconds.
func TestNodesNameConflict(t *testing.T) {
	t.Parallel()
	for what, deadline := range map[string]*int64{"removed": nil, "stays": ptr.To[int64](90)} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			f := startFleet(t, namespace, "a", "b", "c")
			waitLog(t, startController(t, namespace), "Starting controller")
			other := createAt(t, newAt(namespace, "at-"+f.name("b"), time.Now().Add(time.Hour), "true"))
			at := newNodesAt(f)
			at.Spec.StartingDeadlineSeconds = deadline
			createAt(t, at)
			blocked := waitBlocked(t, namespace, v1alpha1.ReasonAtNameConflict)
			wantOutput(t, blocked.Message, "At "+other.Name+" already exists and was not created by this At: delete that At.")
			wantCreated(t, namespace)
			if deadline != nil {
				at = waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
				wantEnd(t, at, v1alpha1.ConditionFailed, v1alpha1.ReasonStartingDeadlineExceeded)
				wantOutput(t, at.Status.Message, "It was blocked: At "+other.Name)
				for _, short := range []string{"a", "c"} {
					if child := waitPhase(t, namespace, "at-"+f.name(short), v1alpha1.PhaseDone); child.Status.Reason != v1alpha1.ReasonNotStarted {
						t.Errorf("the At of node %s ended as %s: %s", short, child.Status.Reason, child.Status.Message)
					}
				}
				waitChildrenReleased(t, namespace)
				wantCreated(t, namespace)
			}
			got := waitPhase(t, namespace, other.Name, v1alpha1.PhasePending)
			if got.UID != other.UID || got.Generation != 1 || len(got.Labels)+len(got.OwnerReferences)+len(got.Finalizers) > 0 {
				t.Errorf("the other At is %+v", got.ObjectMeta)
			}
			if deadline != nil {
				return
			}
			kubectl(t, "", "delete", "-n", namespace, "at/"+other.Name)
			wantEnd(t, waitPhase(t, namespace, "at", v1alpha1.PhaseDone), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
			wantOnceEach(t, f, "a", "b", "c")
		})
	}
}

// TestNodesSelector covers selectors that match nothing, that are invalid, and that are
// edited during the run.
func TestNodesSelector(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	f := startFleet(t, namespace, "a")
	f.hold(true, "a")
	startController(t, namespace)
	none := newNodesAt(f)
	none.Name, none.Spec.Nodes.Selector.MatchLabels = "none", map[string]string{"fleet": "none"}
	createAt(t, none)
	wantEnd(t, waitPhase(t, namespace, "none", v1alpha1.PhaseDone), v1alpha1.ConditionFailed, v1alpha1.ReasonNoNodes)

	at := newNodesAt(f)
	at.Spec.Nodes.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "fleet", Operator: "Like"}}
	createAt(t, at)
	wantOutput(t, waitBlocked(t, namespace, v1alpha1.ReasonInvalidSelector).Message, `spec.nodes.selector is not a label selector: "Like" is not a valid label selector operator`)
	waitPhase(t, namespace, "at", v1alpha1.PhasePending)
	update(t, namespace, func(at *v1alpha1.At) {
		at.Spec.Nodes.Selector.MatchExpressions[0].Operator = metav1.LabelSelectorOpExists
	})
	waitChosen(t, namespace)
	waitPhase(t, namespace, "at-"+f.name("a"), v1alpha1.PhaseRunning)
	waitUnblocked(t, namespace)
	out, err := tryKubectl(t, "", "patch", "-n", namespace, "at/at", "--type=merge", "-p", `{"spec":{"nodes":{"selector":{"matchLabels":{"a":"b"}}}}}`)
	if err == nil {
		t.Error("the selector can be edited during the run")
	}
	wantOutput(t, out, "spec: Invalid value: .*nodes.selector are immutable once the At has started: delete and recreate the At")
	f.hold(false, "a")
	wantEnd(t, waitPhase(t, namespace, "at", v1alpha1.PhaseDone), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
	wantOnceEach(t, f, "a")
}

// TestNodesActiveDeadline runs a command that does not end on two nodes, one after the
// other: each node has the full time.
func TestNodesActiveDeadline(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	f := startFleet(t, namespace, "a", "b")
	f.hold(true, "a", "b")
	startController(t, namespace)
	at := newNodesAt(f)
	at.Spec.Nodes.MaxConcurrent = ptr.To(intstr.FromInt32(1))
	at.Spec.ActiveDeadlineSeconds = ptr.To[int64](3)
	createAt(t, at)
	at = waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	wantEnd(t, at, v1alpha1.ConditionFailed, v1alpha1.ReasonNodesFailed)
	wantNodes(t, at, v1alpha1.AtNodesStatus{Desired: 2, Failed: 2})
	for _, short := range []string{"a", "b"} {
		child := waitPhase(t, namespace, "at-"+f.name(short), v1alpha1.PhaseDone)
		wantEnd(t, child, v1alpha1.ConditionFailed, v1alpha1.ReasonDeadlineExceeded)
		if took := child.Status.CompletionTime.Sub(child.Status.StartTime.Time); took < 3*time.Second {
			t.Errorf("it was stopped on node %s after %v", short, took)
		}
	}
	wantCreated(t, namespace, "at-"+f.name("a")+"-pod", "at-"+f.name("b")+"-pod")
}

// TestNodesBackoffLimit makes the command fail once on one node, and twice on another.
func TestNodesBackoffLimit(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	f := startFleet(t, namespace, "a", "b", "c")
	child := func(short string) string { return "at-" + f.name(short) }
	f.end(3, "b")
	f.endPod(3, child("a")+"-pod")
	startController(t, namespace)
	at := newNodesAt(f)
	at.Spec.BackoffLimit = ptr.To[int32](1)
	createAt(t, at)
	at = waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	wantEnd(t, at, v1alpha1.ConditionFailed, v1alpha1.ReasonNodesFailed)
	wantNodes(t, at, v1alpha1.AtNodesStatus{Desired: 3, Succeeded: 2, Failed: 1})
	for short, want := range map[string]int32{"a": 1, "b": 2, "c": 0} {
		if got := waitPhase(t, namespace, child(short), v1alpha1.PhaseDone).Status.Failed; got != want {
			t.Errorf("%d attempts have failed on node %s, want %d", got, short, want)
		}
	}
	wantCreated(t, namespace, child("a")+"-pod", child("a")+"-pod-1", child("b")+"-pod", child("b")+"-pod-1", child("c")+"-pod")
}

func TestNodesTTL(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	f := startFleet(t, namespace, "a", "b")
	startController(t, namespace)
	at := newNodesAt(f)
	at.Spec.TTLSecondsAfterFinished = ptr.To[int32](1)
	waitVersion(t, createAt(t, at), "to be done", isDone)
	waitAllGone(t, namespace)
	wantOnceEach(t, f, "a", "b")
}

// waitCollector waits until the garbage collector knows Ats, which takes up to half a
// minute for a new CRD. Before that, it may not know all children of a deleted At.
func waitCollector(t *testing.T, namespace string) {
	t.Helper()
	orphan := newAt(namespace, "at", time.Now().Add(time.Hour), "true")
	orphan.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: v1alpha1.AtKind, Name: "none", UID: "none"}}
	createAt(t, orphan)
	waitAtGone(t, namespace)
}

// TestNodesDeletion deletes an At while its command is running on two nodes and a third
// node waits for its turn.
func TestNodesDeletion(t *testing.T) {
	t.Parallel()
	for _, cascade := range []string{"background", "foreground", "orphan"} {
		t.Run(cascade, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			f := startFleet(t, namespace, "a", "b", "c")
			f.hold(true, "a", "b")
			waitCollector(t, namespace)
			startController(t, namespace)
			at := newNodesAt(f)
			at.Spec.Nodes.MaxConcurrent = ptr.To(intstr.FromInt32(2))
			createAt(t, at)
			child := func(short string) string { return "at-" + f.name(short) }
			waitChosen(t, namespace)
			for _, short := range []string{"a", "b"} {
				waitAt(t, namespace, child(short), "to run", func(at *v1alpha1.At) bool { return at.Status.Pod != nil && at.Status.Pod.Phase == corev1.PodRunning })
			}
			kubectl(t, "", "delete", "-n", namespace, "--cascade="+cascade, "--wait=false", "at/at")
			if cascade != "orphan" {
				waitAllGone(t, namespace)
				wantOnceEach(t, f, "a", "b")
				return
			}
			waitAtGone(t, namespace)
			f.hold(false, "a", "b")
			for _, short := range []string{"a", "b"} {
				wantEnd(t, waitPhase(t, namespace, child(short), v1alpha1.PhaseDone), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
			}
			// No parent is left to resume it, and only a user can tell whether it has run.
			wantOnceEach(t, f, "a", "b")
			waitAt(t, namespace, child("c"), "to be blocked", func(at *v1alpha1.At) bool { return at.Status.Reason == v1alpha1.ReasonOwnerMissing })
			kubectl(t, "", "patch", "-n", namespace, "at/"+child("c"), "--type=merge", "-p", `{"metadata":{"labels":{"`+v1alpha1.LabelAtUID+`":null}},"spec":{"suspend":false}}`)
			wantEnd(t, waitPhase(t, namespace, child("c"), v1alpha1.PhaseDone), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
			wantOnceEach(t, f, "a", "b", "c")
			waitChildrenReleased(t, namespace)
		})
	}
}

// TestNodesEdited edits maxConcurrent and maxFailed during the run.
func TestNodesEdited(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T, edit func(*v1alpha1.AtNodes)) *fleet {
		t.Helper()
		names := []string{"a", "b", "c", "d"}
		f := startFleet(t, newNamespace(t), names...)
		f.hold(true, names...)
		startController(t, f.namespace)
		at := newNodesAt(f)
		at.Spec.Nodes.MaxConcurrent = ptr.To(intstr.FromInt32(1))
		edit(at.Spec.Nodes)
		createAt(t, at)
		return f
	}
	waitCounts := func(t *testing.T, f *fleet, active, waiting, failed int32) {
		t.Helper()
		waitAt(t, f.namespace, "at", fmt.Sprintf("to be active on %d nodes, and %d to wait", active, waiting), func(at *v1alpha1.At) bool {
			nodes := nodesOf(at)
			return nodes.Active == active && nodes.Waiting == waiting && nodes.Failed == failed
		})
	}
	t.Run("maxConcurrent", func(t *testing.T) {
		t.Parallel()
		f := start(t, func(*v1alpha1.AtNodes) {})
		waitCounts(t, f, 1, 3, 0)
		update(t, f.namespace, func(at *v1alpha1.At) { at.Spec.Nodes.MaxConcurrent = ptr.To(intstr.FromString("75%")) })
		waitCounts(t, f, 3, 1, 0)
		// Running commands continue.
		update(t, f.namespace, func(at *v1alpha1.At) { at.Spec.Nodes.MaxConcurrent = ptr.To(intstr.FromInt32(2)) })
		f.hold(false, "a")
		waitCounts(t, f, 2, 1, 0)
		update(t, f.namespace, func(at *v1alpha1.At) { at.Spec.Nodes.MaxConcurrent = nil })
		waitCounts(t, f, 3, 0, 0)
		f.hold(false, "b", "c", "d")
		wantEnd(t, waitPhase(t, f.namespace, "at", v1alpha1.PhaseDone), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
		wantOnceEach(t, f, "a", "b", "c", "d")
	})
	t.Run("maxFailed", func(t *testing.T) {
		t.Parallel()
		f := start(t, func(nodes *v1alpha1.AtNodes) { nodes.MaxFailed = ptr.To[int32](0) })
		f.end(3, "a", "b", "c")
		waitCounts(t, f, 1, 3, 0)
		update(t, f.namespace, func(at *v1alpha1.At) { at.Spec.Nodes.MaxFailed = ptr.To[int32](1) })
		f.hold(false, "a")
		waitCounts(t, f, 1, 2, 1)
		update(t, f.namespace, func(at *v1alpha1.At) { at.Spec.Nodes.MaxFailed = nil })
		f.hold(false, "b")
		waitCounts(t, f, 1, 1, 2)
		update(t, f.namespace, func(at *v1alpha1.At) { at.Spec.Nodes.MaxFailed = ptr.To[int32](2) })
		f.hold(false, "c")
		at := waitPhase(t, f.namespace, "at", v1alpha1.PhaseDone)
		wantEnd(t, at, v1alpha1.ConditionFailed, v1alpha1.ReasonNodesFailed)
		wantNodes(t, at, v1alpha1.AtNodesStatus{Desired: 4, Failed: 3, Waiting: 1})
		wantOnceEach(t, f, "a", "b", "c")
	})
}

// TestNodesChosen checks that the template, and the labels of nodes that are not
// machines, restrict the nodes.
func TestNodesChosen(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	f := startFleet(t, namespace, "plain")
	label := func(key, value string) func(*corev1.Node) {
		return func(node *corev1.Node) { node.Labels[key] = value }
	}
	const computeType = "eks.amazonaws.com/compute-type"
	f.add(t, "ssd", label("disk", "ssd"))
	f.add(t, "cordoned", label("disk", "ssd"), func(node *corev1.Node) { node.Spec.Unschedulable = true })
	f.add(t, "tainted", label("disk", "ssd"), func(node *corev1.Node) {
		node.Spec.Taints = []corev1.Taint{{Key: "dedicated", Value: "db", Effect: corev1.TaintEffectNoExecute}}
	})
	f.add(t, "fargate", label(computeType, "fargate"))
	f.add(t, "virtual", label("type", "virtual-kubelet"))
	startController(t, namespace)
	for name, tc := range map[string]struct {
		expressions []metav1.LabelSelectorRequirement
		edit        func(*corev1.PodSpec)
		want        []string
	}{
		"all":           {want: []string{"plain", "ssd"}},
		"node-selector": {edit: func(spec *corev1.PodSpec) { spec.NodeSelector = map[string]string{"disk": "ssd"} }, want: []string{"ssd"}},
		"affinity": {edit: func(spec *corev1.PodSpec) {
			spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "disk", Operator: corev1.NodeSelectorOpDoesNotExist}}}},
			}}}
		}, want: []string{"plain"}},
		"tolerates-taint": {edit: func(spec *corev1.PodSpec) {
			spec.Tolerations = []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpEqual, Value: "db"}}
		}, want: []string{"plain", "ssd", "tainted"}},
		"tolerates-cordon": {edit: func(spec *corev1.PodSpec) {
			spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists}}
		}, want: []string{"cordoned", "plain", "ssd"}},
		"fargate":            {expressions: []metav1.LabelSelectorRequirement{{Key: computeType, Operator: metav1.LabelSelectorOpExists}}, want: []string{"fargate"}},
		"fargate-by-the-pod": {edit: func(spec *corev1.PodSpec) { spec.NodeSelector = map[string]string{computeType: "fargate"} }, want: []string{"fargate"}},
		"virtual":            {expressions: []metav1.LabelSelectorRequirement{{Key: "type", Operator: metav1.LabelSelectorOpIn, Values: []string{"virtual-kubelet"}}}, want: []string{"virtual"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := newNodesAt(f)
			at.Name, at.Spec.Nodes.Selector.MatchExpressions = name, tc.expressions
			if tc.edit != nil {
				at.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "busybox"}}}}
				tc.edit(&at.Spec.Template.Spec)
			}
			createAt(t, at)
			at = waitPhase(t, namespace, name, v1alpha1.PhaseDone)
			wantEnd(t, at, v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
			children, err := cnatClient.CnatV1alpha1().Ats(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: v1alpha1.LabelAtName + "=" + name})
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]bool{}
			for i := range children.Items {
				got[strings.TrimPrefix(children.Items[i].Spec.Node, namespace+"-")] = true
			}
			if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, tc.want) {
				t.Errorf("it ran on %v, want %v", names, tc.want)
			}
		})
	}
}
