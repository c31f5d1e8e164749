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

// Package safelog keeps texts that a user controls out of the log.
//
// An error of the API server has the message of a webhook, a policy or a validation, and may
// quote a command that has a password. Code that logs an error, also in client-go, need not
// know that: the logger itself replaces such a message by what kind of answer it was.
package safelog

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

// Install makes the process log like this. Call it once, after the logger was configured and
// before anything is logged.
func Install() {
	logger := klog.FromContext(context.Background())
	options := []klog.LoggerOption{klog.ContextualLogger(true)}
	if writer, ok := logger.GetSink().(textlogger.KlogBufferWriter); ok {
		options = append(options, klog.WriteKlogBuffer(writer.WriteKlogBuffer))
	}
	klog.SetLoggerWithOptions(New(logger), options...)
}

// New returns a logger that passes errors through answer.ForLog. It logs only the names of objects,
// and only the types of other composite values.
func New(logger klog.Logger) klog.Logger {
	return logger.WithSink(sink{logger.WithCallDepth(1).GetSink()})
}

// sink filters what it passes on.
type sink struct{ logr.LogSink }

func (s sink) Info(level int, message string, keysAndValues ...any) {
	s.LogSink.Info(level, message, filter(keysAndValues)...)
}

func (s sink) Error(err error, message string, keysAndValues ...any) {
	if err != nil {
		err = errors.New(answer.ForLog(err))
	}
	s.LogSink.Error(err, message, filter(keysAndValues)...)
}

// Enabled is as deep in the stack as Info, because -vmodule depends on the caller.
func (s sink) Enabled(level int) bool { return s.LogSink.Enabled(level) }

func (s sink) WithValues(keysAndValues ...any) logr.LogSink {
	return sink{s.LogSink.WithValues(filter(keysAndValues)...)}
}

func (s sink) WithName(name string) logr.LogSink { return sink{s.LogSink.WithName(name)} }

func (s sink) WithCallDepth(depth int) logr.LogSink {
	return sink{logr.Logger{}.WithSink(s.LogSink).WithCallDepth(depth).GetSink()}
}

func filter(keysAndValues []any) []any {
	filtered := make([]any, len(keysAndValues))
	for i, value := range keysAndValues {
		filtered[i] = filterValue(value)
	}
	return filtered
}

func filterValue(value any) any {
	switch v := value.(type) {
	case nil:
		return nil
	case error:
		return answer.ForLog(v)
	case klog.KMetadata:
		return klog.KObj(v)
	case runtime.Object:
		return fmt.Sprintf("%T", value)
	case fmt.Stringer, logr.Marshaler:
		return value
	}
	switch reflect.TypeOf(value).Kind() {
	case reflect.Struct, reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map, reflect.Func, reflect.Chan:
		return fmt.Sprintf("%T", value)
	default:
		return value
	}
}
