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
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// image is what goes into an archive as `docker save` writes it, the form that
// needs no registry: one layer, one or more names.
type image struct {
	names      []string
	user       string
	entrypoint []string
	cmd        []string
	layer      []byte
}

// writeArchive writes images as one archive.
func writeArchive(w io.Writer, images ...image) error {
	type entry struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	archive := tar.NewWriter(w)
	written := map[string]bool{}
	add := func(name string, data []byte) error {
		if written[name] {
			return nil // images may share a layer
		}
		written[name] = true
		return writeFile(archive, name, 0o644, data)
	}
	var manifest []entry
	for _, img := range images {
		layer := fmt.Sprintf("%x", sha256.Sum256(img.layer))
		config, err := json.Marshal(map[string]any{
			"architecture": runtime.GOARCH,
			"os":           "linux",
			"config": map[string]any{
				"User":       img.user,
				"Entrypoint": img.entrypoint,
				"Cmd":        img.cmd,
				"Env":        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			},
			"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + layer}},
		})
		if err != nil {
			return err
		}
		e := entry{fmt.Sprintf("%x.json", sha256.Sum256(config)), img.names, []string{layer + ".tar"}}
		if err := errors.Join(add(e.Config, config), add(e.Layers[0], img.layer)); err != nil {
			return err
		}
		manifest = append(manifest, e)
	}
	data, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	return errors.Join(add("manifest.json", data), archive.Close())
}

func writeFile(w *tar.Writer, name string, mode int64, data []byte) error {
	err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(data)), ModTime: time.Unix(0, 0)})
	if err == nil {
		_, err = w.Write(data)
	}
	return err
}

// layer is a root file system: the folders that programs expect, two users,
// one binary and symbolic links to it.
func layer(binary string, content []byte, links ...string) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	var errs []error
	for _, dir := range []string{"bin", "dev", "etc", "home", "proc", "root", "sys", "tmp", "usr", "usr/bin", "var", "var/tmp"} {
		mode := int64(0o755)
		if filepath.Base(dir) == "tmp" {
			mode = 0o1777
		}
		errs = append(errs, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: mode, ModTime: time.Unix(0, 0)}))
	}
	errs = append(errs,
		writeFile(w, "etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nnonroot:x:65532:65532:nonroot:/home:/bin/false\nnobody:x:65534:65534:nobody:/home:/bin/false\n")),
		writeFile(w, "etc/group", 0o644, []byte("root:x:0:\nnonroot:x:65532:\nnogroup:x:65534:\n")),
		writeFile(w, binary, 0o755, content))
	for _, link := range links {
		errs = append(errs, w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: link, Linkname: "/" + binary, Mode: 0o777, ModTime: time.Unix(0, 0)}))
	}
	errs = append(errs, w.Close())
	return buf.Bytes(), errors.Join(errs...)
}

// busyboxImages makes the images that every node has: busybox under the names
// that the project's default and its examples use, and the pause of every Pod.
// The binary in them is the one that Debian's busybox-static installs, not that
// of the official image of this tag.
func busyboxImages(ctx context.Context) ([]image, error) {
	const path = "/bin/busybox"
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	list, err := exec.CommandContext(ctx, path, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list: %w", path, err)
	}
	links := []string{"usr/bin/env"}
	for applet := range strings.FieldsSeq(string(list)) {
		if applet != "busybox" {
			links = append(links, "bin/"+applet)
		}
	}
	root, err := layer("bin/busybox", content, links...)
	return []image{
		{names: []string{"busybox:1.37.0", "busybox:latest"}, cmd: []string{"sh"}, layer: root},
		{names: []string{"localhost/pause:1"}, user: "65534:65534", entrypoint: []string{"/bin/sleep", "infinity"}, layer: root},
	}, err
}

// binaryImage makes an image of one static binary, run as a user who is not root.
func binaryImage(name, path string) (image, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return image{}, err
	}
	if !isStatic(content) {
		return image{}, fmt.Errorf("%s is not a static Linux binary: in an image of its own it finds no libraries; build it with CGO_ENABLED=0", path)
	}
	file := filepath.Base(path)
	root, err := layer(file, content)
	return image{names: []string{name}, user: "65532:65532", entrypoint: []string{"/" + file}, layer: root}, err
}

func isStatic(content []byte) bool {
	file, err := elf.NewFile(bytes.NewReader(content))
	return err == nil && !slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// loadImages brings images into the node's containerd. Each is NAME=BINARY, for
// an image to be made of a static binary, or the path of an image archive.
func (c *cluster) loadImages(ctx context.Context, specs []string) error {
	for _, spec := range specs {
		name, path, made := strings.Cut(spec, "=")
		if !made {
			file, err := os.Open(spec)
			if err != nil {
				return err
			}
			err = c.importArchive(ctx, file)
			file.Close()
			if err != nil {
				return fmt.Errorf("%s: %w", spec, err)
			}
			continue
		}
		img, err := binaryImage(name, path)
		if err != nil {
			return err
		}
		if err := c.importImages(ctx, img); err != nil {
			return fmt.Errorf("%s: %w", spec, err)
		}
	}
	return nil
}

func (c *cluster) importImages(ctx context.Context, images ...image) error {
	var archive bytes.Buffer
	if err := writeArchive(&archive, images...); err != nil {
		return err
	}
	return c.importArchive(ctx, &archive)
}

func (c *cluster) importArchive(ctx context.Context, archive io.Reader) error {
	cmd := c.ctr(ctx, "images", "import", "--local", "-")
	cmd.Stdin = archive
	output, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("importing into containerd: %w\n%s", err, output)
	}
	// It says "unpacking NAME (DIGEST)...done".
	for _, match := range regexp.MustCompile(`unpacking (\S+)`).FindAllSubmatch(output, -1) {
		say("     image %s", match[1])
	}
	return nil
}

func (c *cluster) ctr(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, filepath.Join(c.bin, "ctr"),
		append([]string{"--address", c.path("containerd/state/containerd.sock"), "--namespace", "k8s.io"}, args...)...)
}
