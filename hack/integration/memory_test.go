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
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"

	"programming-kubernetes.info/cnat-controller/hack/hostile"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
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
	c := startBinary(t, plain, []string{"GOMEMLIMIT=512000000"}, namespace, "-metrics-bind-address=127.0.0.1:0", "-health-probe-bind-address=127.0.0.1:0", "-v=2")
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

// TestManySmallAts has many Ats of 1 KB whose status has two messages of 4 KiB each: the controller
// keeps much less of each, also after a restart.
func TestManySmallAts(t *testing.T) {
	t.Parallel()
	const (
		number = 1000
		limit  = 6 << 10 // bytes for each, with what correlates events; the messages alone have 8 KiB
	)
	namespace := newNamespace(t)
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	start := func() *controller {
		t.Helper()
		return startBinary(t, binary, []string{"GOGC=10"}, namespace, "-metrics-bind-address=127.0.0.1:0", "-health-probe-bind-address=127.0.0.1:0", "-v=0")
	}
	c := start()
	before := heap(t, c)
	tenant := hostile.Tenant{Client: client, Namespace: namespace, Log: t.Logf}
	if err := tenant.Many(t.Context(), number, time.Now()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all Ats to have ended with long messages", func(ctx context.Context) (bool, error) {
		ats, err := cnatClient.CnatV1alpha1().Ats(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for _, at := range ats.Items {
			if at.Status.Phase != v1alpha1.PhaseDone {
				return false, nil
			}
			if len(at.Status.Message) < answer.MaxMessage || len(at.Status.Conditions[0].Message) < answer.MaxMessage {
				return false, fmt.Errorf("the message of At %s has only %d bytes: %s", at.Name, len(at.Status.Message), at.Status.Message)
			}
		}
		return len(ats.Items) == number, nil
	})
	few := func() {
		t.Helper()
		most := 0
		eventually(t, "the controller to keep little of each At", func(context.Context) (bool, error) {
			most = (heap(t, c) - before) / number // Events wait to be written, with their messages.
			return most < limit, nil
		})
		t.Logf("the controller keeps %d bytes of each At", most)
	}
	few()
	if err := c.stop(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	c = start()
	waitLog(t, c, "Starting controller")
	url := served(t, c, "health")
	eventually(t, "the controller to be ready", func(context.Context) (bool, error) {
		status, _ := get(t, url+"/readyz", "")
		return status == http.StatusOK, nil
	})
	few()
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

// heap returns the size of the heap of a controller in bytes. With GOGC=10 in its
// environment, at most a tenth of that is garbage.
func heap(t *testing.T, c *controller) int {
	t.Helper()
	_, metrics := get(t, served(t, c, "metrics")+"/metrics", "")
	match := regexp.MustCompile(`(?m)^go_memstats_heap_alloc_bytes (\S+)$`).FindStringSubmatch(metrics)
	if match == nil {
		t.Fatalf("the size of the heap is not in:\n%s", metrics)
	}
	bytes, err := strconv.ParseFloat(match[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return int(bytes)
}
