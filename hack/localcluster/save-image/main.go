//go:build linux

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
// save-image writes an image of a static program, NAME=BINARY, to an archive.
package main

import (
	"errors"
	"fmt"
	"os"

	"programming-kubernetes.info/cnat-controller/hack/localcluster/image"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "Usage: save-image NAME=BINARY FILE")
		os.Exit(2)
	}
	if err := save(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "save-image:", err)
		os.Exit(1)
	}
}

func save(spec, path string) error {
	images := image.Images{}
	if err := images.AddProgram(spec); err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(images.Write(file), file.Close())
}
