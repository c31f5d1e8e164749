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

package audit

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// version returns the resource version of an object, or 0 if it is unknown.
func version(object metav1.Object) uint64 {
	number, _ := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
	return number
}

// sorted sorts writes by their resource versions: these come from one etcd, while the clocks of
// API servers differ. Writes without a version of their own have their place by time.
func sorted(writes []Write) []Write {
	latest := map[types.UID]uint64{}
	for _, w := range writes {
		if !w.Gone {
			latest[w.uid] = max(latest[w.uid], version(w.Object))
		}
	}
	var versioned, unversioned []Write
	for _, w := range writes {
		// The answer to a deletion may have the version of the write before. If the log does not
		// show that write, the version says nothing.
		if before := latest[w.uid]; w.listed || w.unclear || w.Gone && (before == 0 || version(w.Object) <= before) {
			unversioned = append(unversioned, w)
		} else {
			versioned = append(versioned, w)
		}
	}
	slices.SortStableFunc(versioned, func(a, b Write) int {
		return cmp.Or(cmp.Compare(version(a.Object), version(b.Object)), a.Time.Compare(b.Time))
	})
	last := map[types.UID]time.Time{}
	for i := len(versioned) - 1; i >= 0; i-- {
		w := &versioned[i]
		w.place = w.Time
		if i+1 < len(versioned) && versioned[i+1].place.Before(w.place) {
			w.place = versioned[i+1].place
		}
		if _, known := last[w.uid]; !known {
			last[w.uid] = w.place
		}
	}
	for i := range unversioned {
		w := &unversioned[i]
		w.place = w.Time
		if own := last[w.uid]; w.Gone && w.uid != "" && own.After(w.place) {
			w.place = own
		}
	}
	all := append(versioned, unversioned...)
	slices.SortStableFunc(all, func(a, b Write) int { return a.place.Compare(b.place) })
	return all
}

// inOrder sorts writes. It leaves out those that changed nothing. If an answer does not show the
// object, or only its metadata, the rest is that of the write before.
func inOrder(writes []Write) []Write {
	uids := map[string]types.UID{} // by type and name
	latest := map[types.UID]metav1.Object{}
	var ordered []Write
	for _, w := range sorted(writes) {
		key := fmt.Sprintf("%T %s/%s", w.Object, w.Object.GetNamespace(), w.Object.GetName())
		if w.uid == "" {
			w.uid = uids[key]
		}
		before := latest[w.uid]
		if w.Object.GetUID() == "" && !w.unclear { // The answer does not show it.
			if before == nil {
				continue
			}
			w.Object = before.(runtime.Object).DeepCopyObject().(metav1.Object)
			if w.metadata != nil {
				w.Object.SetResourceVersion(w.metadata.ResourceVersion)
				w.Object.SetFinalizers(w.metadata.Finalizers)
				w.Object.SetLabels(w.metadata.Labels)
				w.Object.SetOwnerReferences(w.metadata.OwnerReferences)
				w.Object.SetDeletionTimestamp(w.metadata.DeletionTimestamp)
			}
		}
		switch {
		case w.unclear:
			if before != nil && !w.Created {
				w.Object = before
			}
			ordered = append(ordered, w)
			continue
		case w.listed && !w.Gone: // Something keeps it.
			if before == nil {
				before = w.Object
			}
			if before.GetDeletionTimestamp() != nil {
				continue
			}
			w.Object = before.(runtime.Object).DeepCopyObject().(metav1.Object)
			w.Object.SetDeletionTimestamp(&metav1.Time{Time: w.Time})
		case !w.Gone && before != nil && version(w.Object) <= version(before):
			continue
		}
		latest[w.uid], uids[key] = w.Object, w.uid
		ordered = append(ordered, w)
	}
	return ordered
}
