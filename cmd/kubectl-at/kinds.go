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
	"strings"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat"
)

// kinds contains the API group and the short name of each kind that an argument can name.
var kinds = map[string]struct{ group, short string }{
	"at":          {group: cnat.GroupName},
	"configmap":   {short: "cm"},
	"cronat":      {cnat.GroupName, "ca"},
	"cronjob":     {"batch", "cj"},
	"daemonset":   {"apps", "ds"},
	"deployment":  {"apps", "deploy"},
	"job":         {group: "batch"},
	"secret":      {},
	"statefulset": {"apps", "sts"},
}

// reference returns the kind and the name of an argument KIND/NAME, if it is one of the given
// kinds, by any name that kubectl accepts. Otherwise, the kind is "".
func reference(arg string, of ...string) (kind, name string) {
	written, name, _ := strings.Cut(arg, "/")
	written = strings.ToLower(written)
	for _, kind := range of {
		known := kinds[kind]
		short, _ := strings.CutSuffix(written, "."+known.group)
		if name != "" && (short == kind || short == kind+"s" || known.short != "" && written == known.short) {
			return kind, name
		}
	}
	return "", ""
}
