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
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestMove moves Ats. On Friday at 14:00 UTC, a and b are due on Saturday at 02:00 and 04:00 in Berlin.
func TestMove(t *testing.T) {
	inBerlin := func(app, schedule string) func(*v1alpha1.At) {
		return func(at *v1alpha1.At) {
			at.Labels = map[string]string{"app": app}
			at.Spec.Schedule, at.Spec.TimeZone = schedule, ptr.To("Europe/Berlin")
		}
	}
	const past = `is in the past, because it is `
	for name, tc := range map[string]struct {
		args string
		// expectations
		after  map[string]string // the schedules that change
		code   int
		stderr string // at its beginning
	}{
		"an amount counts from its time":        {args: "a + 1 hour", after: map[string]string{"a": "2026-03-28T03:00:00"}},
		"an amount that is joined":              {args: "a +90m", after: map[string]string{"a": "2026-03-28T03:30:00"}},
		"earlier":                               {args: "a - 30 minutes", after: map[string]string{"a": "2026-03-28T01:30:00"}},
		"earlier, joined":                       {args: "a -30m", after: map[string]string{"a": "2026-03-28T01:30:00"}},
		"a week later":                          {args: "a + 1 week", after: map[string]string{"a": "2026-04-04T02:00:00"}},
		"an amount with now":                    {args: "a now + 1 hour", after: map[string]string{"a": "2026-03-27T16:00:00"}},
		"in":                                    {args: "a in 1 hour", after: map[string]string{"a": "2026-03-27T16:00:00"}},
		"a weekday":                             {args: "a monday", after: map[string]string{"a": "2026-03-30T02:00:00"}},
		"tomorrow":                              {args: "b tomorrow", after: map[string]string{"b": "2026-03-28T04:00:00"}},
		"a date":                                {args: "a 24 dec", after: map[string]string{"a": "2026-12-24T02:00:00"}},
		"a time of day":                         {args: "a 11:30", after: map[string]string{"a": "2026-03-28T11:30:00"}},
		"now":                                   {args: "a now", after: map[string]string{"a": "2026-03-27T15:00:00"}},
		"into the past":                         {args: "a - 1 day", code: exitUsage, stderr: `error: at/a: "- 1 day" ` + past + `2026-03-27T02:00:00+01:00: write a time in the future, or "now"` + "\n- 1 day\n^^^^^^^\n"},
		"today, which has passed":               {args: "a today", code: exitUsage, stderr: `error: at/a: "today" ` + past},
		"several":                               {args: "a b --to=monday", after: map[string]string{"a": "2026-03-30T02:00:00", "b": "2026-03-30T04:00:00"}},
		"several, an amount":                    {args: "b at/a --to -30m", after: map[string]string{"a": "2026-03-28T01:30:00", "b": "2026-03-28T03:30:00"}},
		"one twice":                             {args: "a at/a --to +1h", after: map[string]string{"a": "2026-03-28T03:00:00"}},
		"what has no time":                      {args: "broken + 1 hour", code: exitError, stderr: "error: at/broken has no time from which it could be moved: the clocks in Europe/Berlin skip 2026-03-29T02:30:00: omit spec.timeZone and set spec.schedule to 2026-03-29T03:30:00+02:00 or 2026-03-29T01:30:00+01:00, with kubectl edit at broken\n"},
		"those of labels":                       {args: "-l app=x --to=monday", after: map[string]string{"a": "2026-03-30T02:00:00"}},
		"those due before":                      {args: "--due-before=tomorrow_03:00 --to=monday", after: map[string]string{"a": "2026-03-30T02:00:00"}},
		"those of labels due before":            {args: "-l app=y --due-before=tomorrow_03:00 --to monday", stderr: "No At is moved: the flags select none that has not started.\n"},
		"names with labels":                     {args: "a -l app=x --to monday", code: exitUsage, stderr: "error: write kubectl at move NAME TIME [flags]: see kubectl at move --help\n"},
		"names without --to":                    {args: "a b monday", code: exitUsage, stderr: `error: at/a: "b" is not understood: write a time`},
		"a word that is no time":                {args: "a soon", code: exitUsage, stderr: `error: at/a: "soon" is not understood: write a time`},
		"no time":                               {args: "a", code: exitUsage, stderr: "error: write kubectl at move NAME TIME [flags]: see kubectl at move --help\n"},
		"no time for labels":                    {args: "-l app=x", code: exitUsage, stderr: "error: write kubectl at move NAME TIME [flags]: see kubectl at move --help\n"},
		"no name":                               {args: "--to monday", code: exitUsage, stderr: "error: write kubectl at move NAME TIME [flags]: see kubectl at move --help\n"},
		"bad labels":                            {args: "-l a=b=c --to=monday", code: exitUsage, stderr: `error: --selector is "a=b=c"`},
		"a bad limit":                           {args: "--due-before=tomorow --to=monday", code: exitUsage, stderr: `error: --due-before: "tomorow" is not understood: write a time`},
		"all or none: one is running":           {args: "a running --to monday", code: exitError, stderr: "error: at/running has already started"},
		"all or none: one would be in the past": {args: "b a --to -12h", code: exitUsage, stderr: `error: at/a: "-12h" ` + past},
		"all or none: one does not exist":       {args: "a none --to monday", code: exitError, stderr: `error: ats.cnat.programming-kubernetes.info "none" not found`},
	} {
		t.Run(name, func(t *testing.T) {
			ats := []runtime.Object{
				newAt("a", inBerlin("x", "2026-03-28T02:00:00")), newAt("b", inBerlin("y", "2026-03-28T04:00:00")),
				newAt("broken", inBerlin("z", "2026-03-29T02:30:00")),
				newAt("running", func(at *v1alpha1.At) {
					inBerlin("x", "2026-03-27T14:00:00")(at)
					at.Status.Phase = v1alpha1.PhaseRunning
				}),
				newAt("done", func(at *v1alpha1.At) { inBerlin("x", "2026-03-27T14:00:00")(at); at.Status.Phase = v1alpha1.PhaseDone }),
				newAt("parent-n", func(at *v1alpha1.At) {
					inBerlin("x", "2026-03-28T02:00:00")(at)
					at.Spec.Node = "n"
					at.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(newAt("parent", nil), v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.AtKind))}
				}),
			}
			w := newWorld(t, "", ats...)
			args := []string{"move"}
			for _, arg := range strings.Fields(tc.args) {
				args = append(args, strings.ReplaceAll(arg, "_", " "))
			}
			if code := w.run(t, args...); code != tc.code || !strings.HasPrefix(w.stderr.String(), tc.stderr) {
				t.Errorf("exit code %d, want %d; stderr %q, want %q", code, tc.code, w.stderr.String(), tc.stderr)
			}
			for _, before := range ats {
				want := before.(*v1alpha1.At)
				if moved := tc.after[want.Name]; moved != "" {
					want.Spec.Schedule = moved
				}
				got, err := w.cnat.CnatV1alpha1().Ats("default").Get(t.Context(), want.Name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			}
		})
	}
}

// TestMoveSays checks that the old and the new time are printed.
func TestMoveSays(t *testing.T) {
	const was = "was Sat 28 Mar 2026 09:12:00 UTC (Sat 28 Mar 2026 10:12:00 +01:00), in 19h12m"
	for args, want := range map[string]string{
		"move at 11:30 --tz=UTC": was + "\nruns Sat 28 Mar 2026 11:30:00 UTC, in 21h30m\n",
		"move at midnight":       "error: at/at: \"midnight\" begins one day and ends another: write 00:00 and the date\nmidnight\n^^^^^^^^\n",
		"move at suspended --to=+1h --tz=UTC": "at/at " + was + "\nat/at runs Sat 28 Mar 2026 10:12:00 UTC, in 20h12m\n" +
			"at/suspended " + was + "\nat/suspended suspended, due Sat 28 Mar 2026 10:12:00 UTC: it does not start until kubectl at resume suspended\n",
		"run-now at --tz=UTC": was + ": this uses up its planned run; kubectl at now --from at/at is an additional one\nruns Fri 27 Mar 2026 14:00:00 UTC, at once\n",
	} {
		w := newWorld(t, "", newAt("at", nil), newAt("suspended", func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) }))
		if w.run(t, strings.Fields(args)...); w.stderr.String() != want {
			t.Errorf("%s: got %q, want %q", args, w.stderr.String(), want)
		}
	}
}

// TestMoveConflict moves an At by an amount while another user moves it: the amount counts from the time that it replaces.
func TestMoveConflict(t *testing.T) {
	w := newWorld(t, "", newAt("at", nil))
	first := true
	w.cnat.PrependReactor("patch", "ats", func(kubetesting.Action) (bool, runtime.Object, error) {
		if !first {
			return false, nil, nil
		}
		first = false
		moved := newAt("at", func(at *v1alpha1.At) { at.Spec.Schedule = "2026-03-30T10:12:00+01:00" })
		if err := w.cnat.Tracker().Update(v1alpha1.SchemeGroupVersion.WithResource("ats"), moved, "default"); err != nil {
			t.Error(err)
		}
		return true, nil, apierrors.NewConflict(v1alpha1.Resource("ats"), "at", nil)
	})
	code := w.run(t, "move", "at", "+", "1", "hour", "--tz=UTC")
	at, err := w.cnat.CnatV1alpha1().Ats("default").Get(t.Context(), "at", metav1.GetOptions{})
	if code != 0 || err != nil || at.Spec.Schedule != "2026-03-30T10:12:00Z" {
		t.Errorf("exit code %d, error %v, stderr %q, spec %v", code, err, w.stderr.String(), at.Spec)
	}
}

// TestMoveFails moves two Ats of which the API server refuses the first.
func TestMoveFails(t *testing.T) {
	w := newWorld(t, "", newAt("a", nil), newAt("b", nil))
	w.cnat.PrependReactor("patch", "ats", func(action kubetesting.Action) (bool, runtime.Object, error) {
		if action.(kubetesting.PatchAction).GetName() == "b" {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(v1alpha1.Resource("ats"), "a", nil)
	})
	code := w.run(t, "move", "a", "b", "--to=now+2h")
	if stdout := "at.cnat.programming-kubernetes.info/b moved\n"; code != exitError || w.stdout.String() != stdout || !strings.Contains(w.stderr.String(), `"a" is forbidden`) {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, w.stdout.String(), w.stderr.String())
	}
}

// TestMoveTwice moves an At to a time that the clocks of its zone show twice.
func TestMoveTwice(t *testing.T) {
	w := newWorld(t, "", newAt("at", func(at *v1alpha1.At) {
		at.Spec.Schedule, at.Spec.TimeZone = "2026-10-25T10:12:00", ptr.To("Europe/Berlin")
	}))
	w.now = func() time.Time { return time.Date(2026, 10, 24, 23, 30, 0, 0, time.UTC) }
	code := w.run(t, "move", "at", "now + 1 hour")
	at, err := w.cnat.CnatV1alpha1().Ats("default").Get(t.Context(), "at", metav1.GetOptions{})
	if code != 0 || err != nil || at.Spec.Schedule != "2026-10-25T02:30:00+02:00" || at.Spec.TimeZone != nil {
		t.Errorf("exit code %d, error %v, spec %v", code, err, at.Spec)
	}
}
