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
// distribution, which are those that the IANA time zone database lists, one a line.
package main

import (
	"archive/zip"
	"fmt"
	"os"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "zones:", err)
		os.Exit(1)
	}
}

func run(path string) error {
	archive, err := zip.OpenReader(path)
	if err != nil {
		return err
	}
	defer func() { _ = archive.Close() }()
	var names []string
	for _, file := range archive.File {
		// Factory is the database's placeholder for a zone that is not configured.
		if !strings.HasSuffix(file.Name, "/") && file.Name != "Factory" {
			names = append(names, file.Name)
		}
	}
	slices.Sort(names)
	_, err = fmt.Fprintln(os.Stdout, strings.Join(names, "\n"))
	return err
}
