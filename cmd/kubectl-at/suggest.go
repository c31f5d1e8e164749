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
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"programming-kubernetes.info/cnat-controller/cmd/kubectl-at/spelling"
	"programming-kubernetes.info/cnat-controller/cmd/kubectl-at/timespec"
)

// whatWasMeant replaces an error about words that no time has: perhaps they are a misspelled
// command of kubectl at, or the command to run, without -- before it.
func (o *create) whatWasMeant(cmd *cobra.Command, words []string, err error) error {
	var mistake *timespec.Error
	if !errors.As(err, &mistake) || !mistake.Unknown {
		return err
	}
	words = strings.Fields(text(words))
	if mistake.Offset == 0 {
		if name, found := nearestCommand(cmd.Root(), words[0]); found {
			return usageError("%q is neither a time nor a command: did you mean kubectl at %s?", words[0], name)
		}
		return err
	}
	for n := len(words) - 1; n > 0 && cmd.ArgsLenAtDash() < 0; n-- {
		if _, _, err := o.parseTime(words[:n], timespec.Options{AllowPast: o.past}); err == nil {
			time, command := strings.Join(words[:n], " "), strings.Join(words[n:], " ")
			return usageError("%q is not part of a time: write -- before the command, as in kubectl at %s -- %s", command, time, command)
		}
	}
	return err
}

// nearestCommand returns the command for a misspelled or shortened name. It never returns one
// that deletes.
func nearestCommand(root *cobra.Command, word string) (string, bool) {
	var names []string
	for _, cmd := range root.Commands() {
		if !cmd.IsAvailableCommand() || cmd.Name() == "rm" {
			continue
		}
		if len(word) >= 3 && strings.HasPrefix(cmd.Name(), word) {
			return cmd.Name(), true
		}
		names = append(names, cmd.Name())
	}
	return spelling.Nearest(word, names)
}
