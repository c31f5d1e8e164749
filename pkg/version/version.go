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

// Package version contains the version of the controller.
package version

import (
	"cmp"
	"runtime/debug"
)

// Version is the version of the current or next release. hack/update-codegen.sh copies it
// to the manifests.
const Version = "v0.1.0"

// revision is set by the Dockerfile, because the image build has no Git checkout.
var revision string

// Revision returns the commit from which the binary was built, with the suffix -dirty if
// there were uncommitted changes, or "unknown".
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
