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

package cronplan

import (
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronexpr"
	"programming-kubernetes.info/cnat-controller/pkg/zones"
)

// parse returns the schedule of a cron expression in a time zone. The error is a sentence that says
// what is wrong and what to write.
func parse(expression, timeZone string) (*cronexpr.Schedule, error) {
	location, err := zones.Load(timeZone)
	if err != nil {
		return nil, err
	}
	// The CRD refuses this, too.
	if strings.Contains(expression, "TZ") {
		return nil, fmt.Errorf("spec.schedule %q has a time zone: set spec.timeZone", expression)
	}
	schedule, err := cronexpr.Parse(expression, location)
	if err != nil {
		return nil, fmt.Errorf("spec.schedule %q is invalid: %w", expression, err)
	}
	return schedule, nil
}

// Validate returns an error if the schedule of a spec is invalid.
func Validate(spec *v1alpha1.CronAtSpec) error {
	_, err := parse(spec.Schedule, ptr.Deref(spec.TimeZone, "UTC"))
	return err
}

// Next returns the first n times after now at which a CronAt is due, in its time zone. It
// returns none if the CronAt is suspended, and fewer than n if there are not enough
// within five years.
func Next(cronAt *v1alpha1.CronAt, now time.Time, n int) ([]time.Time, error) {
	if err := Validate(&cronAt.Spec); err != nil {
		return nil, err
	}
	v := newView(World{CronAt: cronAt, Now: now})
	var times []time.Time
	for t := v.next; len(times) < n && !t.IsZero(); t = v.schedule.Next(t) {
		times = append(times, t.Add(v.shift).In(v.schedule.Location))
	}
	if len(times) == 0 && !isSuspended(cronAt) {
		return nil, errNever(&cronAt.Spec)
	}
	return times, nil
}

// errNever returns the error for a valid schedule that has no time.
func errNever(spec *v1alpha1.CronAtSpec) error {
	return fmt.Errorf("spec.schedule %q has no time within the next five years", spec.Schedule)
}

// shiftOf returns how long after their scheduled time the Ats of a CronAt are due, with the given
// spec.spreadSeconds. It depends only on the UID, so it never changes.
func shiftOf(uid types.UID, spread int32) time.Duration {
	if spread <= 0 {
		return 0
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(uid))
	return time.Duration(hash.Sum32()%uint32(spread)) * time.Second
}
