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
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/safelog"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

// secret is in each text that a user controls.
const secret = "hunter2"

// secretTemplate has the secret in each kind of text of a template.
func secretTemplate() *corev1.PodTemplateSpec {
	return &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{secret: secret}, Annotations: map[string]string{secret: secret}},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{secret: secret},
			Containers: []corev1.Container{{
				Name: secret, Image: secret, Command: []string{secret}, Args: []string{secret},
				Env: []corev1.EnvVar{{Name: secret, Value: secret}}, WorkingDir: "/" + secret,
			}},
		},
	}
}

// TestLogHasNoTexts lets the whole program work on objects that have a secret in each text that
// users control, while the API server, webhooks, policies and nodes repeat that text. It is not in
// the log, whatever is refused; the log says what failed.
func TestLogHasNoTexts(t *testing.T) {
	t.Parallel()
	reason := func(code int32, reason metav1.StatusReason) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: "denied: " + secret, Details: &metav1.StatusDetails{
			Name: secret, Kind: secret, Causes: []metav1.StatusCause{{Type: metav1.CauseType(secret), Field: secret, Message: secret}},
		}}}
	}
	for name, tc := range map[string]struct {
		refuse   func(request *http.Request) (*http.Response, error) // nil: nothing is refused
		statuses bool                                                // are refused, and nothing else
		want     string                                              // in the log
	}{
		"nothing refused":        {want: `"Created Pod"`},
		"denied":                 {refuse: refuseWith(reason(http.StatusForbidden, metav1.StatusReasonForbidden)), want: "create Pod: 403 Forbidden"},
		"a webhook's own reason": {refuse: refuseWith(reason(http.StatusTeapot, secret)), want: "create Pod: 418 I'm a teapot"},
		"invalid":                {refuse: refuseWith(reason(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)), want: "Unprocessable Entity"},
		"internal error":         {refuse: refuseWith(reason(http.StatusInternalServerError, metav1.StatusReasonInternalError)), want: "Sync failed, retrying later"},
		"statuses":               {refuse: refuseWith(reason(http.StatusForbidden, metav1.StatusReasonForbidden)), statuses: true, want: "write the status: 403 Forbidden"},
		"by a proxy": {refuse: func(request *http.Request) (*http.Response, error) {
			response := fakeserver.AnswerAsProxy(request, http.StatusBadGateway)
			response.Body = io.NopCloser(strings.NewReader(secret))
			return response, nil
		}, want: "502 Bad Gateway"},
		"no answer": {refuse: func(*http.Request) (*http.Response, error) { return nil, errors.New("connection reset") }, want: "connection reset"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := fakeserver.New(clock.RealClock{})
				config := fakeserver.Config(harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
					if isStatus := strings.HasSuffix(request.URL.Path, "/status"); tc.refuse == nil || request.Method == http.MethodGet || isStatus != tc.statuses {
						return server.RoundTrip(request)
					}
					return tc.refuse(request)
				}))
				var log lockedBuffer
				logger := safelog.New(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log), textlogger.Verbosity(7))))
				ctx, stop := context.WithCancel(klog.NewContext(t.Context(), logger))
				defer stop()
				p, err := newProgram(ctx, &options{
					workers: 1, defaults: defaults, restartAnnotations: true, preflightQPS: 5, rehearsals: 10, namespaceRehearsals: 2,
				}, config, clock.RealClock{})
				if err != nil {
					t.Fatal(err)
				}
				ended := make(chan error, 1)
				go func() { ended <- runProgram(ctx, p) }()
				time.Sleep(time.Second)
				writeSecrets(t, server)
				time.Sleep(2 * time.Minute)
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
				if !strings.Contains(log.String(), tc.want) {
					t.Errorf("the log does not have %q", tc.want)
				}
				for line := range strings.Lines(log.String()) {
					if strings.Contains(line, secret) {
						t.Errorf("the log has a text of a user: %s", line)
					}
				}
			})
		})
	}
}

// lockedBuffer is a buffer for several goroutines.
type lockedBuffer struct {
	lock   sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.lock.Lock()
	defer b.lock.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.lock.Lock()
	defer b.lock.Unlock()
	return b.buffer.String()
}

func refuseWith(err error) func(*http.Request) (*http.Response, error) {
	return func(request *http.Request) (*http.Response, error) {
		return fakeserver.Refuse(request, err.(apierrors.APIStatus))
	}
}

// writeSecrets creates and edits objects of all kinds, as users and nodes do.
func writeSecrets(t *testing.T, server *fakeserver.Server) {
	t.Helper()
	kube, cnat := harness.NewClients(t, server)
	now := time.Now()
	soon, later := now.Add(5*time.Second).Format(time.RFC3339), now.Add(time.Hour).Format(time.RFC3339)
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Name: name, Namespace: "default", Labels: map[string]string{secret: secret},
			Annotations: map[string]string{secret: secret, v1alpha1.AnnotationRehearsalRequestedAt: secret},
		}
	}
	ats := cnat.CnatV1alpha1().Ats("default")
	for name, spec := range map[string]v1alpha1.AtSpec{
		"command":    {Schedule: soon, RunSpec: v1alpha1.RunSpec{Command: "curl -u root:" + secret}},
		"template":   {Schedule: soon, RunSpec: v1alpha1.RunSpec{Template: secretTemplate()}},
		"rehearsed":  {Schedule: later, RunSpec: v1alpha1.RunSpec{Template: secretTemplate(), Rehearse: true}},
		"schedule":   {Schedule: secret, RunSpec: v1alpha1.RunSpec{Command: secret}},
		"zone":       {Schedule: "2099-01-01T00:00:00", TimeZone: ptr.To(secret), RunSpec: v1alpha1.RunSpec{Command: secret}},
		"nodes":      {Schedule: soon, RunSpec: v1alpha1.RunSpec{Command: secret, Nodes: &v1alpha1.AtNodes{Selector: metav1.LabelSelector{MatchLabels: map[string]string{secret: secret}}}}},
		"no-nodes":   {Schedule: soon, RunSpec: v1alpha1.RunSpec{Command: secret, Nodes: &v1alpha1.AtNodes{Selector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: secret, Operator: metav1.LabelSelectorOperator(secret), Values: []string{secret}}}}}}},
		"node":       {Schedule: soon, RunSpec: v1alpha1.RunSpec{Command: secret, Node: secret}},
		"restart":    {Schedule: soon, RunSpec: v1alpha1.RunSpec{Restart: &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "daily"}}},
		"wrong-kind": {Schedule: soon, RunSpec: v1alpha1.RunSpec{Restart: &v1alpha1.AtRestart{Kind: secret, Name: "daily"}}},
	} {
		harness.Create(t, ats, &v1alpha1.At{ObjectMeta: meta(name), Spec: spec})
	}
	for name, schedule := range map[string]string{"every-minute": "* * * * *", "invalid": secret, "zone": "TZ=" + secret + " 0 0 * * *"} {
		spec := v1alpha1.CronAtSpec{Schedule: schedule, AtTemplate: v1alpha1.AtTemplateSpec{
			Metadata: v1alpha1.AtTemplateMeta{Labels: map[string]string{secret: secret}, Annotations: map[string]string{secret: secret}},
			Spec:     v1alpha1.RunSpec{Template: secretTemplate()},
		}}
		harness.Create(t, cnat.CnatV1alpha1().CronAts("default"), &v1alpha1.CronAt{ObjectMeta: meta(name), Spec: spec})
	}
	harness.Create(t, kube.CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: map[string]string{secret: secret}}})
	for name, annotations := range map[string]map[string]string{
		"daily":    {v1alpha1.AnnotationRestartSchedule: "0 0 * * *", secret: secret},
		"invalid":  {v1alpha1.AnnotationRestartSchedule: secret},
		"zone":     {v1alpha1.AnnotationRestartSchedule: "0 0 * * *", v1alpha1.AnnotationRestartTimeZone: secret},
		"suspends": {v1alpha1.AnnotationRestartSchedule: "0 0 * * *", v1alpha1.AnnotationRestartSuspend: secret},
	} {
		deployments := kube.AppsV1().Deployments("default")
		deployment := harness.Create(t, deployments, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Annotations: annotations}})
		time.Sleep(100 * time.Millisecond)
		deployment.Annotations[v1alpha1.AnnotationRestartTimeZone] = secret + "/zone"
		harness.Update(t, deployments, deployment)
	}
	time.Sleep(30 * time.Second)
	// A node reports texts about each Pod, and what its command wrote at its end.
	pods := kube.CoreV1().Pods("default")
	list, err := pods.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i, pod := range list.Items {
		waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: secret, Message: secret}}
		harness.Create(t, kube.CoreV1().Events("default"), &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("event-", i), Namespace: "default"}, Type: corev1.EventTypeWarning, Reason: secret, Message: secret, LastTimestamp: metav1.Now(),
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: pod.Name, Namespace: "default", UID: pod.UID},
		})
		pod.Status = corev1.PodStatus{
			Phase: corev1.PodPending, Reason: secret, Message: secret,
			Conditions:        []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: secret, Message: secret}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, Image: secret, State: waiting}},
		}
		harness.UpdateStatus(t, pods, &pod)
		time.Sleep(10 * time.Second)
		ended := harness.Get(t, pods, pod.Name)
		ended.Status.Phase = corev1.PodFailed
		ended.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: secret, Message: secret}}
		harness.UpdateStatus(t, pods, ended)
	}
	at := harness.Get(t, ats, "rehearsed")
	at.Spec.Schedule, at.Spec.TimeZone = secret, ptr.To(secret)
	harness.Update(t, ats, at)
}
