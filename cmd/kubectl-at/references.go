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
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// referenced is an object that a Pod names.
type referenced struct{ kind, name string }

// references returns the objects that a Pod names, in their order, apart from those that are optional.
func references(spec *corev1.PodSpec) (found []referenced) {
	add := func(kind, name string, optional *bool) {
		if r := (referenced{kind, name}); name != "" && !ptr.Deref(optional, false) && !slices.Contains(found, r) {
			found = append(found, r)
		}
	}
	configMap := func(name string, optional *bool) { add("ConfigMap", name, optional) }
	secret := func(name string, optional *bool) { add("Secret", name, optional) }
	add("ServiceAccount", spec.ServiceAccountName, nil)
	for _, pull := range spec.ImagePullSecrets {
		secret(pull.Name, nil)
	}
	for _, container := range slices.Concat(spec.InitContainers, spec.Containers) {
		for _, from := range container.EnvFrom {
			if ref := from.ConfigMapRef; ref != nil {
				configMap(ref.Name, ref.Optional)
			}
			if ref := from.SecretRef; ref != nil {
				secret(ref.Name, ref.Optional)
			}
		}
		for _, env := range container.Env {
			from := ptr.Deref(env.ValueFrom, corev1.EnvVarSource{})
			if ref := from.ConfigMapKeyRef; ref != nil {
				configMap(ref.Name, ref.Optional)
			}
			if ref := from.SecretKeyRef; ref != nil {
				secret(ref.Name, ref.Optional)
			}
		}
	}
	for _, volume := range spec.Volumes {
		if source := volume.ConfigMap; source != nil {
			configMap(source.Name, source.Optional)
		}
		if source := volume.Secret; source != nil {
			secret(source.SecretName, source.Optional)
		}
		if source := volume.PersistentVolumeClaim; source != nil {
			add("PersistentVolumeClaim", source.ClaimName, nil)
		}
		if source := volume.CSI; source != nil && source.NodePublishSecretRef != nil {
			secret(source.NodePublishSecretRef.Name, nil)
		}
		for _, source := range ptr.Deref(volume.Projected, corev1.ProjectedVolumeSource{}).Sources {
			if source.ConfigMap != nil {
				configMap(source.ConfigMap.Name, source.ConfigMap.Optional)
			}
			if source.Secret != nil {
				secret(source.Secret.Name, source.Secret.Optional)
			}
		}
	}
	return found
}

// missing looks, with the permissions of the user, for the objects that the Pod of a run names. It says
// which do not exist, and for which the user may not look.
func (c *cli) missing(ctx context.Context, of object) (missing, notAllowed string) {
	at := &v1alpha1.At{Spec: v1alpha1.AtSpec{RunSpec: *stateOf(of).run}}
	if at.Spec.Restart != nil {
		return "", ""
	}
	ctx, cancel := context.WithTimeout(ctx, verdictTime)
	defer cancel()
	core, namespace, get := c.kube.CoreV1(), of.GetNamespace(), metav1.GetOptions{}
	var absent, hidden []string
	for _, r := range references(&plan.NewPod(at, plan.Defaults{Image: defaultImage}).Spec) {
		var err error
		switch r.kind {
		case "ConfigMap":
			_, err = core.ConfigMaps(namespace).Get(ctx, r.name, get)
		case "Secret":
			_, err = core.Secrets(namespace).Get(ctx, r.name, get)
		case "PersistentVolumeClaim":
			_, err = core.PersistentVolumeClaims(namespace).Get(ctx, r.name, get)
		case "ServiceAccount":
			_, err = core.ServiceAccounts(namespace).Get(ctx, r.name, get)
		}
		switch {
		case answer.IsNotFound(err, r.name):
			absent = append(absent, r.kind+" "+r.name)
		case isNotAllowed(err):
			hidden = append(hidden, r.kind+" "+r.name)
		}
	}
	if len(absent) > 0 {
		missing = fmt.Sprintf("%s not found in namespace %s: create what is missing before the run.", strings.Join(absent, ", "), namespace)
	}
	if len(hidden) > 0 {
		notAllowed = fmt.Sprintf("You are not allowed to get %s, so it is not known whether they exist.", strings.Join(hidden, ", "))
	}
	return missing, notAllowed
}
