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
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestFreeze covers a Freeze of the whole cluster, an exemption, an edit, and a label of a namespace. The other
// kinds of starts, and CronAts, are in pkg/plan and in every interleaving.
func TestFreeze(t *testing.T) {
	if !inOwnCluster(t) {
		return
	}
	root, team, other := newNamespace(t), newNamespace(t), newNamespace(t)
	// The controller lists it before anything starts.
	freezes := cnatClient.CnatV1alpha1().Freezes(root)
	create(t, freezes, &v1alpha1.Freeze{
		ObjectMeta: metav1.ObjectMeta{Name: "christmas"},
		Spec:       v1alpha1.FreezeSpec{Windows: []v1alpha1.FreezeWindow{{From: "2000-01-01T00:00:00Z", Until: "2098-01-01T00:00:00Z"}}, Reason: "Change freeze"},
	})
	startController(t, metav1.NamespaceAll, "-leader-elect-resource-namespace="+root)
	waitFrozen := func(namespace, name string) {
		t.Helper()
		at := waitAt(t, namespace, name, "to be frozen", func(at *v1alpha1.At) bool { return at.Status.Reason == v1alpha1.ReasonFrozen })
		if want := "Freeze " + root + "/christmas holds until 2098-01-01T00:00:00Z: Change freeze"; at.Status.Phase != v1alpha1.PhasePending || at.Status.Message != want {
			t.Errorf("At %s is %s: %s, want %s", name, at.Status.Phase, at.Status.Message, want)
		}
	}
	for _, namespace := range []string{team, other} {
		createAt(t, newAt(namespace, "waits", time.Now(), "true"))
		waitFrozen(namespace, "waits")
	}
	exempt := newAt(team, "exempt", time.Now(), "true")
	exempt.Labels = map[string]string{v1alpha1.LabelIgnoreFreezes: "true"}
	createAt(t, exempt)
	waitPhase(t, team, "exempt", v1alpha1.PhaseRunning)

	// From now on, it holds in the other namespace only.
	kubectl(t, "", "label", "namespace", other, "freeze=yes")
	patch := `{"spec":{"namespaceSelector":{"matchLabels":{"freeze":"yes"}}}}`
	if _, err := freezes.Patch(t.Context(), "christmas", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	waitPhase(t, team, "waits", v1alpha1.PhaseRunning)
	waitFrozen(other, "waits")
	kubectl(t, "", "label", "namespace", other, "freeze-")
	waitPhase(t, other, "waits", v1alpha1.PhaseRunning)
}
