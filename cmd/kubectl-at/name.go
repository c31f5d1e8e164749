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
	"path"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/rand"
)

// maxStem keeps the name of the Pod, which extends that of the At, below 63 characters,
// so that it is not shortened.
const maxStem = 40

var (
	assignment = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)
	notInName  = regexp.MustCompile(`[^a-z0-9]+`)
)

// generateName returns a name that indicates what runs.
func generateName(what string) string { return stem(what) + "-" + rand.String(5) }

// stem returns the first word of a command line, the program, as part of a name. It omits
// the other words, since they may contain secrets.
func stem(what string) string {
	words := strings.Fields(what)
	for len(words) > 0 && assignment.MatchString(words[0]) {
		words = words[1:]
	}
	if len(words) == 0 {
		return "at"
	}
	name := notInName.ReplaceAllString(strings.ToLower(path.Base(words[0])), "-")
	name = strings.Trim(name, "-")
	name = strings.TrimRight(name[:min(len(name), maxStem)], "-")
	if name == "" {
		return "at"
	}
	return name
}
