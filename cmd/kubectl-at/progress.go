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
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// progress is a terminal line that shows the progress of a run. Without a terminal, it
// prints nothing.
type progress struct {
	out   io.Writer
	now   func() time.Time
	width int

	lock   sync.Mutex
	shown  bool
	silent bool
}

func newProgress(out io.Writer, now func() time.Time) *progress {
	p := &progress{out: out, now: now, silent: true}
	if isTerminal(out) {
		p.silent, p.width = false, 80
		if width, _, err := term.GetSize(int(out.(*os.File).Fd())); err == nil && width > 0 {
			p.width = width
		}
	}
	return p
}

func (p *progress) show(at *v1alpha1.At) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.silent {
		return
	}
	p.shown = true
	line := []rune(stateLine(at, p.now()))
	// A line that wraps cannot be overwritten.
	fmt.Fprintf(p.out, "\r\033[K%s", string(line[:min(len(line), p.width-1)]))
}

func (p *progress) clear() {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.shown {
		fmt.Fprint(p.out, "\r\033[K")
		p.shown = false
	}
}

// end prints how long a run took.
func (p *progress) end(at *v1alpha1.At) {
	if p.width > 0 && at.Status.StartTime != nil && at.Status.CompletionTime != nil {
		fmt.Fprintf(p.out, "%s: %s after %s\n", ref(at), at.Status.Reason, short(at.Status.CompletionTime.Sub(at.Status.StartTime.Time)))
	}
}

// above returns a writer for permanent output above the line.
func (p *progress) above(out io.Writer) io.Writer {
	return writerFunc(func(data []byte) (int, error) {
		p.clear()
		return out.Write(data)
	})
}

// clearing returns a writer for the output of the run. Writing to it removes the line
// permanently.
func (p *progress) clearing(out io.Writer) io.Writer {
	return writerFunc(func(data []byte) (int, error) {
		p.lock.Lock()
		p.silent = true
		p.lock.Unlock()
		p.clear()
		return out.Write(data)
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(data []byte) (int, error) { return f(data) }

// stateLine describes the state of an At in one line.
func stateLine(at *v1alpha1.At, now time.Time) string {
	line := string(at.Status.Phase)
	instant, err := plan.Instant(&at.Spec)
	switch {
	case at.Status.Reason != "":
		line += ", " + at.Status.Reason + ": " + at.Status.Message
	case at.Status.Phase == v1alpha1.PhaseRunning && at.Status.Nodes != nil:
		line += fmt.Sprintf(" for %s, nodes: %s", runningFor(at, now), countsOf(at.Status.Nodes))
	case at.Status.Phase == v1alpha1.PhaseRunning && at.Status.Restart != nil:
		line += fmt.Sprintf(" for %s, %s", runningFor(at, now), at.Status.Message)
	case at.Status.Phase == v1alpha1.PhaseRunning && at.Status.Pod != nil:
		line += fmt.Sprintf(" for %s, Pod %s %s", runningFor(at, now), at.Status.Pod.Name, at.Status.Pod.Phase)
	case err == nil && instant.After(now):
		line += ", starts " + fromNow(instant.Add(time.Second-1), now)
	}
	return line
}

func runningFor(at *v1alpha1.At, now time.Time) string {
	return short(now.Sub(ptr.Deref(at.Status.StartTime, at.CreationTimestamp).Time))
}
