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

// Package heap returns memory to the system.
package heap

import "runtime/debug"

// Shrink collects the garbage and returns its memory to the system. Call it after a burst of
// work: a controller that waits allocates nothing, so the garbage would stay for minutes. Tests
// replace it, because it takes long and they run thousands of controllers.
var Shrink = debug.FreeOSMemory
