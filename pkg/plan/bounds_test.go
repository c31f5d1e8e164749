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

package plan_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/restartannotation/annotationplan"
)

// fill sets each field of a value: texts are the given one, lists and maps have the given number
// of entries, and those in them one.
func fill(value reflect.Value, text string, entries int) {
	switch value.Kind() {
	case reflect.Pointer:
		value.Set(reflect.New(value.Type().Elem()))
		fill(value.Elem(), text, entries)
	case reflect.Struct:
		if value.Type() == reflect.TypeFor[time.Time]() {
			value.Set(reflect.ValueOf(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)))
			return
		}
		for i := range value.NumField() {
			if field := value.Field(i); field.CanSet() {
				fill(field, text, entries)
			}
		}
	case reflect.Slice:
		value.Set(reflect.MakeSlice(value.Type(), entries, entries))
		for i := range entries {
			fill(value.Index(i), text, 1)
		}
	case reflect.Map:
		value.Set(reflect.MakeMap(value.Type()))
		key, element := reflect.New(value.Type().Key()).Elem(), reflect.New(value.Type().Elem()).Elem()
		fill(key, text, 1)
		fill(element, text, 1)
		value.SetMapIndex(key, element)
	case reflect.String:
		value.SetString(text)
	case reflect.Bool:
		value.SetBool(true)
	case reflect.Int32, reflect.Int64:
		value.SetInt(1)
	case reflect.Uint8:
		value.SetUint(1)
	}
}

// filled returns an object of which all fields are filled.
func filled[T any](text string, entries int) *T {
	object := new(T)
	fill(reflect.ValueOf(object).Elem(), text, entries)
	return object
}

// TestKeptBounds fills all fields of each kind of object that is cached and that users write, also those that the API server
// would not admit: with long texts, or with very many short ones. There is nothing that is kept
// without a bound, and no text is cut within a character.
func TestKeptBounds(t *testing.T) {
	for _, tc := range []struct {
		text           string
		entries, bound int
	}{
		{strings.Repeat("x", 300_000), 50, 256 << 10}, {strings.Repeat("é", 150_000), 2, 256 << 10}, {"x" + strings.Repeat("€", 100_000), 2, 256 << 10},
		{"a short text, as a name", 3000, 64 << 10},
	} {
		text, entries := tc.text, tc.entries
		at, ended, child := filled[v1alpha1.At](text, entries), filled[v1alpha1.At](text, entries), filled[v1alpha1.At](text, entries)
		ended.Status.Phase, child.Status.Phase = v1alpha1.PhaseDone, v1alpha1.PhaseDone
		child.OwnerReferences[0] = metav1.OwnerReference{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: v1alpha1.AtKind, Name: "parent", UID: "uid", Controller: new(bool)}
		*child.OwnerReferences[0].Controller = true
		workload := filled[metav1.PartialObjectMetadata](text, entries)
		workload.Name, workload.Namespace, workload.UID, workload.ResourceVersion = "", "", "", "" // The API server itself bounds them.
		workload.Annotations = map[string]string{v1alpha1.AnnotationRestartSchedule: text, v1alpha1.AnnotationRestartTimeZone: text, v1alpha1.AnnotationRestartSuspend: text}
		for kind, kept := range map[string]any{
			"At": plan.KeepAt(at), "ended At": plan.KeepAt(ended), "ended child": plan.KeepAt(child), "Pod": plan.KeepPod(filled[corev1.Pod](text, entries)),
			"CronAt":   cronplan.KeepCronAt(filled[v1alpha1.CronAt](text, entries)),
			"workload": annotationplan.Keep(workload),
		} {
			content, err := json.Marshal(kept)
			if err != nil {
				t.Fatal(err)
			}
			if len(content) > tc.bound {
				t.Errorf("%d bytes of the %s are kept, want at most %d", len(content), kind, tc.bound)
			}
			if !utf8.Valid(content) || strings.Contains(string(content), `\ufffd`) {
				t.Errorf("a text of the %s is cut within a character", kind)
			}
		}
		if kept := plan.KeepAt(ended); len(kept.Status.Message+kept.Status.Conditions[0].Message) > 10 {
			t.Errorf("the messages of an ended At are kept: %.100s", kept.Status.Message)
		}
		if at.Status.Message != text {
			t.Error("the At itself has changed")
		}
	}
}

// TestKeptMessages has all messages that the controller writes, of the greatest length. They are kept
// whole: the next status is made from what is kept.
func TestKeptMessages(t *testing.T) {
	long := answer.OneLine(strings.Repeat("é", answer.MaxMessage))
	at, cronAt := &v1alpha1.At{}, &v1alpha1.CronAt{}
	at.Status.Message, cronAt.Status.Message = long, long
	for _, conditionType := range []string{v1alpha1.ConditionFailureTarget, v1alpha1.ConditionBlocked, v1alpha1.ConditionSuspended, v1alpha1.ConditionFrozen, v1alpha1.ConditionRehearsed} {
		at.Status.Conditions = append(at.Status.Conditions, metav1.Condition{Type: conditionType, Message: long})
	}
	cronAt.Status.Conditions = at.Status.Conditions
	if diff := cmp.Diff(at.Status, plan.KeepAt(at).Status); diff != "" {
		t.Errorf("status of the At (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(cronAt.Status, cronplan.KeepCronAt(cronAt).Status); diff != "" {
		t.Errorf("status of the CronAt (-want +got):\n%s", diff)
	}
}
