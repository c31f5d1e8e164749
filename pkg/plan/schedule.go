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

package plan

import (
	"fmt"
	"time"
)

// ParseSchedule returns the instant that spec.schedule names. It reads all that the
// CRD lets in. An error says in a sentence what to write.
func ParseSchedule(schedule string) (time.Time, error) {
	instant, err := time.Parse(time.RFC3339, schedule)
	if err != nil {
		return time.Time{}, fmt.Errorf("spec.schedule %q cannot be read: write an instant as RFC 3339 does, such as 2026-12-24T10:12:00Z", schedule)
	}
	return instant, nil
}
