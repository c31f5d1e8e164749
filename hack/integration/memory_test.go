//go:build integration

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

package integration

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
)

// TestMemory starts the controller with the memory limit of the Deployment when many
// large Ats exist: its memory does not depend on the size of their commands and
// annotations. It has its own cluster, because the watch cache of a slow API server may be so late
// while they are created that no other informer of Ats can start.
func TestMemory(t *testing.T) {
	if !inOwnCluster(t) {
		return
	}
	const (
		number = 1500
		limit  = 90 << 20 // bytes
		idle   = 5 * time.Second
	)
	namespace := newNamespace(t)
	ats := cnatClient.CnatV1alpha1().Ats(namespace)
	workqueue.ParallelizeUntil(t.Context(), 16, number, func(i int) {
		at := newAt(namespace, fmt.Sprintf("at-%d", i), time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC), "true # "+strings.Repeat("x", 30_000))
		at.Annotations = map[string]string{}
		for i := range 6 {
			at.Annotations[fmt.Sprintf("example.com/%d", i)] = strings.Repeat("y", 10_000)
		}
		err := poll(t.Context(), fmt.Sprintf("%s: At %s to be created", t.Name(), at.Name), func(ctx context.Context) (bool, error) {
			_, err := ats.Create(ctx, at, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) { // etcd was too slow for the last answer.
				return true, nil
			}
			return err == nil, err
		})
		if err != nil {
			t.Error(err)
		}
	})

	plain, err := static()
	if err != nil {
		t.Fatal(err)
	}
	c := startBinary(t, plain, []string{"GOMEMLIMIT=512000000"}, namespace, "-v=2")
	url := served(t, c, "health")
	waitLog(t, c, "Starting controller")
	eventually(t, "the controller to be ready", func(context.Context) (bool, error) {
		status, _ := get(t, url+"/readyz", "")
		return status == http.StatusOK, nil
	})
	ready := memory(t, c, "VmRSS")
	time.Sleep(idle)
	idled := memory(t, c, "VmRSS")
	t.Logf("the controller has %d MiB when it is ready, %d MiB after %v, at most %d MiB", ready>>20, idled>>20, idle, memory(t, c, "VmHWM")>>20)
	if most := max(ready, idled); most > limit {
		t.Errorf("the controller has %d MiB for %d Ats, want at most %d MiB", most>>20, number, limit>>20)
	}
}

// memory returns the memory of a controller in bytes, as reported by the kernel: VmRSS is
// the current value, VmHWM the maximum.
func memory(t *testing.T, c *controller, field string) int {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(field + `:\s+(\d+) kB`).FindSubmatch(content)
	if match == nil {
		t.Fatalf("%s is not in:\n%s", field, content)
	}
	kib, err := strconv.Atoi(string(match[1]))
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
