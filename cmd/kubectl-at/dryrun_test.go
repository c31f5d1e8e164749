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
	"errors"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubefake "k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestDryRunOf asks what the preflight would ask, for what is not only a Pod.
func TestDryRunOf(t *testing.T) {
	const pod = "Dry-run    The API server accepts the Pod now, if you create it."
	web := metav1.ObjectMeta{Namespace: "default", Name: "web"}
	notAllowed := func(verb, resource string) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", fmt.Errorf(`User "x" cannot %s resource "%s" in API group ""`, verb, resource))
	}
	restart := func(at *v1alpha1.At) {
		at.Spec.RunSpec = v1alpha1.RunSpec{Restart: &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"}}
	}
	onNode := func(at *v1alpha1.At) { at.Spec.Node = "n" }
	onNodes := func(at *v1alpha1.At) {
		at.Spec.Nodes = &v1alpha1.AtNodes{Selector: metav1.LabelSelector{MatchLabels: map[string]string{"pool": "workers"}}}
	}
	for name, tc := range map[string]struct {
		at     func(*v1alpha1.At)
		create string         // arguments that create an At instead
		has    runtime.Object // in the cluster
		answer error          // to the given verb and resource
		to     string
		// expectations
		code int
		out  string // a part of it
	}{
		"a restart":                          {at: restart, has: &appsv1.Deployment{ObjectMeta: web}, out: "\nDry-run    The API server accepts the restart now, if you request it.\nUnchecked  How the rollout ends.\n"},
		"of nothing":                         {at: restart, code: 3, out: "at/at would not start: TargetNotFound: Deployment web does not exist"},
		"of what is paused":                  {at: restart, has: &appsv1.Deployment{ObjectMeta: web, Spec: appsv1.DeploymentSpec{Paused: true}}, code: 3, out: "at/at would not start: TargetPaused: "},
		"refused":                            {at: restart, has: &appsv1.Deployment{ObjectMeta: web}, to: "patch deployments", answer: apierrors.NewForbidden(appsv1.Resource("deployments"), "web", errors.New("not at night")), code: 3, out: `would not start: RestartRefused: deployments.apps "web" is forbidden: not at night`},
		"without permission to read":         {at: restart, to: "get deployments", answer: notAllowed("get", "deployments"), out: "Dry-run    You are not allowed to restart deployment/web, so that was not tried.\n"},
		"without permission to patch":        {at: restart, has: &appsv1.Deployment{ObjectMeta: web}, to: "patch deployments", answer: notAllowed("patch", "deployments"), out: "Dry-run    You are not allowed to restart deployment/web, so that was not tried.\n"},
		"without an answer":                  {at: restart, to: "get deployments", answer: errRefused, out: "Dry-run    The API server does not say whether it accepts the restart: "},
		"created, of nothing":                {create: "--restart=deployment/web --dry-run=server", out: "TargetNotFound: Deployment web does not exist"},
		"created, accepted":                  {create: "--restart=deployment/web --dry-run=server", has: &appsv1.Deployment{ObjectMeta: web}, out: "\nThe API server accepts the restart now, if you request it.\n"},
		"a node":                             {at: onNode, has: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, out: pod + "\n"},
		"that does not exist":                {at: onNode, has: &corev1.Node{}, code: 3, out: "at/at would not start: NodeGone: Node n does not exist.\n"},
		"nodes":                              {at: onNodes, has: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"pool": "workers"}}}, out: pod + "\n"},
		"none of which fits":                 {at: onNodes, has: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, code: 3, out: "at/at would not start: NoNodes: "},
		"created, none of which fits":        {create: "--nodes=pool=workers --dry-run=server -- x", out: "NoNodes: "},
		"nodes without permission to list":   {at: onNodes, to: "list nodes", answer: notAllowed("list", "nodes"), out: pod + " You are not allowed to list nodes, so it is not known whether one fits.\n"},
		"nodes without an answer":            {at: onNodes, to: "list nodes", answer: errRefused, out: pod + " The API server does not list its nodes: "},
		"a Pod that is refused, and no node": {at: onNodes, to: "create pods", answer: apierrors.NewForbidden(corev1.Resource("pods"), "at-pod", errors.New("exceeded quota")), code: 3, out: "PodRefused: "},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "", newAt("at", tc.at))
			kube := kubefake.NewSimpleClientset()
			if tc.has != nil {
				kube = kubefake.NewSimpleClientset(tc.has)
			}
			kube.PrependReactor("*", "*", func(action kubetesting.Action) (bool, runtime.Object, error) {
				return action.GetVerb()+" "+action.GetResource().Resource == tc.to, nil, tc.answer
			})
			w.kube = kube
			args := "check at"
			if tc.create != "" {
				args = "now + 1 h " + tc.create
			}
			code := w.run(t, strings.Fields(args)...)
			if out := w.stdout.String() + w.stderr.String(); code != tc.code || !strings.Contains(out, tc.out) {
				t.Errorf("exit code %d, want %d; got:\n%s\nwant:\n%s", code, tc.code, out, tc.out)
			}
			for _, action := range kube.Actions() {
				if patch, isPatch := action.(kubetesting.PatchActionImpl); isPatch && len(patch.PatchOptions.DryRun) != 1 {
					t.Errorf("patched with %v", patch.PatchOptions)
				}
			}
		})
	}
}
