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

// maxStem keeps the name of the Pod, which is that of the At and some more, below 63
// characters, so that it is not shortened.
const maxStem = 40

var (
	assignment = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)
	plainWord  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_./-]{0,29}$`)
	notInName  = regexp.MustCompile(`[^a-z0-9]+`)
)

// generateName returns a name that says what runs.
func generateName(what string) string { return stem(what) + "-" + rand.String(5) }

// stem returns the first words of a command line as part of a name: the program, and at
// most two plain words that follow. Options and what comes after them are left out, since
// they may hold what should not be in a name.
func stem(what string) string {
	words := strings.Fields(what)
	for len(words) > 0 && assignment.MatchString(words[0]) {
		words = words[1:]
	}
	var parts []string
	for i, word := range words {
		if i == 0 {
			word = strings.Trim(path.Base(word), `'"`)
		}
		if i == 3 || !plainWord.MatchString(word) {
			break
		}
		part := strings.Trim(notInName.ReplaceAllString(strings.ToLower(word), "-"), "-")
		if part == "" || len(strings.Join(append(parts, part), "-")) > maxStem {
			break
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return "at"
	}
	return strings.Join(parts, "-")
}
