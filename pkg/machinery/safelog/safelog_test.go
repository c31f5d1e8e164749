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

package safelog_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/queue"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/safelog"
)

const secret = "hunter2"

// TestLogger logs what may have a secret in each way, as an error and as a value.
func TestLogger(t *testing.T) {
	denied := apierrors.NewForbidden(corev1.Resource("pods"), "at-pod", errors.New(secret))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "at-pod"}, Spec: corev1.PodSpec{NodeName: secret}}
	for name, tc := range map[string]struct {
		value any
		want  string
	}{
		"nothing":                {nil, "<nil>"},
		"this program's error":   {errors.New("no result"), "no result"},
		"an answer":              {denied, "403 Forbidden"},
		"an answer, wrapped":     {fmt.Errorf("create Pod: %w; see there", denied), "create Pod: 403 Forbidden; see there"},
		"two answers":            {fmt.Errorf("%w; and %w", denied, denied), "403 Forbidden; and 403 Forbidden"},
		"joined answers":         {errors.Join(denied, errors.New("no result")), "403 Forbidden no result"},
		"an aggregate":           {utilerrors.NewAggregate([]error{denied}), "403 Forbidden"},
		"hidden in another text": {hiding{denied}, "403 Forbidden"},
		"blocked":                {answer.Blocked("InvalidSchedule", errors.New(secret)), "InvalidSchedule"},
		"blocked by an answer":   {answer.Blocked("PodRefused", fmt.Errorf("create Pod: %w", denied)), "PodRefused: create Pod: 403 Forbidden"},
		"a webhook's answer": {
			&apierrors.StatusError{ErrStatus: metav1.Status{Code: 418, Reason: secret, Message: secret, Details: &metav1.StatusDetails{Name: secret}}}, "418 I'm a teapot",
		},
		"without a code":    {&apierrors.StatusError{ErrStatus: metav1.Status{Message: secret}}, "0"},
		"a panic":           {queue.Recovered(func() error { panic(secret) }), "panic: string"},
		"a runtime error":   {queue.Recovered(func() error { var none []error; return none[len(none)] }), "panic: runtime error: index out of range"},
		"an object":         {pod, "default/at-pod"},
		"a reference":       {klog.KObj(pod), "default/at-pod"},
		"objects":           {[]*corev1.Pod{pod}, "[]*v1.Pod"},
		"a list":            {&corev1.PodList{Items: []corev1.Pod{*pod}}, "*v1.PodList"},
		"an event":          {watch.Event{Object: pod}, "watch.Event"},
		"a map":             {pod.Spec.NodeSelector, "map[string]string"},
		"a number":          {17, "17"},
		"a duration":        {time.Second, "1s"},
		"a name":            {"ats", "ats"},
		"a status's reason": {metav1.StatusReasonConflict, "Conflict"},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			logger := safelog.New(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))))
			logger.Info("info", "value", tc.value)
			logger.WithName("name").WithValues("value", tc.value).WithCallDepth(0).Info("with a value")
			if err, ok := tc.value.(error); ok {
				logger.Error(err, "error")
			}
			for line := range strings.Lines(log.String()) {
				unquoted := strings.ReplaceAll(line, `\"`, `"`)
				if strings.Contains(line, secret) || !strings.Contains(unquoted, tc.want) && tc.value != nil || !strings.Contains(line, "safelog_test.go:") {
					t.Errorf("logged %s, want %s", line, tc.want)
				}
			}
		})
	}
}

// hiding is an error whose text differs from that of its cause.
type hiding struct{ cause error }

func (h hiding) Error() string { return strings.ToUpper(secret) + h.cause.Error()[:5] }
func (h hiding) Unwrap() error { return h.cause }
