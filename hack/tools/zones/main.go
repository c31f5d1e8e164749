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

// Command zones prints the names of the time zones in the zoneinfo.zip of a Go
// distribution, which are those that the IANA time zone database lists, one a line, in the order of the file.
package main

import (
	"archive/zip"
	"fmt"
	"os"
	"strings"
)

func main() {
	archive, err := zip.OpenReader(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "zones:", err)
		os.Exit(1)
	}
	for _, file := range archive.File {
		// Factory is the database's placeholder for a zone that is not configured.
		if !strings.HasSuffix(file.Name, "/") && file.Name != "Factory" {
			fmt.Fprintln(os.Stdout, file.Name)
		}
	}
}
