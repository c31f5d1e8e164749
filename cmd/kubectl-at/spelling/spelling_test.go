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

package spelling

import (
	"strings"
	"testing"
)

func TestNearest(t *testing.T) {
	words := strings.Fields("now noon monday sunday second seconds tomorrow wednesday december hours list logs show rm Europe/Berlin")
	for word, want := range map[string]string{
		"tomorow": "tomorrow", "wendsday": "wednesday", "dezember": "december", "hurs": "hours", "lits": "list",
		"secnd": "second", "list": "list", "Europe/Berln": "Europe/Berlin",
		"soon": "", "new": "", "q": "", "nwo": "", "": "", "midday": "", "sunset": "", "r": "", "m": "", "lots": "logs",
	} {
		if got, found := Nearest(word, words); got != want || found != (want != "") {
			t.Errorf("%q: got %q, want %q", word, got, want)
		}
	}
}
