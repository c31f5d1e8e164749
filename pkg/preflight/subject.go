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
	// is nil if nothing is to come, or if waits is true: other Ats of the CronAt come first.
	at    *v1alpha1.At
	waits bool
	// isWhole is false if at may lack its command and template.
	isWhole bool
	// rehearsed is the part of the status that is about rehearsals. rehearses reports whether
	// one is needed, after untilRehearsal.
	rehearsed      plan.Rehearsed
	rehearses      bool
	untilRehearsal time.Duration
}

// due returns when the At is due.
func (s *subject) due() time.Time {
	instant, _ := plan.Instant(&s.at.Spec) // Otherwise there would be nothing to come.
	return instant
}

// Ats adds the checks of Ats. Call it before Run. If p is nil, it returns nil.
func (p *Preflight) Ats(lister listers.AtLister) *Checks {
	return p.add(&Checks{
		kind: v1alpha1.AtKind,
		cached: func(name cache.ObjectName) *subject {
			return p.ofAt(lister.Ats(name.Namespace).Get(name.Name))
		},
		live: func(ctx context.Context, name cache.ObjectName) (*subject, error) {
			at, err := p.Cnat.CnatV1alpha1().Ats(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
			return p.ofAt(at, err), err
		},
	})
}

// CronAts is Ats for CronAts.
func (p *Preflight) CronAts(lister listers.CronAtLister) *Checks {
	return p.add(&Checks{
		kind: v1alpha1.CronAtKind,
		cached: func(name cache.ObjectName) *subject {
			return p.ofCronAt(lister.CronAts(name.Namespace).Get(name.Name))
		},
		live: func(ctx context.Context, name cache.ObjectName) (*subject, error) {
			cronAt, err := p.Cnat.CnatV1alpha1().CronAts(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
			return p.ofCronAt(cronAt, err), err
		},
	})
}

func (p *Preflight) ofAt(at *v1alpha1.At, err error) *subject {
	if err != nil {
		return &subject{}
	}
	now := p.clock.Now()
	s := &subject{Object: at, isWhole: plan.IsWhole(at), rehearsed: plan.RehearsedOf(&at.Status)}
	if _, wanted := plan.WantsForecast(at, now); wanted {
		s.at = at
		s.untilRehearsal, s.rehearses = plan.UntilRehearsal(at, now)
	}
	return s
}

func (p *Preflight) ofCronAt(cronAt *v1alpha1.CronAt, err error) *subject {
	if err != nil {
		return &subject{}
	}
	now := p.clock.Now()
	s := &subject{
		Object:    cronAt,
		waits:     cronplan.MustForecastWait(cronAt),
		isWhole:   cronplan.IsWhole(cronAt),
		rehearsed: cronplan.RehearsedOf(&cronAt.Status),
	}
	if s.waits {
		return s
	}
	if s.at = cronplan.NextAt(cronAt, now); s.at != nil {
		s.untilRehearsal, s.rehearses = cronplan.UntilRehearsal(cronAt, s.due(), now)
	}
	return s
}
