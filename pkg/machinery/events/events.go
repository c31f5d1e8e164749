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

// Package events records events on objects with client-go's broadcaster.
package events

import (
	"context"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

// NewRecorder returns a recorder for a component's events on objects of the given scheme. It
// writes them one after the other, and drops those that it cannot keep up with, until stop is
// called.
func NewRecorder(ctx context.Context, scheme *runtime.Scheme, component string, client typedcorev1.EventsGetter) (recorder record.EventRecorder, stop func()) {
	broadcaster := record.NewBroadcaster(record.WithContext(context.WithoutCancel(ctx)))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.Events("")})
	// It would log each event that is dropped in a burst.
	return broadcaster.NewRecorder(scheme, corev1.EventSource{Component: component}).WithLogger(logr.Discard()), broadcaster.Shutdown
}

// Report records a Warning on an object, if there is one, for an error that will not resolve by
// itself. It returns the error to retry with.
func Report[T interface {
	comparable
	runtime.Object
}](recorder record.EventRecorder, object T, reason string, err error) error {
	if none := *new(T); object == none || answer.IsTransient(err) {
		return err
	}
	recorder.Event(object, corev1.EventTypeWarning, reason, answer.OneLine(err.Error()))
	return answer.Blocked(reason, err)
}
