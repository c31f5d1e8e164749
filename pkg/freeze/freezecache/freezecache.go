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

// Package freezecache knows the Freezes of the API server.
package freezecache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/freeze"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
)

// A change is effective maxAge after it was made at the latest, also if a watch reports nothing.
// For that, the Freezes are listed each period. listTimeout ends between two of the attempts that
// connect.Patient makes each second.
const (
	maxAge      = 30 * time.Second
	period      = 12 * time.Second
	listTimeout = 7500 * time.Millisecond
	retryPeriod = time.Second
)

// minAbsences is how often in a row the API server must answer that something is not there, or not
// permitted, until that is believed. Just after it has started, it knows no permissions, and a proxy
// in front of it may answer as well.
const minAbsences = 10

// errOutdated is the answer while the Freezes cannot be read.
var errOutdated = errors.New("the Freezes were last read more than 30 seconds ago")

// Cache has the Freezes that the controller obeys.
type Cache struct {
	cnatClient     clientset.Interface
	metadataClient metadata.Interface
	// namespace is the one that the controller works in, or "" for all. controller is its own.
	namespace, controller string
	clock                 clock.WithTicker
	// changed are called after each change.
	changed []func()

	known    atomic.Pointer[known]
	synced   chan struct{}
	outdated chan struct{} // ends a watch, to list the Freezes now

	// These are those of Run.
	freezes    map[types.UID]*version
	namespaces map[string]labels.Set // nil if they are not needed, or cannot be listed
	isNew      bool                  // whether something has changed since the last publish
	reported   map[string]string     // problems in the log
	absences   map[string]int        // see minAbsences
}

// known is what is known of all Freezes.
type known struct {
	set *freeze.Set
	// asOf is a time: all changes that were made before are in the set.
	asOf time.Time
}

// version is a Freeze, as of a resource version.
type version struct {
	resourceVersion string
	freeze          *freeze.Freeze
}

// New returns a Cache, which Run fills.
func New(cnatClient clientset.Interface, metadataClient metadata.Interface, namespace, controller string, wallClock clock.WithTicker) *Cache {
	return &Cache{
		cnatClient: cnatClient, metadataClient: metadataClient, namespace: namespace, controller: controller, clock: wallClock,
		synced: make(chan struct{}), outdated: make(chan struct{}, 1), freezes: map[types.UID]*version{}, reported: map[string]string{},
		absences: map[string]int{},
	}
}

// Notify makes changed be called after each change. Call it before Run.
func (c *Cache) Notify(changed func()) { c.changed = append(c.changed, changed) }

// Name implements cache.DoneChecker.
func (c *Cache) Name() string { return "Freezes" }

// Done implements cache.DoneChecker: it is closed once the Freezes are known.
func (c *Cache) Done() <-chan struct{} { return c.synced }

// Set returns the Freezes. The error says that they are not known: nothing may start then.
func (c *Cache) Set() (*freeze.Set, error) {
	known := c.known.Load()
	if known == nil || c.clock.Since(known.asOf) > maxAge {
		select {
		case c.outdated <- struct{}{}:
		default:
		}
		return nil, errOutdated
	}
	return known.set, nil
}

// Run follows the Freezes until ctx is done.
func (c *Cache) Run(ctx context.Context) {
	for ctx.Err() == nil {
		wait, err := c.follow(ctx)
		c.report(ctx, "Freezes cannot be listed", err)
		select {
		case <-ctx.Done():
		case <-c.clock.After(wait):
		}
	}
}

// report logs a problem, once until it changes.
func (c *Cache) report(ctx context.Context, what string, err error) {
	text := ""
	if err != nil && ctx.Err() == nil {
		text = err.Error()
	}
	if c.reported[what] != text {
		if c.reported[what] = text; text != "" {
			klog.FromContext(ctx).Info(what, "answer", text)
		}
	}
}

// isAbsent reports whether something cannot be listed: its CRD is not installed, or the controller has
// no permission, as before there were Freezes. It is certain if that was the answer often enough.
func (c *Cache) isAbsent(what string, err error) (absent, certain bool) {
	if !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) { //nolint:forbidigo // It is about the resource, not about an object.
		c.absences[what] = 0
		return false, false
	}
	c.absences[what]++
	return true, c.absences[what] >= minAbsences
}

// follow lists the Freezes, and applies what a watch reports until they must be listed again. It
// returns how long to wait before that.
func (c *Cache) follow(ctx context.Context) (time.Duration, error) {
	asOf := c.clock.Now()
	list, err := c.list(ctx)
	switch absent, certain := c.isAbsent("freezes", err); {
	case absent && !certain:
		return retryPeriod, nil
	case absent:
		c.replace(ctx, nil)
		c.publish(asOf)
		return period, fmt.Errorf("everything runs as if there were none: apply artifacts/examples/cnat-crd.yaml and the permissions that come with it: %w", err)
	case err != nil:
		return retryPeriod, err
	}
	c.replace(ctx, list.Items)
	if err := c.listNamespaces(ctx); err != nil {
		return retryPeriod, err
	}
	c.publish(asOf)
	return c.watch(ctx, list.ResourceVersion, asOf)
}

func (c *Cache) list(ctx context.Context) (*v1alpha1.FreezeList, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	return c.cnatClient.CnatV1alpha1().Freezes(c.namespace).List(ctx, metav1.ListOptions{})
}

// replace replaces all Freezes.
func (c *Cache) replace(ctx context.Context, objects []v1alpha1.Freeze) {
	listed := sets.New[types.UID]()
	for i := range objects {
		listed.Insert(objects[i].UID)
		c.add(ctx, &objects[i])
	}
	for uid := range c.freezes {
		if !listed.Has(uid) {
			c.remove(uid)
		}
	}
}

// add adds a Freeze, or another version of one.
func (c *Cache) add(ctx context.Context, object *v1alpha1.Freeze) {
	if before := c.freezes[object.UID]; before != nil && before.resourceVersion == object.ResourceVersion {
		return
	}
	ready, err := freeze.New(object)
	if err != nil {
		klog.FromContext(ctx).Error(err, "A Freeze cannot be read completely: is its CRD outdated?", "freeze", klog.KObj(object))
	}
	klog.FromContext(ctx).V(2).Info("Freeze added or changed", "freeze", klog.KObj(object))
	c.freezes[object.UID] = &version{object.ResourceVersion, ready}
	c.isNew = true
}

func (c *Cache) remove(uid types.UID) {
	delete(c.freezes, uid)
	c.isNew = true
}

// publish makes what is known the answer of Set.
func (c *Cache) publish(asOf time.Time) {
	var freezes []*freeze.Freeze
	for _, uid := range slices.Sorted(maps.Keys(c.freezes)) {
		freezes = append(freezes, c.freezes[uid].freeze)
	}
	isFirst := c.known.Swap(&known{freeze.NewSet(c.controller, freezes, c.namespaces), asOf}) == nil
	if isFirst {
		close(c.synced)
	}
	if c.isNew {
		c.isNew = false
		for _, changed := range c.changed {
			changed()
		}
	}
}

// listNamespaces reads the labels of all namespaces, if a Freeze needs them.
func (c *Cache) listNamespaces(ctx context.Context) error {
	var found map[string]labels.Set
	if c.needsLabels() {
		ctx, cancel := context.WithTimeout(ctx, listTimeout)
		defer cancel()
		list, err := c.metadataClient.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")).List(ctx, metav1.ListOptions{})
		switch _, certain := c.isAbsent("namespaces", err); {
		case certain:
			c.report(ctx, "Namespaces cannot be listed: the namespaceSelector of a Freeze sees only their names", err)
		case err != nil:
			return fmt.Errorf("list namespaces: %w", err)
		default:
			found = map[string]labels.Set{}
			for i := range list.Items {
				found[list.Items[i].Name] = list.Items[i].Labels
			}
		}
	}
	c.isNew = c.isNew || !maps.EqualFunc(c.namespaces, found, maps.Equal[labels.Set, labels.Set])
	c.namespaces = found
	return nil
}

func (c *Cache) needsLabels() bool {
	for _, version := range c.freezes {
		if version.freeze.NeedsLabels() {
			return true
		}
	}
	return false
}

// watch applies what a watch reports until the Freezes must be listed again. It returns how long to
// wait before that.
func (c *Cache) watch(ctx context.Context, resourceVersion string, asOf time.Time) (time.Duration, error) {
	until, cancel := context.WithTimeout(ctx, period)
	defer cancel()
	events, err := c.cnatClient.CnatV1alpha1().Freezes(c.namespace).Watch(until, metav1.ListOptions{ResourceVersion: resourceVersion})
	switch {
	case until.Err() != nil:
		return 0, nil
	case err != nil:
		return retryPeriod, fmt.Errorf("watch Freezes: %w", err)
	}
	defer events.Stop()
	for {
		select {
		case <-until.Done():
			return 0, nil
		case <-c.outdated:
			return 0, nil
		case event := <-events.ResultChan():
			object, ok := event.Object.(*v1alpha1.Freeze)
			switch {
			case !ok: // The watch has ended.
				return retryPeriod, nil
			case event.Type == watch.Deleted:
				c.remove(object.UID)
			default:
				c.add(ctx, object)
			}
			if c.namespaces == nil && c.needsLabels() {
				return 0, nil
			}
			c.publish(asOf)
		}
	}
}
