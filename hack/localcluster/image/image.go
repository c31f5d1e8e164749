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
// Package image makes images of static programs, without Docker.
package image

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Images are images by their names.
type Images map[name.Reference]v1.Image

// Add adds an image under all of the names.
func (i Images) Add(image v1.Image, names ...string) error {
	for _, n := range names {
		reference, err := name.ParseReference(n)
		if err != nil {
			return err
		}
		i[reference] = image
	}
	return nil
}

// AddProgram adds an image given as NAME=BINARY, which runs as a non-root user. The program is in
// the PATH, too.
func (i Images) AddProgram(spec string) error {
	n, program, found := strings.Cut(spec, "=")
	if !found {
		return fmt.Errorf("%q is not NAME=BINARY", spec)
	}
	target := filepath.Base(program)
	image, err := New(program, target, v1.Config{User: "65532:65532", Entrypoint: []string{"/" + target}}, "bin/"+target)
	if err != nil {
		return err
	}
	return i.Add(image, n)
}

// Write writes the images as an archive, as docker save does.
func (i Images) Write(w io.Writer) error { return tarball.MultiRefWrite(i, w) }

// New creates an image of a static program, which becomes the file target, with
// links to it, and with the folders and users that programs expect.
func New(program, target string, config v1.Config, links ...string) (v1.Image, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	file, err := elf.NewFile(bytes.NewReader(content))
	if err != nil || slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return nil, fmt.Errorf("%s is not a static Linux program, and its image would not contain its libraries: build it with CGO_ENABLED=0", program)
	}
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	var errs []error
	add := func(header tar.Header, content string) {
		header.Size = int64(len(content))
		errs = append(errs, w.WriteHeader(&header))
		_, err := io.WriteString(w, content)
		errs = append(errs, err)
	}
	for _, dir := range []string{"bin", "dev", "etc", "home", "proc", "root", "sys", "usr", "usr/bin", "var"} {
		add(tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}, "")
	}
	for _, dir := range []string{"tmp", "var/tmp"} {
		add(tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o1777}, "")
	}
	add(tar.Header{Name: "etc/passwd", Mode: 0o644}, "root:x:0:0:root:/root:/bin/sh\nnonroot:x:65532:65532:nonroot:/home:/bin/false\nnobody:x:65534:65534:nobody:/home:/bin/false\n")
	add(tar.Header{Name: "etc/group", Mode: 0o644}, "root:x:0:\nnonroot:x:65532:\nnogroup:x:65534:\n")
	add(tar.Header{Name: target, Mode: 0o755}, string(content))
	for _, link := range links {
		add(tar.Header{Typeflag: tar.TypeSymlink, Name: link, Linkname: "/" + target, Mode: 0o777}, "")
	}
	if err := errors.Join(append(errs, w.Close())...); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buffer.Bytes())), nil })
	if err != nil {
		return nil, err
	}
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{Architecture: runtime.GOARCH, OS: runtime.GOOS})
	if err != nil {
		return nil, err
	}
	image, err = mutate.AppendLayers(image, layer)
	if err != nil {
		return nil, err
	}
	config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	return mutate.Config(image, config)
}
