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
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"programming-kubernetes.info/cnat-controller/hack/localcluster/image"
)

// busybox is the program from Debian's busybox-static. It differs from that in the
// official image of this tag.
const (
	busybox    = "/bin/busybox"
	pauseImage = "localhost/pause:1"
)

// addBusybox adds the images of every node: busybox under the names in the project's
// default and examples, and pause, which every Pod needs.
func addBusybox(ctx context.Context, images image.Images) error {
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
	shell, err := image.New(busybox, "bin/busybox", v1.Config{Cmd: []string{"sh"}}, links...)
	if err != nil {
		return err
	}
	pause, err := mutate.Config(shell, v1.Config{User: "65534:65534", Entrypoint: []string{"/bin/sleep", "infinity"}})
	if err != nil {
		return err
	}
	return errors.Join(images.Add(shell, "busybox:1.37.0", "busybox:latest"), images.Add(pause, pauseImage))
}

// loadImages loads images, given as NAME=BINARY or as the file of an archive, into the node
// of the cluster in dir.
func loadImages(ctx context.Context, dir string, specs []string) error {
	images := image.Images{}
	for _, spec := range specs {
		if strings.Contains(spec, "=") {
			if err := images.AddProgram(spec); err != nil {
				return err
			}
			continue
		}
		archive, err := os.Open(spec)
		if err != nil {
			return err
		}
		err = importArchive(ctx, dir, archive)
		_ = archive.Close()
		if err != nil {
			return err
		}
	}
	if len(images) == 0 {
		return nil
	}
	return importImages(ctx, dir, images)
}

// importImages loads images into the node of the cluster in dir.
func importImages(ctx context.Context, dir string, images image.Images) error {
	archive, w := io.Pipe()
	go func() { _ = w.CloseWithError(images.Write(w)) }()
	defer func() { _ = archive.Close() }()
	return importArchive(ctx, dir, archive)
}

// importArchive loads the images of an archive into the node of the cluster in dir.
func importArchive(ctx context.Context, dir string, archive io.Reader) error {
	pid, err := os.ReadFile(filepath.Join(dir, nodePID))
	if err != nil {
		return fmt.Errorf("no node is running in %s, start one with --node: %w", dir, err)
	}
	client, err := containerd.New("/proc/"+string(pid)+"/root"+containerdSocket, containerd.WithDefaultNamespace("k8s.io"), containerd.WithTimeout(startLimit))
	if err != nil {
		return fmt.Errorf("connect to containerd: %w", err)
	}
	defer func() { _ = client.Close() }()
	// Unlike Import, this waits until containerd listens on the socket that it has created.
	limited, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if _, err := client.IsServing(limited); err != nil {
		return fmt.Errorf("connect to containerd: %w", err)
	}
	imported, err := client.Import(ctx, archive)
	for _, image := range imported {
		err = errors.Join(err, containerd.NewImage(client, image).Unpack(ctx, ""))
	}
	if err != nil {
		return fmt.Errorf("import images into containerd: %w", err)
	}
	return nil
}
