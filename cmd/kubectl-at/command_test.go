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
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	kubefake "k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/fake"
)

var now = time.Date(2026, 3, 27, 14, 0, 0, 0, time.UTC)

// world is a command line with a fake server, which has the objects of fake clients.
type world struct {
	*cli
	stdout, stderr bytes.Buffer
	cnat           *fake.Clientset
	kube           *kubefake.Clientset
}

func newWorld(t *testing.T, ats ...runtime.Object) *world {
	t.Helper()
	t.Setenv("KUBECONFIG", "/none")
	w := &world{cnat: fake.NewSimpleClientset(ats...), kube: kubefake.NewSimpleClientset()}
	w.cli = &cli{
		IOStreams: genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &w.stdout, ErrOut: &w.stderr},
		config:    genericclioptions.NewConfigFlags(true),
		now:       func() time.Time { return now },
	}
	w.getter = fakeServer{getter{w.config}, w}
	return w
}

func (w *world) run(t *testing.T, args ...string) int {
	t.Helper()
	return w.execute(t.Context(), args)
}

func newAt(name string, change func(*v1alpha1.At)) *v1alpha1.At {
	at := &v1alpha1.At{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "uid", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		Spec:       v1alpha1.AtSpec{Schedule: "2026-03-28T10:12:00+01:00", RunSpec: v1alpha1.RunSpec{Command: "echo YAY"}},
		Status:     v1alpha1.AtStatus{Phase: v1alpha1.PhasePending},
	}
	if change != nil {
		change(at)
	}
	return at
}

func newCronAt(name string, change func(*v1alpha1.CronAt)) *v1alpha1.CronAt {
	cronAt := &v1alpha1.CronAt{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "cronat-uid", CreationTimestamp: metav1.NewTime(now.AddDate(0, 0, -1))},
		Spec: v1alpha1.CronAtSpec{
			Schedule: "0 3 * * *", TimeZone: ptr.To("Europe/Berlin"), ConcurrencyPolicy: v1alpha1.ForbidConcurrent,
			AtTemplate: v1alpha1.AtTemplateSpec{
				Metadata: v1alpha1.AtTemplateMeta{Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}},
				Spec:     v1alpha1.RunSpec{Command: "echo YAY", BackoffLimit: ptr.To[int32](2)},
			},
		},
		Status: v1alpha1.CronAtStatus{
			LastScheduleTime: ptr.To(metav1.NewTime(now.Add(-12 * time.Hour))), NextScheduleTime: ptr.To(metav1.NewTime(now.Add(12 * time.Hour))),
			ObservedSchedule: &v1alpha1.ObservedSchedule{Schedule: "0 3 * * *", TimeZone: "Europe/Berlin", Since: metav1.NewTime(now.AddDate(0, 0, -1))},
		},
	}
	if change != nil {
		change(cronAt)
	}
	return cronAt
}

// TestSlowLogin has a user who logs in for a minute before the first answer: now is when that has come.
func TestSlowLogin(t *testing.T) {
	for args, want := range map[string]string{
		"run-now at":         "runs Fri 27 Mar 2026 14:01:00 UTC, at once",
		"resume cronat/cron": "runs next Fri 27 Mar 2026 14:02:00 UTC, in 1m",
	} {
		t.Run(args, func(t *testing.T) {
			w := newWorld(t, newAt("at", nil), newCronAt("cron", func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Schedule, cronAt.Spec.TimeZone = "* * * * *", nil }))
			clock := now
			w.now = func() time.Time { return clock }
			w.cnat.PrependReactor("get", "*", func(kubetesting.Action) (bool, runtime.Object, error) {
				clock = now.Add(time.Minute)
				return false, nil, nil
			})
			if code := w.run(t, strings.Fields(args+" --tz=UTC")...); code != 0 || !strings.Contains(w.stderr.String(), want) {
				t.Errorf("exit code %d, stderr %q, want %q", code, w.stderr.String(), want)
			}
		})
	}
}

// TestOutput has output that is too long for a transcript: it looks for a part.
func TestOutput(t *testing.T) {
	for args, want := range map[string]string{
		"-h":                             "Exit codes:",
		"tomorrow 10:12 --help":          "kubectl at -n NAMESPACE",
		"__complete list --tz Europe/Be": "\nEurope/Berlin\n",
	} {
		w := newWorld(t)
		if code := w.run(t, strings.Fields(args)...); code != 0 || !strings.Contains(w.stdout.String(), want) {
			t.Errorf("%s: exit code %d, stdout %q, want %q", args, code, w.stdout.String(), want)
		}
	}
}

func TestZone(t *testing.T) {
	for tz, want := range map[string]string{"Europe/Berlin": "Europe/Berlin", ":Asia/Kolkata": "Asia/Kolkata", "UTC": "UTC", "": "Local", "/etc/localtime": "Local", "CET-1CEST": "", "Europe/Berln": "", "EST": "", ":MST": "", "CET": ""} {
		t.Setenv("TZ", tz)
		zone, err := (&cli{}).zone()
		if want == "" {
			if err == nil || !strings.Contains(err.Error(), "--tz") {
				t.Errorf("TZ=%s: got %v, %v, want an error that names --tz", tz, zone, err)
			}
		} else if got := nameOf(zone); err != nil || got != want {
			t.Errorf("TZ=%s: got %s, %v, want %s", tz, got, err, want)
		}
	}
}

// nameOf returns the name of a zone. That of time.Local depends on what $TZ was at its first
// use, in whatever test that was.
func nameOf(zone *time.Location) string {
	if zone == time.Local {
		return "Local"
	}
	return zone.String()
}

// TestUnanswered interrupts requests, or gets no answer.
func TestUnanswered(t *testing.T) {
	const post = `Post "http://fake/apis/cnat.programming-kubernetes.info/v1alpha1/namespaces/default/`
	const postAt, postCronAt = post + `ats?fieldManager=kubectl-at&fieldValidation=Strict": `, post + `cronats?fieldManager=kubectl-at&fieldValidation=Strict": `
	const at, cronAt = ": at/x may have been created: see kubectl get at/x\n", ": cronat/x may have been created: see kubectl get cronat/x\n"
	for name, tc := range map[string]struct {
		args        string
		err         error
		interrupted bool
		code        int
		stderr      string
	}{
		"interrupted":             {"now --name=x -- x", context.Canceled, true, exitInterrupted, "error: interrupted: " + postAt + "context canceled" + at},
		"a CronAt, interrupted":   {"every @daily --tz=UTC --name=x -- x", context.Canceled, true, exitInterrupted, "error: interrupted: " + postCronAt + "context canceled" + cronAt},
		"no answer":               {"now --name=x -- x", noAnswer(requestTimeout), false, exitError, "error: " + postAt + "the API server has not answered for 30s" + at},
		"cut":                     {"now --name=x -- x", io.ErrUnexpectedEOF, false, exitError, "error: " + postAt + "unexpected EOF" + at},
		"refused":                 {"now --name=x -- x", apierrors.NewBadRequest("no"), false, exitError, "error: no\n"},
		"not connected":           {"now --name=x -- x", errors.New("no such host"), false, exitError, "error: " + postAt + "no such host\n"},
		"moved":                   {"move x noon", context.Canceled, true, exitInterrupted, `error: interrupted: Patch "http://fake/apis/cnat.programming-kubernetes.info/v1alpha1/namespaces/default/ats/x?fieldManager=kubectl-at": context canceled: at/x may have been changed: see kubectl get at/x` + "\n"},
		"suspended, no answer":    {"suspend x", noAnswer(requestTimeout), false, exitError, `error: Patch "http://fake/apis/cnat.programming-kubernetes.info/v1alpha1/namespaces/default/ats/x?fieldManager=kubectl-at": the API server has not answered for 30s: at/x may have been changed: see kubectl get at/x` + "\n"},
		"removed":                 {"rm cronat/x", context.Canceled, true, exitInterrupted, `error: interrupted: Delete "http://fake/apis/cnat.programming-kubernetes.info/v1alpha1/namespaces/default/cronats/x": context canceled: cronat/x may have been deleted: see kubectl get cronat/x` + "\n"},
		"not removed":             {"rm x", apierrors.NewBadRequest("no"), false, exitError, "error: no\n"},
		"interrupted, not a POST": {"show x", context.Canceled, true, exitInterrupted, `error: interrupted: Get "http://fake/apis/cnat.programming-kubernetes.info/v1alpha1/namespaces/default/ats/x": context canceled` + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, newAt("x", nil), newCronAt("x", nil))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w.cnat.PrependReactor("*", "*", func(action kubetesting.Action) (bool, runtime.Object, error) {
				if action.GetVerb() == "get" && tc.args != "show x" {
					return false, nil, nil
				}
				if tc.interrupted {
					cancel()
				}
				return true, nil, tc.err
			})
			if code := w.execute(ctx, strings.Fields(tc.args)); code != tc.code || w.stderr.String() != tc.stderr {
				t.Errorf("exit code %d, want %d; stderr %q, want %q", code, tc.code, w.stderr.String(), tc.stderr)
			}
		})
	}
}

// inBubble returns a test that runs in virtual time.
func inBubble(test func(*testing.T)) func(*testing.T) {
	return func(t *testing.T) { synctest.Test(t, test) }
}

// TestTerminal checks that text from the cluster does not control the terminal, nor fakes
// another line.
func TestTerminal(t *testing.T) {
	const evil = "a\x1b]0;b\ac\rd\u009be\u202ef\ng"
	at := newAt("at", func(at *v1alpha1.At) {
		at.Spec.Command, at.Spec.Template = "", &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: evil}}}}
		at.Spec.Schedule, at.Spec.TimeZone = evil, ptr.To(evil)
		at.Status.Reason, at.Status.Message = evil, evil
		at.Annotations = map[string]string{v1alpha1.AnnotationRequester: evil}
	})
	cronAt := newCronAt("backup", func(cronAt *v1alpha1.CronAt) {
		cronAt.Spec.Schedule, cronAt.Spec.TimeZone, cronAt.Status.Message = evil, ptr.To(evil), evil
		cronAt.Spec.AtTemplate.Spec, cronAt.Annotations = at.Spec.RunSpec, at.Annotations
	})
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "at-pod", Labels: map[string]string{v1alpha1.LabelAtUID: "uid"}},
		Spec:       corev1.PodSpec{NodeName: evil, Containers: []corev1.Container{{}}},
	}
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x"}, InvolvedObject: corev1.ObjectReference{UID: "uid"}, Reason: evil, Message: evil}
	for _, args := range []string{"list -o wide", "show at", "show cronat/backup", "logs at", "rm at", "__complete rm ''"} {
		t.Run(args, func(t *testing.T) {
			w := newWorld(t, at, cronAt)
			w.kube = kubefake.NewSimpleClientset(pod, event)
			w.cnat.PrependReactor("delete", "ats", func(kubetesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New(evil) })
			w.run(t, strings.Split(strings.ReplaceAll(args, "''", ""), " ")...)
			out := w.stdout.String() + w.stderr.String()
			if strings.ContainsAny(out, "\x1b\a\r\u009b\u202e") || !strings.Contains(out, "c") {
				t.Errorf("got %q", out)
			}
		})
	}
}

func TestKubectl(t *testing.T) {
	w := newWorld(t)
	if err := w.command().ParseFlags([]string{"--context", "a&b", "-n=x", "--kubeconfig=/none"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"kubectl at --kubeconfig=/none --context='a&b' -n x rm a-n -f",
		"kubectl at --kubeconfig=/none --context='a&b' list -A",
		"kubectl patch --kubeconfig=/none --context='a&b' cronjob/a -n y",
	} {
		verb, rest, _ := strings.Cut(strings.TrimPrefix(want, "kubectl "), " ")
		if got := w.kubectl("%s %s", verb, strings.TrimPrefix(strings.TrimPrefix(rest, "--kubeconfig=/none --context='a&b' "), "-n x ")); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

var errRefused = &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}

// TestAway uses an API server that refuses requests, at first or permanently.
func TestAway(t *testing.T) {
	unauthorized := apierrors.NewUnauthorized("no")
	const gone = "error: at/at was deleted before it ended\n"
	const get = `Get "http://fake/apis/cnat.programming-kubernetes.info/v1alpha1/namespaces/default/ats?fieldSelector=metadata.name%3Dat": `
	away := func(err error) string { return fmt.Sprintf("The API server does not respond: %v; retrying\n", err) }
	for name, tc := range map[string]struct {
		fails int // requests
		err   error
		// expectations
		lists  int
		stderr string // the beginning
	}{
		"no connection for long":  {60, errRefused, 61, away(errors.New(get+errRefused.Error())) + gone},
		"no etcd":                 {60, apierrors.NewServiceUnavailable("no"), 61, away(errors.New("no")) + gone},
		"credentials are renewed": {4, unauthorized, 5, away(unauthorized) + gone},
		"credentials are refused": {60, unauthorized, 5, away(unauthorized) + "error: watch at/at: no\nThe cluster does not accept your credentials"},
		"a plugin fails":          {60, errors.New("getting credentials: exit status 1"), 1, "error: watch at/at: " + get + "getting credentials: exit status 1\n"},
	} {
		t.Run(name, inBubble(func(t *testing.T) {
			t.Helper()
			w := newWorld(t)
			lists := 0
			w.cnat.PrependReactor("list", "ats", func(kubetesting.Action) (bool, runtime.Object, error) {
				lists++
				if lists <= tc.fails {
					return true, nil, tc.err
				}
				return true, &v1alpha1.AtList{}, nil
			})
			began := time.Now()
			w.now = func() time.Time { return now.Add(time.Since(began)) }
			code := w.run(t, "now", "--name=at", "--wait", "--", "x")
			_, stderr, _ := strings.Cut(w.stderr.String(), "\n")
			if code != exitError || lists != tc.lists || !strings.HasPrefix(stderr, tc.stderr) {
				t.Errorf("exit code %d, %d lists, want %d; stderr %q, want %q", code, lists, tc.lists, stderr, tc.stderr)
			}
		}))
	}
}
