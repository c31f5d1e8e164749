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

// Package version says which version of the controller this is.
package version

import (
	"cmp"
	"runtime/debug"
)

// Version is the version of the next or the present release. hack/update-codegen.sh
// brings it into the manifests.
const Version = "v0.1.0"

// revision is set by the Dockerfile, where there is no Git checkout.
var revision string

// Revision returns the commit that the binary was built from, with -dirty if there
// were changes on top of it; "unknown" if nobody can tell.
func Revision() string {
	commit, dirty := cmp.Or(revision, "unknown"), ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range info.Settings {
			switch {
			case setting.Key == "vcs.revision":
				commit = setting.Value
			case setting.Key == "vcs.modified" && setting.Value == "true":
				dirty = "-dirty"
			}
		}
	}
	return commit + dirty
}
