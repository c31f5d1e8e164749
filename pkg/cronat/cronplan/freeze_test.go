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
	"testing"
	"time"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestFreeze covers scheduled times in a Freeze, which are skipped, and those around it.
func TestFreeze(t *testing.T) {
	exempt := func(cronAt *v1alpha1.CronAt) {
		cronAt.Labels = map[string]string{v1alpha1.LabelIgnoreFreezes: "true"}
	}
	christmas := frozen(ten.Add(-minute), ten.Add(90*minute))
	shifted := newCronAt(spreadBy(3600))
	due := ten.Add(shiftOf(shifted.UID, 3600))
	check(t, map[string]row{
		"in it, before the time": {cronAt: newCronAt(), freezes: christmas, now: ten.Add(-second), want: "writes message=Freeze christmas holds until 11:30: Change freeze, nextScheduleTime=12:00, reason=Frozen; after 1s"},
		"in it, the time is skipped": {
			cronAt: newCronAt(), freezes: christmas, now: ten.Add(second),
			want: "reads Ats; writes message=Freeze christmas holds until 11:30: Change freeze, nextScheduleTime=12:00, reason=Frozen, skipped=map[count:1 last:10:00]; SkipSchedule: No At was created for the scheduled time 10:00. Freeze christmas holds until 11:30: Change freeze; after 59m59s",
		},
		"it ends at the time, which runs": {cronAt: newCronAt(), freezes: frozen(ten.Add(-minute), ten), now: ten, want: "reads CronAt; creates backup-29968440 for 10:00; after 9.5s"},
		"after it, nothing piles up": {
			cronAt: newCronAt(), freezes: frozen(ten.Add(-minute), ten.Add(150*minute)), now: ten.Add(151 * minute),
			want: "reads Ats; writes nextScheduleTime=13:00, skipped=map[count:3 last:12:00]; SkipSchedule: No At was created for 3 scheduled times, most recently 12:00. Freeze christmas holds until 12:30: Change freeze; after 29m0s",
		},
		"a time before it that has not run waits for its At only": {
			cronAt: newCronAt(ranAtTen), freezes: frozen(eleven.Add(30*minute), eleven.Add(5*time.Hour)), now: eleven.Add(121 * minute),
			want: "reads CronAt; creates backup-29968500 for 11:00; after 9.5s",
		},
		"the controller was away": {
			cronAt: newCronAt(), freezes: frozen(eleven.Add(-minute), eleven.Add(minute)), now: ten.Add(121 * minute),
			want: "reads Ats; writes missed=map[count:1 last:10:00], skipped=map[count:1 last:11:00]; Warning MissSchedule: No At was created for the scheduled time 10:00; SkipSchedule: No At was created for the scheduled time 11:00. Freeze christmas holds until 11:01: Change freeze; reads CronAt; creates backup-29968560 for 12:00; after 9.5s",
		},
		"all times of the day":                {cronAt: newCronAt(), freezes: frozen(ten.Add(-minute), ten.AddDate(0, 0, 10)), now: ten.AddDate(0, 0, 9), want: "reads Ats; writes message=Freeze christmas holds until 2027-01-03T10:00: Change freeze, nextScheduleTime=2027-01-03T10:00, reason=Frozen, skipped=map[count:100 last:2027-01-02T10:00]; SkipSchedule: No At was created for at least 100 scheduled times, most recently 2027-01-02T10:00. Freeze christmas holds until 2027-01-03T10:00: Change freeze; after 1h0m0s"},
		"exempt":                              {cronAt: newCronAt(exempt), freezes: christmas, now: ten, want: "reads CronAt; creates backup-29968440 for 10:00; after 9.5s"},
		"suspended":                           {cronAt: newCronAt(suspended), freezes: christmas, now: ten.Add(second), want: "after 1h29m59s"},
		"an At of the time exists":            {cronAt: newCronAt(), freezes: christmas, now: ten.Add(second), ats: ats{child(ten)}, want: "writes active=1, lastScheduleTime=10:00, message=Freeze christmas holds until 11:30: Change freeze, nextScheduleTime=12:00, reason=Frozen; SuccessfulCreate: Created At backup-29968440; after 8.5s"},
		"spread, the scheduled time is in it": {cronAt: shifted, freezes: frozen(ten, due), now: due, want: "reads CronAt; creates backup-29968440 for 10:00; after 9.5s"},
		"spread, it is due in it":             {cronAt: shifted, freezes: frozen(due, due.Add(minute)), now: due, want: "reads Ats; writes message=Freeze christmas holds until 10:47:15Z: Change freeze, nextScheduleTime=11:46:15Z, reason=Frozen, skipped=map[count:1 last:10:00]; SkipSchedule: No At was created for the scheduled time 10:00. Freeze christmas holds until 10:47:15Z: Change freeze; after 1m0s"},
	})
}
