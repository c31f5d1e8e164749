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
package main

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// busybox is the program from Debian's busybox-static. It differs from that in the
// official image of this tag.
const (
	busybox    = "/bin/busybox"
	pauseImage = "localhost/pause:1"
)

// newImage creates an image of a static program, which becomes the file target, with
// links to it, and with the folders and users that programs expect.
func newImage(program, target string, config v1.Config, links ...string) (v1.Image, error) {
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

// images maps names to images.
type images map[name.Reference]v1.Image

func (i images) add(image v1.Image, names ...string) error {
	for _, n := range names {
		reference, err := name.ParseReference(n)
		if err != nil {
			return err
		}
		i[reference] = image
	}
	return nil
}

// addBusybox adds the images of every node: busybox under the names in the project's
// default and examples, and pause, which every Pod needs.
func (i images) addBusybox(ctx context.Context) error {
	list, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return fmt.Errorf("%s --list: %w", busybox, err)
	}
	links := []string{"usr/bin/env"}
	for applet := range strings.FieldsSeq(string(list)) {
		if applet != "busybox" {
			links = append(links, "bin/"+applet)
		}
	}
	shell, err := newImage(busybox, "bin/busybox", v1.Config{Cmd: []string{"sh"}}, links...)
	if err != nil {
		return err
	}
	pause, err := mutate.Config(shell, v1.Config{User: "65534:65534", Entrypoint: []string{"/bin/sleep", "infinity"}})
	if err != nil {
		return err
	}
	return errors.Join(i.add(shell, "busybox:1.37.0", "busybox:latest"), i.add(pause, pauseImage))
}

// addPrograms adds images given as NAME=BINARY, which run as a non-root user.
func (i images) addPrograms(specs []string) error {
	for _, spec := range specs {
		n, program, found := strings.Cut(spec, "=")
		if !found {
			return fmt.Errorf("%q is not NAME=BINARY", spec)
		}
		target := filepath.Base(program)
		image, err := newImage(program, target, v1.Config{User: "65532:65532", Entrypoint: []string{"/" + target}})
		if err != nil {
			return err
		}
		if err := i.add(image, n); err != nil {
			return err
		}
	}
	return nil
}

// loadImages loads images, given as NAME=BINARY, into the node of the cluster in dir.
func loadImages(ctx context.Context, dir string, specs []string) error {
	all := images{}
	if err := all.addPrograms(specs); err != nil {
		return err
	}
	return all.importInto(ctx, dir)
}

// importInto loads the images into the node of the cluster in dir.
func (i images) importInto(ctx context.Context, dir string) error {
	pid, err := os.ReadFile(filepath.Join(dir, nodePID))
	if err != nil {
		return fmt.Errorf("no node is running in %s, start one with --node: %w", dir, err)
	}
	client, err := containerd.New("/proc/"+string(pid)+"/root"+containerdSocket, containerd.WithDefaultNamespace("k8s.io"), containerd.WithTimeout(startLimit))
	if err != nil {
		return fmt.Errorf("connect to containerd: %w", err)
	}
	defer func() { _ = client.Close() }()
	archive, w := io.Pipe()
	go func() { _ = w.CloseWithError(tarball.MultiRefWrite(i, w)) }()
	imported, err := client.Import(ctx, archive)
	_ = archive.Close()
	for _, image := range imported {
		err = errors.Join(err, containerd.NewImage(client, image).Unpack(ctx, ""))
	}
	if err != nil {
		return fmt.Errorf("import images into containerd: %w", err)
	}
	return nil
}
