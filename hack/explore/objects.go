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
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// kind is a kind of object.
type kind int8

const (
	ats kind = iota
	pods
	nodes
	cronAts
	deployments
	freezes
	kinds int = iota
)

// watches reports whether the controller of a kind watches another one. That of Ats reads
// Deployments when it needs them.
func (k kind) watches(other kind) bool {
	return slices.Contains(map[kind][]kind{ats: {ats, pods, nodes, freezes}, cronAts: {cronAts, ats, freezes}}[k], other)
}

var resources = [...]schema.GroupResource{v1alpha1.Resource("ats"), corev1.Resource("pods"), corev1.Resource("nodes"), v1alpha1.Resource("cronats"), {Group: appsv1.GroupName, Resource: "deployments"}, v1alpha1.Resource("freezes")}

func (k kind) String() string { return resources[k].Resource }

// content is an object without its resource version. Equal ones are the same pointer.
type content struct {
	id   uint32
	kind kind
	meta metav1.Object
	// versions has the object for each resource version.
	versions sync.Map
}

// object is an object as the API server stores it. It is never changed, only replaced.
type object struct {
	*content
	version int32
	meta    metav1.Object // with the resource version
}

func (o *object) name() string             { return o.meta.GetName() }
func (o *object) uid() types.UID           { return o.meta.GetUID() }
func (o *object) at() *v1alpha1.At         { return o.meta.(*v1alpha1.At) }
func (o *object) pod() *corev1.Pod         { return o.meta.(*corev1.Pod) }
func (o *object) cronAt() *v1alpha1.CronAt { return o.meta.(*v1alpha1.CronAt) }
func (o *object) is(k kind, name string) bool {
	return o.kind == k && o.name() == name
}

var (
	contents sync.Map // by kind and JSON
	lastID   atomic.Uint32
)

// intern returns the content of an object, which must not be changed any more.
func intern(meta metav1.Object) *content {
	meta.SetResourceVersion("")
	text, err := json.Marshal(meta)
	if err != nil {
		panic(err)
	}
	k := kindOf(meta)
	key := string(rune('0'+k)) + string(text)
	if known, ok := contents.Load(key); ok {
		return known.(*content)
	}
	c := &content{id: lastID.Add(1), kind: k, meta: meta}
	known, _ := contents.LoadOrStore(key, c)
	return known.(*content)
}

// kept returns what the cache of a controller keeps.
func (c *content) kept() *content {
	return c.become("kept", func(meta metav1.Object) metav1.Object {
		switch o := meta.(type) {
		case *v1alpha1.At:
			return plan.KeepAt(o)
		case *corev1.Pod:
			return plan.KeepPod(o)
		case *corev1.Node:
			return plan.KeepNode(o)
		case *v1alpha1.CronAt:
			return cronplan.KeepCronAt(o)
		}
		return meta
	})
}

// with returns the object with a resource version.
func (c *content) with(version int32) *object {
	if known, ok := c.versions.Load(version); ok {
		return known.(*object)
	}
	o := &object{content: c, version: version, meta: clone(c.meta)}
	o.meta.SetResourceVersion(formatVersion(version))
	known, _ := c.versions.LoadOrStore(version, o)
	return known.(*object)
}

// changed has the contents that changes lead to, so that each is made once.
var changed sync.Map

type changeKey struct {
	id   uint32
	what string
}

// change returns the content after a change. what must describe the change completely.
func (c *content) change(what string, do func(meta metav1.Object)) *content {
	return c.become(what, func(meta metav1.Object) metav1.Object {
		do(meta)
		return meta
	})
}

func (c *content) become(what string, do func(meta metav1.Object) metav1.Object) *content {
	key := changeKey{c.id, what}
	if known, ok := changed.Load(key); ok {
		return known.(*content)
	}
	after := intern(do(clone(c.meta)))
	changed.Store(key, after)
	return after
}

func kindOf(meta metav1.Object) kind {
	switch meta.(type) {
	case *v1alpha1.At:
		return ats
	case *corev1.Pod:
		return pods
	case *corev1.Node:
		return nodes
	case *v1alpha1.CronAt:
		return cronAts
	case *appsv1.Deployment:
		return deployments
	case *v1alpha1.Freeze:
		return freezes
	}
	panic("unknown kind")
}

func clone(meta metav1.Object) metav1.Object {
	return meta.(runtime.Object).DeepCopyObject().(metav1.Object)
}

// A UID says whose object it is: <name>_<number> or, if it has an owner,
// <UID of the owner>_<name>_<number>.

// newUID returns the UID of a new object, and records it.
func (s *state) newUID(meta metav1.Object) types.UID {
	path := meta.GetName() + "_"
	if owner := metav1.GetControllerOfNoCopy(meta); owner != nil {
		path = string(owner.UID) + "_" + path
	}
	number := byte('1')
	for _, uid := range s.made {
		if strings.HasPrefix(string(uid), path) && !strings.Contains(string(uid[len(path):]), "_") {
			number++
		}
	}
	uid := types.UID(path + string(number))
	s.made = insert(s.made, uid)
	return uid
}

// ownerOf returns the UID of the owner that is in a UID.
func ownerOf(uid types.UID) types.UID {
	attempt := attemptOf(uid)
	return attempt[:max(0, strings.LastIndexByte(string(attempt), '_'))]
}

// attemptOf returns a UID without its number: all Pods of an attempt have it in common.
func attemptOf(uid types.UID) types.UID { return uid[:strings.LastIndexByte(string(uid), '_')] }

// isWithin reports whether the object with a UID is another one, or belongs to it.
func isWithin(uid, other types.UID) bool {
	return uid == other || strings.HasPrefix(string(uid), string(other)+"_")
}

// insert returns a sorted list with one more element.
func insert[T ~string](list []T, element T) []T {
	i, _ := slices.BinarySearch(list, element)
	return slices.Insert(slices.Clone(list), i, element)
}
