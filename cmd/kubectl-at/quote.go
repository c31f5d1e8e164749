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
	"regexp"
	"strings"
)

var (
	// harmless matches words without special meaning to a shell.
	harmless = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)
	// reserved matches words that have a special meaning as the first word.
	reserved = regexp.MustCompile(`^(case|do|done|elif|else|esac|fi|for|function|if|in|select|then|time|until|while)$|=`)
)

// shellCommand returns the command line that makes a shell run exactly these arguments. A
// single argument is a command line already.
func shellCommand(args []string) string {
	if len(args) == 1 {
		return args[0]
	}
	quoted := make([]string, len(args))
	for i, arg := range args {
		if !harmless.MatchString(arg) || i == 0 && reserved.MatchString(arg) {
			arg = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
		quoted[i] = arg
	}
	return strings.Join(quoted, " ")
}
