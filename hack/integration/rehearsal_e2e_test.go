//go:build e2e

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
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestRehearsal rehearses what a node can start. Nothing of it runs before its time, and how
// it runs then shows what a rehearsal does not find out.
func TestRehearsal(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	allowNodeAccess(t, namespace)
	ran := t.TempDir() // has a file for each container, hook and probe that has run
	const (
		touch   = `command: [sh, -c, "echo > /ran/`
		mounted = "volumeMounts: [{name: ran, mountPath: /ran}]"
	)
	table := map[string]struct {
		spec string
		// expectations
		rehearsed string // the reason of condition Rehearsed; Passed if empty
		reason    string // of the end; Completed if empty
	}{
		"command": {spec: `command: "true"`},
		"nodes":   {spec: `command: "true", nodes: {selector: {}}`},
		"each kind of container": {spec: `template: {spec: {
			terminationGracePeriodSeconds: 1, volumes: [{name: ran, hostPath: {path: RAN}}],
			initContainers: [
				{name: init, image: busybox:1.37.0, ` + mounted + ", " + touch + `init"]},
				{name: sidecar, image: busybox:1.37.0, restartPolicy: Always, ` + mounted + ", " + touch + `sidecar; exec sleep 3600"]}],
			containers: [{name: main, image: busybox:1.37.0, ` + mounted + `,
				command: [sh, -c, "echo > /ran/command; until [ -e /ran/sidecar ] && [ -e /ran/hook ] && [ -e /ran/probe ]; do sleep 0.1; done"],
				lifecycle: {postStart: {exec: {` + touch + `hook"]}}}, readinessProbe: {periodSeconds: 1, exec: {` + touch + `probe"]}}}]}}`},
		"what an init container makes": {spec: `template: {spec: {
			volumes: [{name: ran, hostPath: {path: RAN}}],
			initContainers: [{name: init, image: busybox:1.37.0, ` + mounted + `, command: [sh, -c, "mkdir /ran/dir && echo > /ran/made"]}],
			containers: [{name: main, image: busybox:1.37.0, workingDir: /ran/dir, command: [sh, -c, "test -f /etc/made && pwd | grep /ran/dir"],
				volumeMounts: [{name: ran, mountPath: /ran}, {name: ran, mountPath: /etc/made, subPath: made}]}]}}`},
		"an image with the program": {
			spec:      `template: {spec: {containers: [{name: main, image: "IMAGE", imagePullPolicy: Never, command: [/none]}]}}`,
			rehearsed: v1alpha1.ReasonContainerStarted, reason: v1alpha1.ReasonCommandFailed,
		},
	}
	image := "localhost/with-the-program:" + namespace
	in := strings.NewReplacer("RAN", ran, "IMAGE", image)
	ats := map[string]*v1alpha1.At{}
	for name, tc := range table {
		kubectl(t, fmt.Sprintf("{apiVersion: %s, kind: At, metadata: {name: %s}, spec: {schedule: %q, %s}}",
			v1alpha1.SchemeGroupVersion, dashes(name), time.Now().Add(time.Hour).UTC().Format(time.RFC3339), in.Replace(tc.spec)), "create", "-n", namespace, "-f", "-")
		ats[name] = waitPhase(t, namespace, dashes(name), v1alpha1.PhasePending)
	}
	program := filepath.Join(t.TempDir(), "cnat-rehearsal-"+string(ats["an image with the program"].UID))
	if err := os.Symlink("/bin/busybox", program); err != nil {
		t.Fatal(err)
	}
	loadImage(t, image+"="+program)
	kubectl(t, fmt.Sprintf(`
{apiVersion: %[1]s, kind: At, metadata: {name: soon}, spec: {schedule: %[2]q, command: "true", rehearse: true}}
---
{apiVersion: %[1]s, kind: CronAt, metadata: {name: cronat}, spec: {schedule: 0 0 1 1 *, atTemplate: {spec: {command: "true", rehearse: true}}}}
`, v1alpha1.SchemeGroupVersion, time.Now().Add(10*time.Second).UTC().Format(time.RFC3339)), "create", "-n", namespace, "-f", "-")
	for name := range table {
		patchAt(t, namespace, dashes(name), `{"spec":{"rehearse":true}}`)
	}

	for name, tc := range table {
		t.Run(name, func(t *testing.T) {
			at := waitAt(t, namespace, dashes(name), "to be rehearsed", func(at *v1alpha1.At) bool { return at.Status.RehearsedAt != nil })
			rehearsed := meta.FindStatusCondition(at.Status.Conditions, v1alpha1.ConditionRehearsed)
			if want := cmp.Or(tc.rehearsed, v1alpha1.ReasonPassed); rehearsed == nil || rehearsed.Reason != want || meta.IsStatusConditionTrue(at.Status.Conditions, v1alpha1.ConditionBlocked) {
				t.Errorf("conditions %+v, want Rehearsed with reason %s, and not Blocked", at.Status.Conditions, want)
			}
		})
	}
	waitFor(t, namespace, v1alpha1.ConditionRehearsed, "cronat/cronat")
	waitGone(t, namespace, "pods -l "+v1alpha1.LabelRehearsalOf)
	if files, err := os.ReadDir(ran); err != nil || len(files) > 0 {
		t.Errorf("rehearsals have run %v, %v", files, err)
	}
	waitFor(t, namespace, v1alpha1.ConditionComplete, "at/soon")
	wantCreated(t, namespace, "pods", "soon-pod") // besides the rehearsals

	for name := range table {
		runNow(t, namespace, dashes(name))
	}
	for name, tc := range table {
		t.Run(name+" at its time", func(t *testing.T) {
			at := waitPhase(t, namespace, dashes(name), v1alpha1.PhaseDone)
			if tc.reason == "" {
				wantEnd(t, at, v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
				return
			}
			wantEnd(t, at, v1alpha1.ConditionFailed, tc.reason)
		})
	}
	for _, name := range []string{"init", "sidecar", "command", "hook", "probe"} {
		if _, err := os.Stat(filepath.Join(ran, name)); err != nil {
			t.Errorf("the run has not run %s: %v", name, err)
		}
	}
}
