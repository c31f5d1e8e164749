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

package simulation

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

// Start runs a process until ctx is done.
type Start func(ctx context.Context, config *rest.Config, settings Settings) error

// Settings are those of a process.
type Settings struct {
	// Identity is its name in the leader election, or "" if it does not take part.
	Identity     string
	NoPreflights bool
	Clock        clock.WithTicker
}

// processes are those of the controller.
type processes struct {
	running []*process
	started int
	stopped bool // for ever
	elect   bool
}

// process is a process of the controller.
type process struct {
	world  *World
	name   string
	slot   string // of the processes that replace each other
	cancel context.CancelFunc
	dead   atomic.Bool
	ended  chan error
}

func (p *process) isDead() bool { return p.dead.Load() }

// start starts a process in the place of an earlier one.
func (w *World) start(slot string) {
	if w.stopped {
		return
	}
	w.started++
	p := &process{world: w, slot: slot, name: fmt.Sprintf("%s.%d", slot, w.started), ended: make(chan error, 1)}
	logger := logr.Discard()
	if w.Trace != nil && w.Verbosity > 0 {
		logger = textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(w.Trace), textlogger.Verbosity(w.Verbosity))).WithName(p.name)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logger))
	p.cancel = cancel
	w.running = append(w.running, p)
	settings := Settings{NoPreflights: w.NoPreflights, Clock: processClock{w.clock}}
	if w.elect {
		settings.Identity = slot // The kubelet starts a container again in the same Pod.
	}
	if w.Mutant != nil && w.Mutant.clock != nil {
		settings.Clock = w.Mutant.clock(settings.Clock)
	}
	w.tracef("start %s %s", p.name, settings.Identity)
	w.reseed()
	go func() { p.ended <- w.Start(ctx, fakeserver.Config(p), settings) }()
	w.watchOver(p)
}

// processClock is the clock of a process. Its timers take a microsecond longer than they should:
// otherwise, the end of a multiple of some period and that of another timer would be at the same
// instant, and in a random order.
type processClock struct{ *harness.Clock }

// After implements clock.Clock.
func (c processClock) After(d time.Duration) <-chan time.Time {
	return c.Clock.After(d + time.Microsecond)
}

// watchOver starts another process when one has ended.
func (w *World) watchOver(p *process) {
	select {
	case err := <-p.ended:
		p.ended <- err
		if w.forget(p) {
			w.tracef("%s has ended: %v", p.name, err)
			w.after(w.between(0, 2*time.Second), func() { w.start(p.slot) })
		}
	default:
		w.after(w.between(time.Second, 2*time.Second)*10, func() { w.watchOver(p) })
	}
}

// forget removes a process from those that run.
func (w *World) forget(p *process) bool {
	i := slices.Index(w.running, p)
	if i < 0 {
		return false
	}
	w.running = slices.Delete(w.running, i, i+1)
	return true
}

// kill kills a process: from now on, it neither sends nor gets anything.
func (w *World) kill(p *process) {
	if !w.forget(p) {
		return
	}
	w.tracef("kill %s", p.name)
	w.reseed()
	p.dead.Store(true)
	for _, s := range w.watches {
		if s.call.process == p {
			w.end(s, errDead)
		}
	}
	p.cancel()
}

// stop asks a process to end.
func (w *World) stop(p *process) {
	if w.forget(p) {
		w.tracef("stop %s", p.name)
		w.reseed()
		p.cancel()
	}
}

// replaceAll ends all processes, and starts others.
func (w *World) replaceAll(elect bool, slots ...string) {
	for _, p := range slices.Clone(w.running) {
		if w.chance(50) {
			w.kill(p)
		} else {
			w.stop(p)
		}
	}
	w.elect = elect
	for _, slot := range slots {
		w.after(w.between(0, 5*time.Second), func() { w.start(slot) })
	}
}

// stopAll ends all processes at the end of the simulation, and waits for them.
func (w *World) stopAll() {
	w.stopped = true
	for _, p := range slices.Clone(w.running) {
		w.kill(p)
	}
	w.result.Violations = w.checker.Violations
	w.runFor(time.Minute)
}

// anyProcess returns one of the processes, or nil.
func (w *World) anyProcess() *process {
	if len(w.running) == 0 {
		return nil
	}
	return w.running[w.random.IntN(len(w.running))]
}

// setAway lets the API server refuse connections for a time.
func (w *World) setAway(d time.Duration) {
	w.tracef("the API server is away for %v", d)
	w.away = true
	for _, p := range w.running {
		w.breakWatches(p, errLost)
	}
	w.after(d, func() {
		w.tracef("the API server is back")
		w.away = false
	})
}
