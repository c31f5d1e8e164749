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
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// seconds is a flag that contains a number of whole seconds, given as a duration: 90s,
// 1h30m, 7d, or 90.
type seconds struct {
	value *int64
	least int64
	most  int64 // 0: no limit
}

var _ pflag.Value = &seconds{}

func (s *seconds) String() string {
	if s.value == nil {
		return ""
	}
	return short(plan.Seconds(*s.value))
}

func (s *seconds) Type() string { return "duration" }

func (s *seconds) Set(text string) error {
	var n int64
	days, isDays := strings.CutSuffix(text, "d")
	if number, err := strconv.ParseInt(text, 10, 32); err == nil {
		n = number
	} else if number, err := strconv.ParseInt(days, 10, 16); err == nil && isDays {
		n = number * 24 * 3600
	} else {
		d, err := time.ParseDuration(text)
		if err != nil || d%time.Second != 0 {
			return fmt.Errorf("write whole seconds, such as 90s, 1h30m or 7d")
		}
		n = int64(d / time.Second)
	}
	if n < s.least {
		return fmt.Errorf("must be at least %ds", s.least)
	}
	if s.most > 0 && n > s.most {
		return fmt.Errorf("must be at most %ds", s.most)
	}
	s.value = &n
	return nil
}
