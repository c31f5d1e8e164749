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

package plan

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

// textOf returns a text with all that a decision says: the action, what the status changes, the
// events, and when to decide again. What follows from a condition is left out: the reason and the
// message of the status, and the message of an event. A condition without a time is of now.
func textOf(w World, d Decision) string {
	parts := slices.Concat(textOfAction(d.Action), textOfStatus(w, d.Status), textsOfEvents(d))
	switch {
	case errors.Is(d.Retry, answer.ErrBlocked):
		parts = append(parts, "retry blocked")
	case d.Retry != nil:
		parts = append(parts, "retry")
	}
	if d.Preflight {
		parts = append(parts, "preflight")
	}
	if d.Delay != 0 {
		parts = append(parts, "wait "+d.Delay.String())
	}
	if d.Needs != Cached {
		parts = append(parts, map[Reads]string{LiveAt: "read At", LiveAll: "read all"}[d.Needs])
	}
	return cmp.Or(strings.Join(parts, "; "), "nothing")
}

func textsOfEvents(d Decision) (texts []string) {
	var conditions []metav1.Condition
	if d.Status != nil {
		conditions = d.Status.Conditions
	}
	for _, event := range d.Events {
		text := event.Type + " " + event.Reason
		if !slices.ContainsFunc(conditions, func(c metav1.Condition) bool { return c.Reason == event.Reason && c.Message == event.Message }) {
			text += ": " + event.Message
		}
		texts = append(texts, text)
	}
	return texts
}

func textOfAction(action any) []string {
	text := strings.TrimPrefix(fmt.Sprintf("%T", action), "plan.")
	switch action := action.(type) {
	case nil:
		return nil
	case CreatePod:
		text += " due " + clock(action.Due)
	case RestartTarget:
		text += " as of " + clock(action.Time) + " due " + clock(action.Due)
	case CreateAts:
		text += namesOf(action.Ats)
		if isSuspended(action.Ats[0]) {
			text += " suspended"
		}
	case ResumeAts:
		text += namesOf(action.Ats)
	case ReleasePod:
		text += " " + action.Pod.Name
	case DeletePod:
		text += " " + action.Pod.Name
		if action.Unexpected {
			text += " unexpected"
		}
	}
	return []string{text}
}

// textOfStatus returns what changes in the status of an At.
func textOfStatus(w World, status *v1alpha1.AtStatus) (changes []string) {
	if status == nil {
		return nil
	}
	before, after := fieldsOf("", reflect.ValueOf(w.At.Status)), fieldsOf("", reflect.ValueOf(*status))
	for _, field := range after {
		if !slices.Contains(before, field) {
			changes = append(changes, field)
		}
	}
	for _, field := range before {
		name, _, _ := strings.Cut(field, "=")
		if !slices.ContainsFunc(after, func(other string) bool {
			return strings.HasPrefix(other, name+"=") || strings.HasPrefix(other, name+".")
		}) {
			changes = append(changes, "no "+name)
		}
	}
	for _, c := range status.Conditions {
		if known := meta.FindStatusCondition(w.At.Status.Conditions, c.Type); known == nil || *known != c {
			changes = append(changes, textOfCondition(w, c))
		}
	}
	for _, c := range w.At.Status.Conditions {
		if meta.FindStatusCondition(status.Conditions, c.Type) == nil {
			changes = append(changes, "no "+c.Type)
		}
	}
	if reason, message := explanation(status); status.Reason != reason || status.Message != message {
		changes = append(changes, "says "+join(status.Reason, status.Message))
	}
	if status.ObservedGeneration != w.At.Generation {
		changes = append(changes, fmt.Sprint("of generation ", status.ObservedGeneration))
	}
	if len(changes) == 0 {
		return []string{"write"}
	}
	return changes
}

func textOfCondition(w World, c metav1.Condition) string {
	text := c.Type + " " + c.Reason + ": " + c.Message
	if c.Status != metav1.ConditionTrue {
		text = "not " + text
	}
	if !c.LastTransitionTime.Time.Equal(w.Now) {
		text += " (since " + clock(c.LastTransitionTime.Time) + ")"
	}
	if c.ObservedGeneration != w.At.Generation {
		text += fmt.Sprintf(" (of generation %d)", c.ObservedGeneration)
	}
	return text
}

// fieldsOf returns the fields in a value that are set, with their names, except those that
// textOfStatus treats in another way.
func fieldsOf(name string, value reflect.Value) (fields []string) {
	if at, isTime := value.Interface().(metav1.Time); isTime {
		return []string{name + "=" + clock(at.Time)}
	}
	switch value.Kind() {
	case reflect.Pointer:
		if fields = fieldsOf(name, value.Elem()); len(fields) == 0 {
			return []string{name + "="}
		}
		return fields
	case reflect.Struct:
		for i := range value.NumField() {
			field := value.Type().Field(i).Name
			if !value.Field(i).IsZero() && !slices.Contains([]string{"Conditions", "Reason", "Message", "ObservedGeneration"}, field) {
				fields = append(fields, fieldsOf(strings.TrimPrefix(name+"."+field, "."), value.Field(i))...)
			}
		}
		return fields
	default:
		return []string{fmt.Sprint(name, "=", value)}
	}
}

// clock returns a time as on a clock, on another day with its date.
func clock(t time.Time) string {
	return strings.TrimPrefix(t.UTC().Format("2006-01-02 15:04:05.999999999"), "2026-12-24 ")
}
