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
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// createFreeze creates a Freeze that holds from a minute ago until tomorrow.
func createFreeze(t *testing.T, namespace, name string, mutate ...func(*v1alpha1.FreezeSpec)) *v1alpha1.Freeze {
	t.Helper()
	at := func(t time.Time) v1alpha1.FreezeTime { return v1alpha1.FreezeTime(t.UTC().Format(time.RFC3339)) }
	object := &v1alpha1.Freeze{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.FreezeSpec{
			Windows: []v1alpha1.FreezeWindow{{From: at(time.Now().Add(-time.Minute)), Until: at(time.Now().Add(24 * time.Hour))}},
			Reason:  "Change freeze",
		},
	}
	for _, m := range mutate {
		m(&object.Spec)
	}
	object, err := cnatClient.CnatV1alpha1().Freezes(namespace).Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return object
}

func deleteFreeze(t *testing.T, object *v1alpha1.Freeze) {
	t.Helper()
	if err := cnatClient.CnatV1alpha1().Freezes(object.Namespace).Delete(t.Context(), object.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// everyMinute returns a CronAt that is due each minute.
func everyMinute(namespace, name string) *v1alpha1.CronAt {
	cronAt := newCronAt(namespace, "* * * * *")
	cronAt.Name = name
	return cronAt
}

// waitFrozen waits until an At waits for a Freeze, which must not have a Pod then.
func waitFrozen(t *testing.T, namespace, name, message string) {
	t.Helper()
	at := waitAt(t, namespace, name, "to be frozen", func(at *v1alpha1.At) bool { return at.Status.Reason == v1alpha1.ReasonFrozen })
	if at.Status.Phase != v1alpha1.PhasePending || at.Status.Message != message {
		t.Errorf("At %s is %s: %s, want %s", name, at.Status.Phase, at.Status.Message, message)
	}
	pods, err := kubeClient.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: v1alpha1.LabelAtUID + "=" + string(at.UID)})
	if err != nil || len(pods.Items) > 0 {
		t.Errorf("At %s has %d Pods: %v", name, len(pods.Items), err)
	}
}

// TestFreeze covers Freezes of a whole cluster, of one namespace, and of one CronAt; an exemption;
// an edit, and deletions.
func TestFreeze(t *testing.T) {
	if !inOwnCluster(t) {
		return
	}
	root, team, other := newNamespace(t), newNamespace(t), newNamespace(t)
	startController(t, metav1.NamespaceAll, "-leader-elect-resource-namespace="+root)
	due := func(namespace, name string, mutate ...func(*v1alpha1.At)) {
		t.Helper()
		at := newAt(namespace, name, time.Now(), "true")
		for _, m := range mutate {
			m(at)
		}
		createAt(t, at)
	}
	message := func(name string, f *v1alpha1.Freeze) string {
		until, err := time.Parse(time.RFC3339, string(f.Spec.Windows[0].Until))
		if err != nil {
			t.Fatal(err)
		}
		return "Freeze " + name + " holds until " + until.Format(time.RFC3339) + ": Change freeze"
	}
	// Another one of the same kind shows that the controller knows it: a watch may be slow.
	known := func(namespace, name string) {
		t.Helper()
		for i := 0; ; i++ {
			probe := name + "-probe-" + string(rune('a'+i))
			due(namespace, probe)
			at := waitAt(t, namespace, probe, "to run or to wait", func(at *v1alpha1.At) bool {
				return at.Status.Phase != v1alpha1.PhasePending || at.Status.Reason != ""
			})
			if at.Status.Reason == v1alpha1.ReasonFrozen {
				return
			}
			if i == 20 {
				t.Fatal("the Freeze is not known")
			}
		}
	}

	t.Run("a namespace", func(t *testing.T) {
		f := createFreeze(t, team, "own")
		known(team, "own")
		due(team, "at")
		waitFrozen(t, team, "at", message("own", f))
		due(other, "free")
		waitPhase(t, other, "free", v1alpha1.PhaseRunning)

		due(team, "exempt", func(at *v1alpha1.At) { at.Labels = map[string]string{v1alpha1.LabelIgnoreFreezes: "true"} })
		waitPhase(t, team, "exempt", v1alpha1.PhaseRunning)

		deleteFreeze(t, f)
		waitPhase(t, team, "at", v1alpha1.PhaseRunning)
	})

	t.Run("the cluster", func(t *testing.T) {
		f := createFreeze(t, root, "christmas")
		known(other, "christmas")
		due(other, "waits")
		waitFrozen(t, other, "waits", message(root+"/christmas", f))
		due(team, "waits")
		waitFrozen(t, team, "waits", message(root+"/christmas", f))

		// From now on, it holds in the other namespace only.
		patch := `{"spec":{"namespaceSelector":{"matchLabels":{"freeze":"yes"}}}}`
		kubectl(t, "", "label", "namespace", other, "freeze=yes")
		if _, err := cnatClient.CnatV1alpha1().Freezes(root).Patch(t.Context(), "christmas", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		waitPhase(t, team, "waits", v1alpha1.PhaseRunning)
		waitFrozen(t, other, "waits", message(root+"/christmas", f))
		kubectl(t, "", "label", "namespace", other, "freeze-")
		waitPhase(t, other, "waits", v1alpha1.PhaseRunning)
		deleteFreeze(t, f)
	})

	t.Run("a CronAt", func(t *testing.T) {
		f := createFreeze(t, team, "nightly", func(spec *v1alpha1.FreezeSpec) {
			spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelCronAtName: "nightly"}}
		})
		for _, name := range []string{"nightly", "hourly"} {
			if _, err := cnatClient.CnatV1alpha1().CronAts(team).Create(t.Context(), everyMinute(team, name), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		wait := func(name, what string, condition func(*v1alpha1.CronAtStatus) bool) *v1alpha1.CronAtStatus {
			t.Helper()
			var got *v1alpha1.CronAt
			eventually(t, "CronAt "+name+" "+what, func(ctx context.Context) (_ bool, err error) {
				got, err = cnatClient.CnatV1alpha1().CronAts(team).Get(ctx, name, metav1.GetOptions{})
				return err == nil && condition(&got.Status), err
			})
			return &got.Status
		}
		wait("hourly", "to run", func(status *v1alpha1.CronAtStatus) bool { return status.LastScheduleTime != nil })
		status := wait("nightly", "to skip a time", func(status *v1alpha1.CronAtStatus) bool { return status.Skipped != nil })
		if status.LastScheduleTime != nil || status.Missed != nil || status.Reason != v1alpha1.ReasonFrozen || status.Message != message("nightly", f) {
			t.Errorf("got %+v", status)
		}
		if until, _ := time.Parse(time.RFC3339, string(f.Spec.Windows[0].Until)); status.NextScheduleTime == nil || status.NextScheduleTime.Time.Before(until) {
			t.Errorf("the next time is %s", status.NextScheduleTime)
		}
		deleteFreeze(t, f)
		wait("nightly", "to run", func(status *v1alpha1.CronAtStatus) bool { return status.LastScheduleTime != nil && status.Reason == "" })
	})
}

// TestFreezesPolicy shows that only users who may ignore Freezes exempt what they write, and that a user who
// may write Freezes in one namespace cannot freeze the cluster.
func TestFreezesPolicy(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	write, pods := rule("create get patch", cnat.GroupName, "ats", "cronats", "freezes"), rule("create", "", "pods")
	author := bindRole(t, namespace, "author", write, pods)
	onCall := bindRole(t, namespace, "on-call", write, pods, rule("ignore", cnat.GroupName, "freezes"))
	object := func(kind, name, ignores, spec string) attempt {
		return creates(fmt.Sprintf(`{kind: %s, apiVersion: %s, metadata: {name: %s, labels: {%s: %q}}, spec: %s}`,
			kind, v1alpha1.SchemeGroupVersion, name, v1alpha1.LabelIgnoreFreezes, ignores, spec))
	}
	const (
		atSpec     = `{schedule: "2099-01-01T00:00:00Z", command: "true", suspend: true}`
		cronAtSpec = `{schedule: 0 3 * * *, atTemplate: {spec: {command: "true"}}}`
		freezeSpec = `{windows: [{from: "2098-01-01T00:00:00Z", until: "2099-01-01T00:00:00Z"}]}`
	)
	label := func(value string) string {
		return fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, v1alpha1.LabelIgnoreFreezes, value)
	}
	if _, err := actAs(t, "", namespace).send(t, object("At", "plain", "false", atSpec)); err != nil {
		t.Fatal(err)
	}
	less, enough := actAs(t, author, namespace), actAs(t, onCall, namespace)
	refused := "user " + author + " may not ignore freezes in namespace " + namespace
	less.waitDenied(t, refused, object("At", "new", "true", atSpec))
	if _, err := enough.send(t, object("At", "exempt", "true", atSpec)); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		attempt attempt
		denied  string
	}{
		{object("At", "new", "true", atSpec), refused},
		{object("CronAt", "new", "true", cronAtSpec), refused},
		{object("At", "new", "false", atSpec), ""},
		{object("CronAt", "new", "false", cronAtSpec), ""},
		{merges("ats/plain", label(`"true"`)), refused},
		{merges("ats/plain", `{"spec":{"command":"false"}}`), ""},
		{merges("ats/exempt", `{"spec":{"command":"false"}}`), refused},
		{merges("ats/exempt", `{"metadata":{"annotations":{"a":"b"}}}`), ""},
		{merges("ats/exempt", label("null")), ""},
		{object("Freeze", "own", "false", freezeSpec), ""},
	} {
		less.want(t, tc.denied, tc.attempt, "dryRun", "All")
		enough.want(t, "", tc.attempt, "dryRun", "All")
	}
	actAs(t, author, systemNamespace).want(t, "cannot create resource", object("Freeze", "christmas", "false", freezeSpec), "dryRun", "All")
}
