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
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestReferences covers each field of a Pod that names an object without which it does not start.
func TestReferences(t *testing.T) {
	named := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	env := func(source corev1.EnvVarSource) corev1.PodSpec {
		return corev1.PodSpec{Containers: []corev1.Container{{Env: []corev1.EnvVar{{Name: "PLAIN", Value: "a"}, {Name: "FROM", ValueFrom: &source}}}}}
	}
	envFrom := func(source corev1.EnvFromSource) corev1.PodSpec {
		return corev1.PodSpec{InitContainers: []corev1.Container{{EnvFrom: []corev1.EnvFromSource{source}}}}
	}
	volume := func(source corev1.VolumeSource) corev1.PodSpec {
		return corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: source}}}
	}
	projected := func(source corev1.VolumeProjection) corev1.PodSpec {
		return volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{source}}})
	}
	optional := ptr.To(true)
	for name, tc := range map[string]struct {
		spec corev1.PodSpec
		want []referenced
	}{
		"nothing":                 {spec: volume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})},
		"the service account":     {spec: corev1.PodSpec{ServiceAccountName: "a"}, want: []referenced{{"ServiceAccount", "a"}}},
		"a pull secret":           {spec: corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{named("a")}}, want: []referenced{{"Secret", "a"}}},
		"a key of a Secret":       {spec: env(corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: named("a")}}), want: []referenced{{"Secret", "a"}}},
		"an optional one":         {spec: env(corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: named("a"), Optional: optional}})},
		"a key of a ConfigMap":    {spec: env(corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: named("a")}}), want: []referenced{{"ConfigMap", "a"}}},
		"all of a Secret":         {spec: envFrom(corev1.EnvFromSource{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: named("a")}}), want: []referenced{{"Secret", "a"}}},
		"all of a ConfigMap":      {spec: envFrom(corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: named("a")}}), want: []referenced{{"ConfigMap", "a"}}},
		"all of an optional one":  {spec: envFrom(corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: named("a"), Optional: optional}})},
		"a volume of a Secret":    {spec: volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "a"}}), want: []referenced{{"Secret", "a"}}},
		"a volume of a ConfigMap": {spec: volume(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: named("a")}}), want: []referenced{{"ConfigMap", "a"}}},
		"an optional volume":      {spec: volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "a", Optional: optional}})},
		"a claim":                 {spec: volume(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "a"}}), want: []referenced{{"PersistentVolumeClaim", "a"}}},
		"the Secret of a driver":  {spec: volume(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{NodePublishSecretRef: ptr.To(named("a"))}}), want: []referenced{{"Secret", "a"}}},
		"a projected Secret":      {spec: projected(corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: named("a")}}), want: []referenced{{"Secret", "a"}}},
		"a projected ConfigMap":   {spec: projected(corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: named("a")}}), want: []referenced{{"ConfigMap", "a"}}},
		"an optional projection":  {spec: projected(corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: named("a"), Optional: optional}})},
		"the same twice": {
			spec: corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{named("a"), named("a"), named("b")}}, want: []referenced{{"Secret", "a"}, {"Secret", "b"}},
		},
	} {
		if diff := cmp.Diff(tc.want, references(&tc.spec), cmp.AllowUnexported(referenced{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestMissing looks for what the Pod of an At names.
func TestMissing(t *testing.T) {
	const missing = "Secret database, PersistentVolumeClaim data not found in namespace default: create what is missing before the run."
	const notAllowed = "You are not allowed to get Secret database, so it is not known whether they exist."
	const hint = " Nothing was rehearsed: --rehearse tries the Pod on a node.\n"
	withTemplate := func(at *v1alpha1.At) {
		at.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "main", Image: "image", EnvFrom: []corev1.EnvFromSource{
				{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "database"}}},
				{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}},
			}}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}},
		}}
	}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "default", Name: name}
	}
	settings := &corev1.ConfigMap{ObjectMeta: meta("settings")}
	all := []runtime.Object{settings, &corev1.Secret{ObjectMeta: meta("database")}, &corev1.PersistentVolumeClaim{ObjectMeta: meta("data")}}
	noSecrets := apierrors.NewForbidden(corev1.Resource("secrets"), "database", fmt.Errorf(`User "x" cannot get resource "secrets" in API group ""`))
	for name, tc := range map[string]struct {
		args    string
		at      func(*v1alpha1.At)
		has     []runtime.Object
		secrets error // the answer to a read of Secrets
		want    string
		without string
	}{
		"created":                     {args: "now + 1 h --from=at/at", has: []runtime.Object{settings}, want: missing + hint},
		"created, all there":          {args: "now + 1 h --from=at/at", has: all, without: "not found"},
		"created, not allowed":        {args: "now + 1 h --from=at/at", has: all, secrets: noSecrets, without: "Secret database"},
		"created, no answer":          {args: "now + 1 h --from=at/at", has: all, secrets: errRefused, without: "Secret database"},
		"created, to be rehearsed":    {args: "now + 1 h --from=at/at --rehearse", has: []runtime.Object{settings}, want: missing + "\n", without: hint},
		"created by a script":         {args: "now + 1 h --from=at/at -o name", without: "not found"},
		"every day":                   {args: "every @daily --tz=UTC --from=at/at", has: []runtime.Object{settings}, want: missing + hint},
		"dry run of the server":       {args: "now + 1 h --from=at/at --dry-run=server", has: []runtime.Object{settings}, want: missing + hint},
		"dry run of the client":       {args: "now + 1 h --from=at/at --dry-run=client", without: "not found"},
		"checked":                     {args: "check at", has: []runtime.Object{settings}, want: "\nMissing    " + missing + "\nUnchecked  "},
		"checked, all there":          {args: "check at", has: all, without: "Missing"},
		"checked, not allowed":        {args: "check at", has: all, secrets: noSecrets, want: "\nMissing    " + notAllowed + "\n"},
		"checked, which has nothing":  {args: "check at", at: func(at *v1alpha1.At) { at.Spec.Template = nil }, without: "Missing"},
		"checked, a CronAt that does": {args: "check cronat/backup", has: []runtime.Object{settings}, want: "\nMissing    " + missing + "\n"},
	} {
		t.Run(name, inBubble(func(t *testing.T) {
			t.Helper()
			at := newAt("at", withTemplate)
			if tc.at != nil {
				tc.at(at)
			}
			w := newWorld(t, "", at, newCronAt("backup", func(cronAt *v1alpha1.CronAt) { cronAt.Spec.AtTemplate.Spec = at.Spec.RunSpec }))
			kube := kubefake.NewClientset(tc.has...)
			kube.PrependReactor("get", "secrets", func(kubetesting.Action) (bool, runtime.Object, error) {
				return tc.secrets != nil, nil, tc.secrets
			})
			w.kube = kube
			code := w.run(t, strings.Fields(tc.args)...)
			if out := w.stdout.String() + w.stderr.String(); code != 0 || !strings.Contains(out, tc.want) || tc.without != "" && strings.Contains(out, tc.without) {
				t.Errorf("exit code %d; got:\n%s\nwant:\n%s\nwithout: %s", code, out, tc.want, tc.without)
			}
		}))
	}
}
