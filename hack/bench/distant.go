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
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
)

// oneWay is the delay of each direction between the controller and a distant API server.
const oneWay = 10 * time.Millisecond

// distant compares a burst with a bare loop and with the floor, all with a distant API server. The
// kubelet is near it.
func (b *bench) distant(ctx context.Context, number int) error {
	kubeconfig, err := delayed(ctx, os.Getenv("KUBECONFIG"), filepath.Dir(b.binary))
	if err != nil {
		return err
	}
	far, err := connect(kubeconfig)
	if err != nil {
		return err
	}
	if err := b.createRecordCRD(ctx); err != nil {
		return err
	}
	if _, err := far.bare(ctx, warmUp); err != nil {
		return err
	}
	for range b.pairs {
		bare, err := far.bare(ctx, number)
		if err != nil {
			return err
		}
		floor, err := far.floor(ctx, number, 0, b.cluster)
		if err != nil {
			return err
		}
		took, err := b.runBurst(ctx, number, 0, "-kubeconfig="+kubeconfig)
		if err != nil {
			return err
		}
		b.samplePair(bare, floor, took, 0)
	}
	b.reportPairs(ptr.To(1.5), nil, nil)
	return nil
}

// delayed starts a proxy for the API server of a kubeconfig that delays everything by
// oneWay, and returns the path of a kubeconfig for it.
func delayed(ctx context.Context, kubeconfig, dir string) (string, error) {
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return "", err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	cluster := config.Clusters[config.Contexts[config.CurrentContext].Cluster]
	server, err := url.Parse(cluster.Server)
	if err != nil {
		return "", err
	}
	cluster.Server, cluster.TLSServerName = "https://"+listener.Addr().String(), server.Hostname()
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			upstream, err := (&net.Dialer{}).DialContext(ctx, "tcp", server.Host)
			if err != nil {
				_ = client.Close()
				continue
			}
			go forward(upstream, client)
			go forward(client, upstream)
		}
	}()
	path := filepath.Join(dir, "distant.kubeconfig")
	return path, clientcmd.WriteToFile(*config, path)
}

// forward copies from one connection to another, oneWay later.
func forward(to, from net.Conn) {
	type chunk struct {
		data []byte
		due  time.Time
	}
	chunks := make(chan chunk, 10_000)
	go func() {
		defer close(chunks)
		for {
			data := make([]byte, 32<<10)
			n, err := from.Read(data)
			if n > 0 {
				chunks <- chunk{data[:n], time.Now().Add(oneWay)}
			}
			if err != nil {
				return
			}
		}
	}()
	defer func() { _ = to.Close() }()
	for c := range chunks {
		time.Sleep(time.Until(c.due))
		if _, err := to.Write(c.data); err != nil {
			break
		}
	}
	_ = from.Close()
	for range chunks { // until the reader has ended
	}
}
