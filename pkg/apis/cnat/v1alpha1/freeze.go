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

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FreezeKind is the kind of a Freeze.
const FreezeKind = "Freeze"

// LabelIgnoreFreezes is the label, with the value true, of an At or a CronAt that no Freeze
// holds. The Ats that it creates are not held either. Only users who may ignore freezes set it.
const LabelIgnoreFreezes = "cnat.programming-kubernetes.info/ignore-freezes"

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=freezes,singular=freeze,scope=Namespaced
// +kubebuilder:printcolumn:name="From",type=string,JSONPath=`.spec.windows[0].from`
// +kubebuilder:printcolumn:name="Until",type=string,JSONPath=`.spec.windows[0].until`
// +kubebuilder:printcolumn:name="Schedule",type=string,JSONPath=`.spec.windows[0].schedule`
// +kubebuilder:printcolumn:name="TimeZone",type=string,JSONPath=`.spec.timeZone`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.spec.reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`

// Freeze keeps Ats and CronAts from starting anything in its windows. It holds in its own
// namespace; one in the controller's namespace holds in all namespaces. What runs goes on. An
// At that is due waits for the end of the window, if startingDeadlineSeconds allows. A CronAt
// skips its times in the window.
type Freeze struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata. The Ats that wait show the name.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says when nothing starts, and what does not start.
	// +required
	Spec FreezeSpec `json:"spec"`
}

// FreezeSpec says when nothing starts, and what does not start. Everything can be edited at
// any time. An edit is effective after 30 seconds at the latest.
type FreezeSpec struct {
	// timeZone is the name of a time zone from the IANA database, such as Europe/Berlin. It is
	// that of schedules, and of times without a zone. Default: UTC.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Z][A-Za-z0-9_+/-]*$') && self != 'Local' && timestamp('2000-01-01T00:00:00Z').getHours(self) >= 0",message="must be a name from the IANA time zone database, such as Europe/Berlin"
	TimeZone *string `json:"timeZone,omitempty"`

	// windows are the times at which nothing starts. They may overlap.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=128
	Windows []FreezeWindow `json:"windows"`

	// reason is the text that people see who wait, such as "Change freeze, ask #ops".
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="!self.matches('[\\\\x00-\\\\x1f\\\\x7f]')",message="must be one line"
	Reason string `json:"reason,omitempty"`

	// namespaceSelector selects, by their labels, the namespaces in which the Freeze holds,
	// among those in which it can hold: its own namespace or, for a Freeze in the controller's
	// namespace, all. Default: all of these.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn'] ? has(e.values) && size(e.values) > 0 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || size(e.values) == 0))",message="must have operators In or NotIn with values, or Exists or DoesNotExist without"
	// +kubebuilder:validation:XValidation:rule="(!has(self.matchExpressions) || self.matchExpressions.all(e, e.key.matches('^([a-z0-9][-a-z0-9.]*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$'))) && (!has(self.matchLabels) || self.matchLabels.all(key, key.matches('^([a-z0-9][-a-z0-9.]*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$') && self.matchLabels[key].matches('^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$')))",message="must have valid keys and values of labels"
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// selector selects, by their labels, the Ats and CronAts that the Freeze holds. What one of
	// these creates is held, too. For a selector, each At also has the label
	// cnat.programming-kubernetes.info/at-name with its name, and each CronAt
	// cnat.programming-kubernetes.info/cronat-name. Default: all Ats and CronAts.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn'] ? has(e.values) && size(e.values) > 0 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || size(e.values) == 0))",message="must have operators In or NotIn with values, or Exists or DoesNotExist without"
	// +kubebuilder:validation:XValidation:rule="(!has(self.matchExpressions) || self.matchExpressions.all(e, e.key.matches('^([a-z0-9][-a-z0-9.]*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$'))) && (!has(self.matchLabels) || self.matchLabels.all(key, key.matches('^([a-z0-9][-a-z0-9.]*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$') && self.matchLabels[key].matches('^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$')))",message="must have valid keys and values of labels"
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// FreezeWindow is a time at which nothing starts: once, from a time until another, or
// repeatedly, by a schedule and a duration.
// +kubebuilder:validation:XValidation:rule="has(self.schedule) ? has(self.durationSeconds) && !has(self.from) && !has(self.until) : has(self.from) && has(self.until) && !has(self.durationSeconds)",message="must have either from and until, or schedule and durationSeconds"
// +kubebuilder:validation:XValidation:rule="!has(self.from) || !has(self.until) || self.from.matches('T.*(Z|[+-][0-9:]*)$') == self.until.matches('T.*(Z|[+-][0-9:]*)$')",fieldPath=".until",message="must have a zone if from has one, and none if from has none"
// +kubebuilder:validation:XValidation:rule="!has(self.from) || !has(self.until) || !self.from.matches('^.{10}T.{8}$') || !self.until.matches('^.{10}T.{8}$') || self.from < self.until",fieldPath=".until",message="must be after from"
// +kubebuilder:validation:XValidation:rule="!has(self.from) || !has(self.until) || !self.from.matches('^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$') || !self.until.matches('^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$') || timestamp(self.from) < timestamp(self.until)",fieldPath=".until",message="must be after from"
type FreezeWindow struct {
	// from is when the window begins: an instant in RFC 3339 format, such as
	// 2026-12-23T16:00:00Z, or a date and time without a zone, which the clocks of timeZone show.
	// If the clocks repeat it, the window begins the first time; if they skip it, when they do.
	// +optional
	From FreezeTime `json:"from,omitempty"`

	// until is when the window ends: the first instant at which things start again. It is
	// written as from is. If the clocks repeat it, the window ends the second time; if they
	// skip it, when they do.
	// +optional
	Until FreezeTime `json:"until,omitempty"`

	// schedule is a cron expression that says when the window begins, such as "0 18 * * 5". It
	// has the syntax and the meaning of the schedule of a CronAt, without @every.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^@(yearly|annually|monthly|weekly|daily|midnight|hourly)$') || self.matches('^\\\\s*[^@\\\\s]\\\\S*(\\\\s+\\\\S+){4}\\\\s*$')",message="must be a cron expression of five fields (minute, hour, day of month, month, day of week), or one of @hourly, @daily, @weekly, @monthly and @yearly"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^\\\\s*\\\\S+(\\\\s+\\\\S+){4}\\\\s*$') || self.matches('^\\\\s*(\\\\S+\\\\s+){0}([*?]|[0-5]?[0-9](-[0-5]?[0-9])?)(/0*[1-9][0-9]{0,3})?(,([*?]|[0-5]?[0-9](-[0-5]?[0-9])?)(/0*[1-9][0-9]{0,3})?)*(\\\\s|$)')",message="the minute must be *, or numbers from 0 to 59, ranges such as 1-4, steps such as */2, separated by commas"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^\\\\s*\\\\S+(\\\\s+\\\\S+){4}\\\\s*$') || self.matches('^\\\\s*(\\\\S+\\\\s+){1}([*?]|([01]?[0-9]|2[0-3])(-([01]?[0-9]|2[0-3]))?)(/0*[1-9][0-9]{0,3})?(,([*?]|([01]?[0-9]|2[0-3])(-([01]?[0-9]|2[0-3]))?)(/0*[1-9][0-9]{0,3})?)*(\\\\s|$)')",message="the hour must be *, or numbers from 0 to 23, ranges such as 1-4, steps such as */2, separated by commas"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^\\\\s*\\\\S+(\\\\s+\\\\S+){4}\\\\s*$') || self.matches('^\\\\s*(\\\\S+\\\\s+){2}([*?]|(0?[1-9]|[12][0-9]|3[01])(-(0?[1-9]|[12][0-9]|3[01]))?)(/0*[1-9][0-9]{0,3})?(,([*?]|(0?[1-9]|[12][0-9]|3[01])(-(0?[1-9]|[12][0-9]|3[01]))?)(/0*[1-9][0-9]{0,3})?)*(\\\\s|$)')",message="the day of month must be *, or numbers from 1 to 31, ranges such as 1-4, steps such as */2, separated by commas"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^\\\\s*\\\\S+(\\\\s+\\\\S+){4}\\\\s*$') || self.matches('^\\\\s*(\\\\S+\\\\s+){3}([*?]|((?i)0?[1-9]|1[0-2]|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC)(-((?i)0?[1-9]|1[0-2]|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC))?)(/0*[1-9][0-9]{0,3})?(,([*?]|((?i)0?[1-9]|1[0-2]|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC)(-((?i)0?[1-9]|1[0-2]|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC))?)(/0*[1-9][0-9]{0,3})?)*(\\\\s|$)')",message="the month must be *, or numbers from 1 to 12 or names from JAN to DEC, ranges such as 1-4, steps such as */2, separated by commas"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^\\\\s*\\\\S+(\\\\s+\\\\S+){4}\\\\s*$') || self.matches('^\\\\s*(\\\\S+\\\\s+){4}([*?]|((?i)0?[0-6]|SUN|MON|TUE|WED|THU|FRI|SAT)(-((?i)0?[0-6]|SUN|MON|TUE|WED|THU|FRI|SAT))?)(/0*[1-9][0-9]{0,3})?(,([*?]|((?i)0?[0-6]|SUN|MON|TUE|WED|THU|FRI|SAT)(-((?i)0?[0-6]|SUN|MON|TUE|WED|THU|FRI|SAT))?)(/0*[1-9][0-9]{0,3})?)*(\\\\s|$)')",message="the day of week must be *, or numbers from 0 (Sunday) to 6 or names from SUN to SAT, ranges such as 1-4, steps such as */2, separated by commas"
	// +kubebuilder:validation:XValidation:rule="self.upperAscii().replace('SUN','0').replace('MON','1').replace('TUE','2').replace('WED','3').replace('THU','4').replace('FRI','5').replace('SAT','6').replace('JAN','1').replace('FEB','2').replace('MAR','3').replace('APR','4').replace('MAY','5').replace('JUN','6').replace('JUL','7').replace('AUG','8').replace('SEP','9').replace('OCT','10').replace('NOV','11').replace('DEC','12').findAll('[0-9]{1,2}-[0-9]{1,2}').all(range, int(range.split('-')[0]) <= int(range.split('-')[1]))",message="a range must not end before it begins: write 22-23,0-2 instead of 22-2"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^\\\\s*\\\\S+\\\\s+\\\\S+\\\\s+((30|31)(-3[01])?(,(30|31)(-3[01])?)*\\\\s+(0?2|(?i)FEB)|31(-31)?(,31(-31)?)*\\\\s+(0?[2469]|11|(?i)FEB|APR|JUN|SEP|NOV)(,(0?[2469]|11|(?i)FEB|APR|JUN|SEP|NOV))*)\\\\s+[*?](/[0-9]+)?\\\\s*$')",message="must have a day that the months have: this window never comes"
	Schedule string `json:"schedule,omitempty"`

	// durationSeconds is how long the window lasts after each time of schedule, from a minute to
	// a year.
	// +optional
	// +kubebuilder:validation:Minimum=60
	// +kubebuilder:validation:Maximum=31536000
	DurationSeconds int32 `json:"durationSeconds,omitempty"`
}

// FreezeTime is an instant, or a time that clocks show.
// +kubebuilder:validation:MaxLength=32
// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|[+-][0-9]{2}:[0-9]{2})?$')",message="must be a date and time in whole seconds, such as 2026-12-23T16:00:00, or with a zone 2026-12-23T16:00:00Z"
// +kubebuilder:validation:XValidation:rule="!self.matches('^[0-9]{4}-[0-9]{2}-[0-9]{2}T') || self.matches('^[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-9]))T') && !self.startsWith('0000') && (!self.matches('^[0-9]{4}-02-29') || int(self.substring(0, 4)) % 4 == 0 && (int(self.substring(0, 4)) % 100 != 0 || int(self.substring(0, 4)) % 400 == 0))",message="must be a valid date: years 0001 to 9999, months 01 to 12, days that exist in the month"
// +kubebuilder:validation:XValidation:rule="!self.matches('T[0-9]{2}:[0-9]{2}:[0-9]{2}') || self.matches('T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])?$')",message="must be a valid time of day: hours 00 to 23, minutes and seconds 00 to 59, also in the offset"
type FreezeTime string

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true

// FreezeList is a list of Freezes.
type FreezeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []Freeze `json:"items"`
}
