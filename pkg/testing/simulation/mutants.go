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

package simulation

import (
	"net/http"

	"k8s.io/utils/clock"
)

// Mutant breaks a process: what it sends, what the API server does with that, what its watches
// report, or its clock.
type Mutant struct {
	Request func(c *call)
	Answer  func(w *World, c *call, response *http.Response)
	Watch   func(w *World, s *streaming, content []byte) []byte
	Clock   func(clock.WithTicker) clock.WithTicker
}
