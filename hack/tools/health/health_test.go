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

// Package health tests the health checks of artifacts/gitops with the interpreters of Argo CD and Flux.
package health

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/runtime/cel"
	lua "github.com/yuin/gopher-lua"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	luajson "layeh.com/gopher-json"
	"sigs.k8s.io/yaml"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

const gitops = "../../../artifacts/gitops/"

// tests have the objects, and what Argo CD and Flux say of them.
var tests = map[string]struct {
	object any
	argo   health
	flux   string
}{
	// The API server sets the status PENDING.
	"new": {at(v1alpha1.PhasePending), health{Status: "Healthy"}, "Current"},
	"would be refused": {
		at(v1alpha1.PhasePending, condition(v1alpha1.ConditionBlocked, metav1.ConditionTrue)),
		health{"Degraded", "Because: It is so."}, "Failed",
	},
	"is no longer blocked": {
		at(v1alpha1.PhasePending, condition(v1alpha1.ConditionBlocked, metav1.ConditionFalse)),
		health{Status: "Healthy"}, "Current",
	},
	"is suspended": {
		at(v1alpha1.PhasePending, condition(v1alpha1.ConditionSuspended, metav1.ConditionTrue)),
		health{"Suspended", "It is so."}, "Current",
	},
	"runs": {at(v1alpha1.PhaseRunning), health{Status: "Progressing"}, "Current"},
	"runs, and cannot pull its image": {
		at(v1alpha1.PhaseRunning, condition(v1alpha1.ConditionBlocked, metav1.ConditionTrue)),
		health{"Degraded", "Because: It is so."}, "Failed",
	},
	"is being stopped": {
		at(v1alpha1.PhaseRunning, condition(v1alpha1.ConditionFailureTarget, metav1.ConditionTrue)),
		health{"Degraded", "Because: It is so."}, "Failed",
	},
	"was suspended, and succeeded": {
		at(v1alpha1.PhaseDone, condition(v1alpha1.ConditionSuspended, metav1.ConditionTrue), condition(v1alpha1.ConditionComplete, metav1.ConditionTrue)),
		health{"Healthy", "It is so."}, "Current",
	},
	"was suspended, and failed": {
		at(v1alpha1.PhaseDone, condition(v1alpha1.ConditionSuspended, metav1.ConditionTrue), condition(v1alpha1.ConditionFailed, metav1.ConditionTrue)),
		health{"Degraded", "Because: It is so."}, "Failed",
	},
	// Flux asks again.
	"new CronAt":       {&v1alpha1.CronAt{}, health{Status: "Healthy"}, "Unknown"},
	"blocked CronAt":   {cronAt(condition(v1alpha1.ConditionBlocked, metav1.ConditionTrue)), health{"Degraded", "Because: It is so."}, "Failed"},
	"suspended CronAt": {cronAt(condition(v1alpha1.ConditionSuspended, metav1.ConditionTrue)), health{"Suspended", "It is so."}, "Current"},
}

// health is what a check of Argo CD returns.
type health struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

func TestArgoCD(t *testing.T) {
	var config struct{ Data map[string]string }
	read(t, "argocd-cm.yaml", &config)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			object := toUnstructured(t, test.object)
			script, found := config.Data["resource.customizations.health.cnat.programming-kubernetes.info_"+object.GetKind()]
			if !found {
				t.Fatalf("there is no check of %s", object.GetKind())
			}
			if got := runLua(t, script, object); got != test.argo {
				t.Errorf("got %+v, want %+v", got, test.argo)
			}
		})
	}
}

func TestFlux(t *testing.T) {
	var kustomization struct {
		Spec struct{ HealthCheckExprs []kustomize.CustomHealthCheck }
	}
	read(t, "flux-kustomization.yaml", &kustomization)
	evaluators := map[string]*cel.StatusEvaluator{}
	for _, check := range kustomization.Spec.HealthCheckExprs {
		evaluator, err := cel.NewStatusEvaluator(&check.HealthCheckExpressions)
		if err != nil {
			t.Fatal(err)
		}
		evaluators[check.APIVersion+" "+check.Kind] = evaluator
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			object := toUnstructured(t, test.object)
			evaluator := evaluators[object.GetAPIVersion()+" "+object.GetKind()]
			if evaluator == nil {
				t.Fatalf("there is no check of %s", object.GetKind())
			}
			got := "Unknown"
			result, err := evaluator.Evaluate(t.Context(), object)
			if err == nil {
				got = result.Status.String()
			}
			if got != test.flux {
				t.Errorf("got %s, want %s: %v", got, test.flux, err)
			}
		})
	}
}

// runLua runs a check as Argo CD does: without the standard library, except for these.
func runLua(t *testing.T, script string, object *unstructured.Unstructured) health {
	t.Helper()
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{
		lua.LoadLibName: lua.OpenPackage, lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable, lua.StringLibName: lua.OpenString,
	} {
		if err := state.CallByParam(lua.P{Fn: state.NewFunction(open), Protect: true}, lua.LString(name)); err != nil {
			t.Fatal(err)
		}
	}
	state.SetGlobal("obj", luajson.DecodeValue(state, object.Object))
	if err := state.DoString(script); err != nil {
		t.Fatal(err)
	}
	encoded, err := luajson.Encode(state.Get(-1))
	if err != nil {
		t.Fatal(err)
	}
	var got health
	if err := json.Unmarshal(encoded, &got); err != nil {
		t.Fatal(err)
	}
	return got
}

func read(t *testing.T, file string, into any) {
	t.Helper()
	content, err := os.ReadFile(gitops + file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(content, into); err != nil {
		t.Fatal(err)
	}
}

// toUnstructured returns an object as the API server serves it.
func toUnstructured(t *testing.T, object any) *unstructured.Unstructured {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		t.Fatal(err)
	}
	kind := "At"
	if cronAt, isCronAt := object.(*v1alpha1.CronAt); isCronAt {
		kind = "CronAt"
		if len(cronAt.Status.Conditions) == 0 {
			delete(content, "status") // It has no default.
		}
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind(kind))
	return u
}

func at(phase v1alpha1.AtPhase, conditions ...metav1.Condition) *v1alpha1.At {
	return &v1alpha1.At{Status: v1alpha1.AtStatus{Phase: phase, Conditions: conditions}}
}

func cronAt(conditions ...metav1.Condition) *v1alpha1.CronAt {
	return &v1alpha1.CronAt{Status: v1alpha1.CronAtStatus{Conditions: conditions}}
}

func condition(of string, status metav1.ConditionStatus) metav1.Condition {
	return metav1.Condition{Type: of, Status: status, Reason: "Because", Message: "It is so."}
}
