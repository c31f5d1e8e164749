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
	"regexp"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/steps/workload"
)

// dryRun asks the API server what would happen if an object were due now, with the permissions of
// the user. The controller may have other ones. asked says what was accepted, or not tried.
func (c *cli) dryRun(ctx context.Context, of object) (asked, refused string) {
	at := asAt(of)
	if at.Spec.Restart != nil {
		what := "the restart of " + targetOf(&at.Spec.RunSpec)
		forecast, err := workload.Foresee(ctx, c.kube.AppsV1(), at, c.now())
		return inWords(forecast, err, "You are not allowed to request "+what+", so it was not tried.",
			"The API server does not say whether it accepts "+what, "The API server accepts "+what+" now, if you request it.")
	}
	pod := plan.NewPod(at, plan.Defaults{Image: defaultImage})
	// The admission policies refuse these to users.
	pod.OwnerReferences, pod.Finalizers = nil, nil
	delete(pod.Labels, v1alpha1.LabelAtUID)
	_, err := c.kube.CoreV1().Pods(at.Namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: fieldManager})
	asked, refused = inWords(plan.Foresee(v1alpha1.ReasonPodRefused, err), err, "You are not allowed to create the Pod, so it was not tried.",
		"The API server does not say whether it accepts the Pod", "The API server accepts the Pod now, if you create it.")
	if refused != "" || !plan.NeedsNodes(at) {
		return asked, refused
	}
	nodes, err := listOf[*corev1.Node](c, "nodes", "")
	onNodes, refused := inWords(plan.ForeseeNodes(at, nodes, err), err, " You are not allowed to list nodes, so it is not known whether one fits.",
		" The API server does not list its nodes", "")
	return asked + onNodes, refused
}

// inWords puts the answer to a request into words.
func inWords(forecast *plan.Forecast, err error, notAllowed, unknown, accepted string) (asked, refused string) {
	switch {
	case isNotAllowed(err):
		return notAllowed, ""
	case forecast == nil:
		return fmt.Sprintf("%s: %v", unknown, err), ""
	case forecast.Reason != "":
		return "", forecast.Reason + ": " + forecast.Message
	}
	return accepted, ""
}

var notAllowed = regexp.MustCompile(` cannot (get|list|create|patch) resource "`)

// isNotAllowed reports whether the user lacks the permission for a request, so that its answer says
// nothing about what the controller may do.
func isNotAllowed(err error) bool { return err != nil && notAllowed.MatchString(err.Error()) }
