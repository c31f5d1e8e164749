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
	"slices"
	"time"

	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// due is when the At of a scenario is due, in seconds.
const due = 60

func newAt(change func(at *v1alpha1.At)) func() *v1alpha1.At {
	return func() *v1alpha1.At {
		at := &v1alpha1.At{Spec: v1alpha1.AtSpec{
			Schedule: epoch.Add(due * time.Second).Format(time.RFC3339),
			RunSpec:  v1alpha1.RunSpec{Command: "true"},
		}}
		if change != nil {
			change(at)
		}
		return at
	}
}

// flight is how long a request may be on its way: the controller gives a creation up 8 s
// after it has read the At.
const flight = 8

var scenarios = []scenario{
	{
		name: "at", doc: "one At, without retries",
		at:       newAt(nil),
		instants: []float64{59, 60, 60.3, 61, 68, 71, 200},
		left:     budget{faults: 1, edits: 2, crashes: 1},
		edits:    []edit{suspend, resume, deleteIt, removePod, stripLabel},
		flight:   flight,
	},
	{
		name: "retries", doc: "one At with a retry",
		at:       newAt(func(at *v1alpha1.At) { at.Spec.BackoffLimit = ptr.To[int32](1) }),
		instants: []float64{60, 68, 71, 90, 300},
		left:     budget{faults: 1, edits: 1, crashes: 0},
		edits:    []edit{deleteIt, removePod},
		fails:    true,
		flight:   flight,
	},
	{
		name: "successor", doc: "an At that is deleted, and created again with the same name",
		at:       newAt(nil),
		instants: []float64{60, 61, 68, 71, 300},
		left:     budget{faults: 1, edits: 2, crashes: 0},
		edits:    []edit{deleteIt, createAgain},
		flight:   flight,
	},
}

// hold records that the At must not start from now on.
func (s *state) hold() { s.held = append(slices.Clone(s.held), held{string(s.at.UID), s.now}) }

var suspend = edit{"suspends the At", func(s *state) bool {
	if s.at == nil || ptr.Deref(s.at.Spec.Suspend, false) {
		return false
	}
	at := s.at.DeepCopy()
	at.Spec.Suspend, at.Generation = ptr.To(true), at.Generation+1
	s.hold()
	s.setAt(at)
	return true
}}

var resume = edit{"resumes the At", func(s *state) bool {
	if s.at == nil || !ptr.Deref(s.at.Spec.Suspend, false) {
		return false
	}
	at := s.at.DeepCopy()
	at.Spec.Suspend, at.Generation = nil, at.Generation+1
	s.held = nil
	s.setAt(at)
	return true
}}

var deleteIt = edit{"deletes the At", func(s *state) bool {
	if s.at == nil {
		return false
	}
	s.hold()
	s.setAt(nil)
	return true
}}

var createAgain = edit{"creates the At again", func(s *state) bool {
	if s.at != nil {
		return false
	}
	s.createAt()
	return true
}}

var removePod = edit{"deletes the Pod", func(s *state) bool {
	for _, pod := range s.pods {
		if pod.DeletionTimestamp == nil {
			s.terminate(pod)
			return true
		}
	}
	return false
}}

var stripLabel = edit{"removes the label of the Pod", func(s *state) bool {
	for _, pod := range s.pods {
		if pod.Labels[v1alpha1.LabelAtUID] != "" {
			pod := pod.DeepCopy()
			delete(pod.Labels, v1alpha1.LabelAtUID)
			s.setPod(pod)
			return true
		}
	}
	return false
}}
