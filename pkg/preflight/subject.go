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

package preflight

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	listers "programming-kubernetes.info/cnat-controller/pkg/generated/listers/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// subject is what is checked.
type subject struct {
	metav1.Object // the At or the CronAt
	// at is the At whose start is foreseen: the object itself, or the next At of a CronAt. It
	// is nil if nothing is to come.
	at *v1alpha1.At
	// isWhole is false if at may lack its command and template.
	isWhole bool
	// isRefused reports whether the status of the object says that its Pod would be refused.
	isRefused bool
	// rehearsed is the part of the status that is about rehearsals. rehearses reports whether
	// one is needed, after untilRehearsal.
	rehearsed      plan.Rehearsed
	rehearses      bool
	untilRehearsal time.Duration
	// waits reports whether other Ats of a CronAt come first, so that a check must wait.
	waits bool
}

// due returns when the At is due.
func (s *subject) due() time.Time {
	instant, _ := plan.Instant(&s.at.Spec) // Otherwise there would be nothing to come.
	return instant
}

// kind is a kind of objects that are checked.
type kind interface {
	fmt.Stringer // the key of the log
	// name is the kind in an owner reference.
	name() string
	// prefix is what the queue puts before the name of an object, such that no other kind
	// has that name. It is empty for Ats: there may be very many of them.
	prefix() string
	// cached returns an object from the cache, or an error if it is not there.
	cached(name cache.ObjectName) (*subject, error)
	// live reads an object from the API server.
	live(ctx context.Context, name cache.ObjectName) (*subject, error)
	// dueAt returns when an object is due next, or the zero time if it does not exist.
	dueAt(name cache.ObjectName) time.Time
}

// Ats adds the checks of Ats. Call it before Run. changed is called for each At whose
// Forecast has changed. If p is nil, it returns nil.
func (p *Preflight) Ats(lister listers.AtLister, changed func(cache.ObjectName)) *Checks {
	if p == nil {
		return nil
	}
	return p.add(ats{p, lister}, changed)
}

// CronAts is Ats for CronAts.
func (p *Preflight) CronAts(lister listers.CronAtLister, changed func(cache.ObjectName)) *Checks {
	if p == nil {
		return nil
	}
	return p.add(cronAts{p, lister}, changed)
}

type ats struct {
	p      *Preflight
	lister listers.AtLister
}

func (ats) String() string { return "at" }
func (ats) name() string   { return v1alpha1.AtKind }
func (ats) prefix() string { return "" }

func (k ats) cached(name cache.ObjectName) (*subject, error) {
	return k.subject(k.lister.Ats(name.Namespace).Get(name.Name))
}

func (k ats) live(ctx context.Context, name cache.ObjectName) (*subject, error) {
	return k.subject(k.p.Cnat.CnatV1alpha1().Ats(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{}))
}

func (k ats) subject(at *v1alpha1.At, err error) (*subject, error) {
	if err != nil {
		return nil, err
	}
	now := k.p.clock.Now()
	s := &subject{
		Object: at, isWhole: plan.IsWhole(at), isRefused: plan.IsRefusal(plan.Blocked(at)),
		rehearsed: plan.RehearsedOf(&at.Status),
	}
	if plan.WantsForecast(at, now) {
		s.at = at
		s.untilRehearsal, s.rehearses = plan.UntilRehearsal(at, now)
	}
	return s, nil
}

func (k ats) dueAt(name cache.ObjectName) time.Time {
	at, err := k.lister.Ats(name.Namespace).Get(name.Name)
	if err != nil {
		return time.Time{}
	}
	instant, _ := plan.Instant(&at.Spec) // An error comes with the zero time.
	return instant
}

type cronAts struct {
	p      *Preflight
	lister listers.CronAtLister
}

func (cronAts) String() string { return "cronAt" }
func (cronAts) name() string   { return v1alpha1.CronAtKind }
func (cronAts) prefix() string { return "cronAt/" } // No name has a slash.

func (k cronAts) cached(name cache.ObjectName) (*subject, error) {
	return k.subject(k.lister.CronAts(name.Namespace).Get(name.Name))
}

func (k cronAts) live(ctx context.Context, name cache.ObjectName) (*subject, error) {
	return k.subject(k.p.Cnat.CnatV1alpha1().CronAts(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{}))
}

func (k cronAts) subject(cronAt *v1alpha1.CronAt, err error) (*subject, error) {
	if err != nil {
		return nil, err
	}
	now := k.p.clock.Now()
	s := &subject{
		Object:    cronAt,
		at:        cronplan.NextAt(cronAt, now),
		isWhole:   cronplan.IsWhole(cronAt),
		isRefused: plan.IsRefusal(cronplan.Blocked(cronAt)),
		rehearsed: cronplan.RehearsedOf(&cronAt.Status),
		waits:     cronplan.MustForecastWait(cronAt),
	}
	if s.at != nil {
		s.untilRehearsal, s.rehearses = cronplan.UntilRehearsal(cronAt, s.due(), now)
	}
	return s, nil
}

func (k cronAts) dueAt(name cache.ObjectName) time.Time {
	cronAt, err := k.lister.CronAts(name.Namespace).Get(name.Name)
	if err != nil || cronAt.Status.NextScheduleTime == nil {
		return time.Time{}
	}
	return cronAt.Status.NextScheduleTime.Time
}
