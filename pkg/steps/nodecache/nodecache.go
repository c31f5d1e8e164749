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
// Package nodecache provides a cache of the cluster's nodes that is only filled when it
// is needed: most clusters never need it, and some do not permit it.
package nodecache

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/connect"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/sorted"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// ErrNotSynced is the error while the cache is being filled.
var ErrNotSynced = errors.New("the cache of nodes has not synced yet")

// Cache is a cache of the nodes.
type Cache struct {
	client   kubernetes.Interface
	informer coreinformers.TypedNodeInformer
	wanted   chan struct{}
	want     func() // closes wanted
}

// New returns a cache that uses an informer that nothing else starts. It calls changed
// with the name of each node that was added, replaced or removed.
func New(client kubernetes.Interface, informer coreinformers.TypedNodeInformer, changed func(node string)) (*Cache, error) {
	c := &Cache{client: client, informer: informer, wanted: make(chan struct{})}
	c.want = sync.OnceFunc(func() { close(c.wanted) })
	if err := informer.Informer().SetTransform(connect.Transform(plan.KeepNode)); err != nil {
		return nil, fmt.Errorf("set the transform of nodes: %w", err)
	}
	_, err := informer.TypedInformer().AddTypedEventHandler(coreinformers.NodeHandlerFuncs{
		AddFunc:    func(node *corev1.Node) { changed(node.Name) },
		DeleteFunc: func(node coreinformers.DeletedNode) { changed(node.GetObjectName().Name) },
		UpdateFunc: func(old, cur *corev1.Node) {
			if old.UID != cur.UID { // The informer missed that the old node was removed before a new one was added.
				changed(cur.Name)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("add the event handler for nodes: %w", err)
	}
	return c, nil
}

// Run runs the informer from when it is first needed until ctx is done.
func (c *Cache) Run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-c.wanted:
	}
	c.informer.Informer().RunWithContext(ctx)
}

// List returns the nodes. The error is ErrNotSynced or, if the controller is not allowed to list
// them, the API server's. It never waits for the cache.
func (c *Cache) List(ctx context.Context) ([]*corev1.Node, error) {
	if err := c.fill(ctx); err != nil {
		return nil, err
	}
	nodes, _ := c.informer.Lister().List(labels.Everything()) // Reading from a cache cannot fail.
	return sorted.ByName(nodes), nil
}

// Get returns a node, or nil if it does not exist. The errors are those of List. If confirm is true, it
// reads a node that is not in the cache from the API server, because the cache may be outdated.
func (c *Cache) Get(ctx context.Context, name string, confirm bool) (*corev1.Node, error) {
	if err := c.fill(ctx); err != nil {
		return nil, err
	}
	node, err := c.informer.Lister().Get(name)
	if err == nil {
		return node, nil
	}
	// The only possible error: it is not in the cache.
	if !confirm {
		return nil, nil
	}
	node, err = c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if answer.IsNotFound(err, name) {
		return nil, nil
	}
	return node, err
}

// fill makes Run fill the cache. The informer only starts if the nodes can be listed, because it
// would retry forever.
func (c *Cache) fill(ctx context.Context) error {
	if cache.IsDone(c.informer.Informer().HasSyncedChecker()) {
		return nil
	}
	select {
	case <-c.wanted:
	default:
		if _, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
			return err
		}
		c.want()
	}
	return ErrNotSynced
}
