//go:build integration

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
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	"programming-kubernetes.info/cnat-controller/pkg/freeze"
	"programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/scheme"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/zones"
)

// TestObjects applies the documents of each golden file one after the other. The last one of an invalid file must be
// refused with the message in the file's first line. The controller must be able to read all others.
func TestObjects(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob(root + "/pkg/apis/cnat/v1alpha1/testdata/*/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, path := range paths {
		isInvalid := filepath.Base(filepath.Dir(path)) == "invalid"
		t.Run(strings.TrimSuffix(filepath.Base(path), ".yaml"), func(t *testing.T) {
			t.Parallel()
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			objects, err := decode[*unstructured.Unstructured](string(content))
			if err != nil {
				t.Fatal(err)
			}
			first, _, _ := strings.Cut(string(content), "\n")
			want, hasWant := strings.CutPrefix(first, "# want: ")
			if hasWant != isInvalid {
				t.Fatal("the first line of a file must be # want: MESSAGE if it is invalid")
			}
			namespace := newNamespace(t)
			for i, object := range objects {
				err := writeGolden(t, namespace, object)
				if isInvalid && i == len(objects)-1 {
					if err == nil || !strings.Contains(withoutValues(err.Error()), withoutValues(want)) {
						t.Errorf("got:  %v\nwant: %s", err, want)
					}
					break
				}
				if err != nil {
					t.Fatalf("document %d: %v", i, err)
				}
				if err := readGolden(object); err != nil {
					t.Errorf("the CRD accepts an object that the controller cannot read: %v", err)
				}
			}
		})
	}
}

// readGolden reads an object as the controller does.
func readGolden(object *unstructured.Unstructured) error {
	typed, err := scheme.Scheme.New(object.GroupVersionKind())
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed)
	}
	if err != nil {
		return err
	}
	switch typed := typed.(type) {
	case *v1alpha1.CronAt:
		return cronplan.Validate(&typed.Spec)
	case *v1alpha1.Freeze:
		_, err = freeze.New(typed)
	case *v1alpha1.At:
		_, err = plan.Instant(&typed.Spec)
	}
	return err
}

// TestCronSchedules checks that the CRD accepts the schedules that the controller accepts.
func TestCronSchedules(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	for _, schedule := range []string{
		"0 3 * * *", " 0\t3  * * * ", "*/15,7 0-6/2 ? JAN-mar Mon", "00 09 01 01 06", "5/20 * * * MON-5", "59 23 31 12 6", "*/90 */9999 * * *", "0 0 * * sun-SAT",
		"@annually", "@every 60s", "@every 1m", "@every 1h30m0.5s", "@every 2562047h",
		"0 3 * *", "0 0 3 * * *", "XYZ", "@reboot", "@Daily", "@daily ", "@ 1 2 3 4",
		"60 * * * *", "*-5 * * * *", "1,,2 * * * *", ",1 * * * *", "1, * * * *", "+5 * * * *", "-5 * * * *", "5- * * * *", "1-2-3 * * * *", "*/0 * * * *", "*/5/5 * * * *", "005 * * * *",
		"0 24 * * *", "0 0 0 * *", "0 0 32 * *", "0 0 L * *", "0 0 15W * *", "0 0 1 0 *", "0 0 1 13 *", "0 0 MON * *", "0 0 * * 7", "0 0 * * 1#2", "0 0 * * JAN",
		"5-3 * * * *", "0 0 * DEC-JAN *", "0 0 * * fri-Mon", "0 0 * * 5-MON", "0 0 * * SAT-1",
		"@every 59s", "@every 0s", "@every 59.9s", "@every 100ms", "@every -5m", "@every 5", "@every", "@every  90m", "@every 2562048h", "@every 999999999999h",
	} {
		cronAt := newCronAt(namespace, schedule)
		_, err := cnatClient.CnatV1alpha1().CronAts(namespace).Create(t.Context(), cronAt, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		want := cronplan.Validate(&cronAt.Spec)
		if err != nil && !apierrors.IsInvalid(err) || (err == nil) != (want == nil) {
			t.Errorf("%q: the API server says %v, and the controller %v", schedule, err, want)
		}
	}
}

// TestTimeZones checks that the CRD accepts all time zones that the controller knows.
func TestTimeZones(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	names := zones.Names()
	workqueue.ParallelizeUntil(t.Context(), 16, len(names), func(i int) {
		cronAt := newCronAt(namespace, "@daily")
		cronAt.Spec.TimeZone = &names[i]
		if _, err := cnatClient.CnatV1alpha1().CronAts(namespace).Create(t.Context(), cronAt, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			t.Error(err)
		}
	})
}

var invalidValue = regexp.MustCompile(`(Invalid value: )("(\\.|[^"\\])*"|-?[0-9]+)(: |$)`)

// withoutValues removes the refused values from a message: API servers before 1.35 print
// the type of the field instead.
func withoutValues(message string) string { return invalidValue.ReplaceAllString(message, "$1") }

// TestListLength tries the longest command and the longest lists of a template, and one element more.
func TestListLength(t *testing.T) {
	t.Parallel()
	ats := cnatClient.CnatV1alpha1().Ats(newNamespace(t))
	list := func(name string, more int) *v1alpha1.At {
		at := newAt("", name, time.Now().AddDate(1, 0, 0), "")
		at.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			Containers:  []corev1.Container{{Name: "command", Image: "image", Env: slices.Repeat([]corev1.EnvVar{{Name: "A"}}, 1024+more)}},
			Tolerations: slices.Repeat([]corev1.Toleration{{}}, 64+more),
		}}
		return at
	}
	// The character has the maximum number of bytes.
	command := strings.Repeat("🌍", 32767)
	for _, tc := range []struct {
		at   *v1alpha1.At
		want []string // of the refusal
	}{
		{newAt("", "command", time.Now().AddDate(1, 0, 0), command), nil},
		{newAt("", "longer", time.Now().AddDate(1, 0, 0), command+"a"), []string{"spec.command: Too long"}},
		{list("lists", 0), nil},
		{list("longer", 1), []string{
			"spec.template.spec.containers[0].env: Too many: 1025: must have at most 1024 items",
			"spec.template.spec.tolerations: Too many: 65: must have at most 64 items",
		}},
	} {
		_, err := ats.Create(t.Context(), tc.at, metav1.CreateOptions{})
		if (err == nil) != (tc.want == nil) {
			t.Errorf("%s: got %v, want %q", tc.at.Name, err, tc.want)
		}
		for _, want := range tc.want {
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("got %v, want %s", err, want)
			}
		}
	}
}

// TestColumns checks what kubectl shows: the phase of an At that no controller has processed, and the reason
// for its state. An At is of category all.
func TestColumns(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	at := newAt(namespace, "skipped", time.Now(), "true")
	at.Spec.Schedule, at.Spec.TimeZone = "2026-03-29T02:30:00", ptr.To("Europe/Berlin")
	createAt(t, at)
	// What kubectl has cached may be from before the CRD.
	wantOutput(t, kubectl(t, "", "get", "all", "--cache-dir="+t.TempDir(), "-n", namespace), `skipped +2026-03-29T02:30:00 +Europe/Berlin +PENDING `)
	startController(t, namespace)
	waitBlockedAt(t, namespace, "skipped", v1alpha1.ReasonInvalidSchedule)
	wantOutput(t, kubectl(t, "", "get", "at", "-n", namespace, "-o", "wide"), `REQUESTER +MESSAGE\n.* skip 2026-03-29T02:30:00: omit`)
	wantOutput(t, kubectl(t, "", "get", "at", "-n", namespace), `^NAME +SCHEDULE +TIMEZONE +PHASE +REASON +EXIT +NODES +AGE\nskipped +2026-03-29T02:30:00 +Europe/Berlin +PENDING +InvalidSchedule `)
}

// writeGolden writes a golden document with the strictness of kubectl apply: the status
// if it has one, or else everything else.
func writeGolden(t *testing.T, namespace string, object *unstructured.Unstructured) error {
	t.Helper()
	client := clientOf(namespace, strings.ToLower(object.GetKind())+"s")
	object = object.DeepCopy()
	status, hasStatus := object.Object["status"]
	delete(object.Object, "status")

	existing, err := client.Get(t.Context(), object.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		existing, err = client.Create(t.Context(), object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	case err == nil && !hasStatus:
		object.SetResourceVersion(existing.GetResourceVersion())
		existing, err = client.Update(t.Context(), object, metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict})
	}
	if err != nil || !hasStatus {
		return err
	}
	existing.Object["status"] = status
	_, err = client.UpdateStatus(t.Context(), existing, metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict})
	return err
}
