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

package steps

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	informers "programming-kubernetes.info/cnat-controller/pkg/generated/informers/externalversions/cnat/v1alpha1"
	listers "programming-kubernetes.info/cnat-controller/pkg/generated/listers/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/connect"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/sorted"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/staleness"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// Indexes of the caches: Pods by the At that they belong to, Ats by their parent, and Ats
// that have not ended by the node in spec.node.
const (
	byAt     = "at"
	byParent = "parent"
	byNode   = "node"
)

// Cache is what this process knows without asking the API server: what the informers have,
// and what it has written since.
type Cache struct {
	Ats       listers.AtLister
	ats, pods cache.Indexer
	// Written has the Ats that this process has written and that are not in the cache yet. A
	// decision based on an older status could run a command again.
	Written *staleness.Written[*v1alpha1.At]
	// Freshness tells how old the Ats in the cache can be.
	Freshness *staleness.Tracker
}

// NewCache returns the Cache of two informers, and sets their transform and indexes. The
// informer of Pods must select those with the label v1alpha1.LabelAtUID.
func NewCache(atInformer informers.TypedAtInformer, podInformer coreinformers.TypedPodInformer) (*Cache, error) {
	ats, pods := atInformer.Informer(), podInformer.Informer()
	c := &Cache{Ats: atInformer.Lister(), ats: ats.GetIndexer(), pods: pods.GetIndexer()}
	c.Freshness = staleness.NewTracker(c.ats.LastStoreSyncResourceVersion)
	c.Written = staleness.NewWritten(func(namespace, name string) (*v1alpha1.At, error) { return c.Ats.Ats(namespace).Get(name) }, plan.KeepAt)
	err := errors.Join(
		ats.SetTransform(connect.Transform(plan.KeepAt)),
		pods.SetTransform(connect.Transform(plan.KeepPod)),
		pods.AddIndexers(cache.Indexers{byAt: func(obj any) ([]string, error) {
			pod := obj.(*corev1.Pod)
			return []string{cache.NewObjectName(pod.Namespace, plan.AtName(pod)).String()}, nil
		}}),
		ats.AddIndexers(cache.Indexers{
			byParent: func(obj any) ([]string, error) {
				at := obj.(*v1alpha1.At)
				if parent := plan.ParentName(at); parent != "" {
					return []string{cache.NewObjectName(at.Namespace, parent).String()}, nil
				}
				return nil, nil
			},
			byNode: func(obj any) ([]string, error) {
				if at := obj.(*v1alpha1.At); at.Spec.Node != "" && at.Status.Phase != v1alpha1.PhaseDone {
					return []string{at.Spec.Node}, nil
				}
				return nil, nil
			},
		}))
	if err != nil {
		return nil, fmt.Errorf("set the transform and the indexes of the informers: %w", err)
	}
	return c, nil
}

// World returns what the cache knows of the World of the At with the given name.
func (c *Cache) World(name cache.ObjectName) *plan.World {
	world := &plan.World{At: c.At(name), Pods: c.PodsOf(name)}
	if world.At != nil {
		world.At = c.Written.Latest(world.At)
		c.addRelatives(world)
	}
	return world
}

// At returns the cached At with the given name, or nil.
func (c *Cache) At(name cache.ObjectName) *v1alpha1.At {
	at, err := c.Ats.Ats(name.Namespace).Get(name.Name)
	if err != nil { // The only possible error: it is not in the cache.
		return nil
	}
	return at
}

// PodsOf returns the Pods of all Ats that have, or had, the given name.
func (c *Cache) PodsOf(name cache.ObjectName) []*corev1.Pod {
	return indexed[*corev1.Pod](c.pods, byAt, name.String())
}

// Orphans returns the Pods whose At is not in the cache.
func (c *Cache) Orphans() []*corev1.Pod {
	var orphans []*corev1.Pod
	for _, object := range c.pods.List() {
		if pod := object.(*corev1.Pod); c.At(cache.NewObjectName(pod.Namespace, plan.AtName(pod))) == nil {
			orphans = append(orphans, pod)
		}
	}
	return sorted.ByName(orphans)
}

// ParentOf returns the At with the name of a child's parent, or nil if there is none.
func (c *Cache) ParentOf(at *v1alpha1.At) *v1alpha1.At {
	name := plan.ParentName(at)
	if name == "" {
		return nil
	}
	if parent := c.At(cache.NewObjectName(at.Namespace, name)); parent != nil {
		return c.Written.Latest(parent)
	}
	return nil
}

// ChildrenOf returns the Ats that say that the At with the given name is their parent.
func (c *Cache) ChildrenOf(name cache.ObjectName) []*v1alpha1.At {
	return indexed[*v1alpha1.At](c.ats, byParent, name.String())
}

// OnNode returns the Ats that need a node and have not ended.
func (c *Cache) OnNode(node string) []*v1alpha1.At { return indexed[*v1alpha1.At](c.ats, byNode, node) }

// addRelatives adds the parent and the children of the At to world.
func (c *Cache) addRelatives(world *plan.World) {
	world.Parent, world.Children = c.ParentOf(world.At), nil
	for _, child := range c.ChildrenOf(cache.MetaObjectToName(world.At)) {
		if plan.IsChildOf(child, world.At) {
			world.Children = append(world.Children, c.Written.Latest(child))
		}
	}
}

// indexed returns the objects that an index lists for a value.
func indexed[T metav1.Object](indexer cache.Indexer, index, value string) []T {
	objects, err := indexer.ByIndex(index, value)
	utilruntime.Must(err) // An error would mean that the index does not exist.
	found := make([]T, len(objects))
	for i, object := range objects {
		found[i] = object.(T)
	}
	return sorted.ByName(found)
}
