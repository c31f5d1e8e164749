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

package nodecache

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

// fixture is a Cache of a cluster with the nodes a and b.
type fixture struct {
	*Cache
	t       *testing.T
	client  *fake.Clientset
	changed []string
}

// run calls test with a running Cache, in virtual time.
func run(t *testing.T, test func(f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{t: t, client: fake.NewClientset(newNode("a", "uid"), newNode("b", "uid"))}
		var err error
		f.Cache, err = New(f.client, informers.NewSharedInformerFactory(f.client, 0).Core().V1().Nodes(), func(node string) { f.changed = append(f.changed, node) })
		if err != nil {
			t.Fatal(err)
		}
		harness.Run(t.Context(), t, f.Run)
		test(f)
	})
}

func newNode(name string, uid types.UID) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid, Annotations: map[string]string{"large": "x"}}}
}

// requests returns the verbs of the requests since the last call.
func (f *fixture) requests() string {
	f.t.Helper()
	synctest.Wait()
	var verbs []string
	for _, action := range f.client.Actions() {
		verbs = append(verbs, action.GetVerb())
	}
	f.client.ClearActions()
	return strings.Join(verbs, " ")
}

func (f *fixture) wantList(want ...string) {
	f.t.Helper()
	if _, err := f.List(f.t.Context()); errors.Is(err, ErrNotSynced) {
		synctest.Wait()
	}
	nodes, err := f.List(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	var names []string
	for _, node := range nodes {
		names = append(names, node.Name)
		if node.Annotations != nil {
			f.t.Errorf("the cache has %v of node %s, want it without", node.Annotations, node.Name)
		}
	}
	slices.Sort(names)
	if !slices.Equal(names, want) {
		f.t.Errorf("got the nodes %v, want %v", names, want)
	}
}

func (f *fixture) wantChanged(want ...string) {
	f.t.Helper()
	synctest.Wait()
	slices.Sort(f.changed)
	if !slices.Equal(f.changed, want) {
		f.t.Errorf("changed %v, want %v", f.changed, want)
	}
	f.changed = nil
}

// TestOnlyWhenNeeded checks that nothing is read until the nodes are needed, and nothing is
// read again then.
func TestOnlyWhenNeeded(t *testing.T) {
	run(t, func(f *fixture) {
		t := f.t
		time.Sleep(time.Hour)
		if got := f.requests(); got != "" {
			t.Errorf("requests %s before the nodes are needed", got)
		}
		f.wantList("a", "b")
		if got := f.requests(); !strings.HasPrefix(got, "list ") {
			t.Errorf("requests %s, want at first a list that may be forbidden", got)
		}
		f.wantList("a", "b")
		if node, err := f.Get(t.Context(), "a", true); err != nil || node.Name != "a" {
			t.Errorf("got node %v, %v", node, err)
		}
		if got := f.requests(); got != "" {
			t.Errorf("requests %s although the cache has the nodes", got)
		}
	})
}

// TestChanged adds, changes, replaces and removes a node.
func TestChanged(t *testing.T) {
	run(t, func(f *fixture) {
		t := f.t
		nodes := f.client.CoreV1().Nodes()
		f.wantList("a", "b")
		f.wantChanged("a", "b")
		harness.Create(t, nodes, newNode("c", "uid"))
		f.wantChanged("c")
		f.wantList("a", "b", "c")
		changed := newNode("c", "uid")
		changed.Spec.Unschedulable = true
		harness.Update(t, nodes, changed)
		f.wantChanged()
		harness.Update(t, nodes, newNode("c", "another"))
		f.wantChanged("c")
		harness.Delete(t, nodes, "c")
		f.wantChanged("c")
		f.wantList("a", "b")
	})
}

// TestForbidden is not allowed to list nodes, and then it is. The informer would try forever.
func TestForbidden(t *testing.T) {
	run(t, func(f *fixture) {
		t := f.t
		forbidden := true
		f.client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			return forbidden, nil, apierrors.NewForbidden(corev1.Resource("nodes"), "", errors.New("no"))
		})
		if _, err := f.List(t.Context()); !apierrors.IsForbidden(err) {
			t.Errorf("got error %v, want that it is forbidden", err)
		}
		if _, err := f.Get(t.Context(), "a", true); !apierrors.IsForbidden(err) {
			t.Errorf("got error %v for a node, want that it is forbidden", err)
		}
		time.Sleep(time.Hour)
		if got := f.requests(); got != "list list" {
			t.Errorf("requests %s, want one for each call", got)
		}
		forbidden = false
		f.wantList("a", "b")
	})
}

// TestNotSynced has an informer that cannot read the nodes: nothing waits for it.
func TestNotSynced(t *testing.T) {
	run(t, func(f *fixture) {
		t := f.t
		lists := 0
		f.client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			lists++
			return lists > 1, nil, errors.New("unavailable")
		})
		f.client.PrependWatchReactor("nodes", func(clienttesting.Action) (bool, watch.Interface, error) {
			return true, nil, errors.New("unavailable")
		})
		start := time.Now()
		for range 2 {
			if _, err := f.List(t.Context()); !errors.Is(err, ErrNotSynced) || time.Since(start) != 0 {
				t.Errorf("got error %v after %v, want %v at once", err, time.Since(start), ErrNotSynced)
			}
			if _, err := f.Get(t.Context(), "a", true); !errors.Is(err, ErrNotSynced) {
				t.Errorf("got error %v for a node, want %v", err, ErrNotSynced)
			}
		}
	})
}

// TestGet reads nodes that the cache does not have.
func TestGet(t *testing.T) {
	proxy := &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: 404, Message: "default backend - 404"}}
	for name, tc := range map[string]struct {
		err     error
		want    bool
		wantErr bool
	}{
		"it exists":       {want: true},
		"it is gone":      {err: apierrors.NewNotFound(corev1.Resource("nodes"), "c")},
		"a proxy answers": {err: proxy, wantErr: true},
		"forbidden":       {err: apierrors.NewForbidden(corev1.Resource("nodes"), "c", errors.New("no")), wantErr: true},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(f *fixture) {
				t := f.t
				f.wantList("a", "b")
				f.requests()
				f.client.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, newNode("c", "uid"), tc.err
				})
				if node, err := f.Get(t.Context(), "c", false); node != nil || err != nil {
					t.Errorf("by the cache: got node %v, %v", node, err)
				}
				node, err := f.Get(t.Context(), "c", true)
				if (err != nil) != tc.wantErr || !tc.wantErr && (node != nil) != tc.want {
					t.Errorf("got node %v, %v; want it: %v, an error: %v", node, err, tc.want, tc.wantErr)
				}
				if got := f.requests(); got != "get" {
					t.Errorf("requests %s, want that the API server confirms it", got)
				}
			})
		})
	}
}
