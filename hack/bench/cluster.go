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
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/client-go/util/workqueue"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
)

// parallel is the number of concurrent requests of the benchmark: the fastest number for
// a bare loop.
const parallel = 16

// cluster is the cluster in which the benchmark runs. It has no node.
type cluster struct {
	kube    kubernetes.Interface
	cnat    clientset.Interface
	dynamic dynamic.Interface
	dir     string // folder of its kubeconfig, where hack/localcluster stores the audit log
}

func connect(kubeconfig string) (*cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("the benchmark needs a cluster, hack/bench.sh starts one: %w", err)
	}
	config.QPS = -1
	cnat, err := clientset.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	protobuf := rest.CopyConfig(config)
	protobuf.ContentType = runtime.ContentTypeProtobuf
	kube, err := kubernetes.NewForConfig(protobuf)
	if err != nil {
		return nil, err
	}
	return &cluster{kube: kube, cnat: cnat, dynamic: dynamicClient, dir: filepath.Dir(kubeconfig)}, nil
}

// newNamespace creates a namespace in which Pods can be created.
func (c *cluster) newNamespace(ctx context.Context) (string, error) {
	ns, err := c.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-"},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return ns.Name, wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err := c.kube.CoreV1().ServiceAccounts(ns.Name).Get(ctx, "default", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
}

// deleteNamespace deletes a namespace with all that is in it, so that it does not slow down what
// is measured next.
func (c *cluster) deleteNamespace(ctx context.Context, name string) error {
	progress("deleting namespace %s", name)
	namespaces := c.kube.CoreV1().Namespaces()
	if err := namespaces.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, 10*time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err := namespaces.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
}

// each calls do for each i below number, several at a time, and returns the errors.
func each(ctx context.Context, number int, do func(i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	workqueue.ParallelizeUntil(ctx, parallel, number, func(i int) {
		if err := do(i); err != nil {
			cancel(err)
		}
	})
	return context.Cause(ctx)
}

func newAt(name string, schedule time.Time) *v1alpha1.At {
	return &v1alpha1.At{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.AtSpec{Schedule: schedule.UTC().Format(time.RFC3339Nano), RunSpec: v1alpha1.RunSpec{Command: "echo YAY"}},
	}
}

// createAts creates a number of Ats due at the same instant.
func (c *cluster) createAts(ctx context.Context, namespace string, number int, due time.Time) error {
	return each(ctx, number, func(i int) error {
		_, err := c.cnat.CnatV1alpha1().Ats(namespace).Create(ctx, newAt(fmt.Sprintf("at-%06d", i), due), metav1.CreateOptions{})
		return err
	})
}

// seen records when each object of a namespace was first seen in the expected state.
type seen struct {
	lock  sync.Mutex
	at    map[string]time.Time // by name
	last  time.Time
	count chan int // the latest count
	stop  func()
}

func observe(watcher watch.Interface, wanted func(runtime.Object) bool) *seen {
	s := &seen{at: map[string]time.Time{}, count: make(chan int, 1), stop: watcher.Stop}
	go func() {
		for event := range watcher.ResultChan() {
			object, ok := event.Object.(metav1.Object)
			if !ok || event.Type == watch.Deleted || !wanted(event.Object) {
				continue
			}
			s.lock.Lock()
			if _, before := s.at[object.GetName()]; !before {
				s.last = time.Now()
				s.at[object.GetName()] = s.last
			}
			count := len(s.at)
			s.lock.Unlock()
			select {
			case <-s.count:
			default:
			}
			s.count <- count
		}
		close(s.count)
	}()
	return s
}

// wait waits until number objects were seen, and returns when the last one was.
func (s *seen) wait(ctx context.Context, number int, limit time.Duration, what string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for count := 0; count < number; {
		select {
		case now, more := <-s.count:
			if !more {
				return time.Time{}, fmt.Errorf("the watch of %s ended after %d of %d", what, count, number)
			}
			if now/1000 > count/1000 || now == number {
				progress("%d of %d %s", now, number, what)
			}
			count = now
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("%d of %d %s after %v: %w", count, number, what, limit, ctx.Err())
		}
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.last, nil
}

// watchPods watches the Pods of a namespace that has none yet.
func (c *cluster) watchPods(ctx context.Context, namespace string) (watch.Interface, error) {
	pods := c.kube.CoreV1().Pods(namespace)
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: pods.Watch,
	})
}

// watchAts watches the Ats of a namespace that has none yet.
func (c *cluster) watchAts(ctx context.Context, namespace string) (watch.Interface, error) {
	ats := c.cnat.CnatV1alpha1().Ats(namespace)
	list, err := ats.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: ats.Watch,
	})
}

// seePods records when the Pods of a namespace appear.
func (c *cluster) seePods(ctx context.Context, namespace string) (*seen, error) {
	watcher, err := c.watchPods(ctx, namespace)
	if err != nil {
		return nil, err
	}
	return observe(watcher, func(runtime.Object) bool { return true }), nil
}

// seeDone records when the Ats of a namespace end.
func (c *cluster) seeDone(ctx context.Context, namespace string) (*seen, error) {
	watcher, err := c.watchAts(ctx, namespace)
	if err != nil {
		return nil, err
	}
	return observe(watcher, func(object runtime.Object) bool {
		return object.(*v1alpha1.At).Status.Phase == v1alpha1.PhaseDone
	}), nil
}

// playKubelet writes the statuses of the Pods of a namespace until ctx is done. They succeed once
// they have run for as long as lasts; if that is 0, their first status says so. Until begin is closed, if there is
// one, no Pod runs.
func (c *cluster) playKubelet(ctx context.Context, namespace string, lasts time.Duration, begin <-chan struct{}) error {
	watcher, err := c.watchPods(ctx, namespace)
	if err != nil {
		return err
	}
	pods := make(chan *corev1.Pod, 100_000)
	go func() {
		for event := range watcher.ResultChan() {
			if event.Type == watch.Added {
				pods <- event.Object.(*corev1.Pod)
			}
		}
	}()
	for range parallel {
		go func() {
			if begin != nil {
				<-begin
			}
			for {
				select {
				case pod := <-pods:
					runs := lasts > 0 && pod.Status.Phase != corev1.PodRunning
					if err := c.writePodStatus(ctx, pod, runs); err != nil && ctx.Err() == nil {
						progress("the status of a Pod is not written: %v", err)
					}
					if runs {
						time.AfterFunc(lasts, func() { pods <- pod })
					}
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	return nil
}

// writePodStatus writes that a Pod runs, or that it has succeeded.
func (c *cluster) writePodStatus(ctx context.Context, pod *corev1.Pod, runs bool) error {
	pod.ResourceVersion = "" // The scheduler may have written it in the meantime.
	pod.Status.Phase = corev1.PodRunning
	state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
	if !runs {
		pod.Status.Phase = corev1.PodSucceeded
		state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.Now()}}
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, State: state}}
	_, err := c.kube.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

// preflights is the key under which requests counts the requests of preflights: reads and
// dry-runs.
const preflights = "preflights"

// requests counts a controller's requests on the objects of a namespace by verb and
// resource, using the API server's audit log. It ignores requests on the marker.
func (c *cluster) requests(namespace string) (map[string]int, error) {
	file, err := os.Open(filepath.Join(c.dir, "audit.log"))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	counts := map[string]int{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	lines.Split(func(data []byte, _ bool) (int, []byte, error) {
		return bufio.ScanLines(data, false) // The last line may be incomplete.
	})
	for lines.Scan() {
		if !bytes.Contains(lines.Bytes(), []byte(namespace)) {
			continue
		}
		var request struct {
			Verb, UserAgent string
			ObjectRef       struct{ Namespace, Name, Resource, Subresource string }
		}
		if err := json.Unmarshal(lines.Bytes(), &request); err != nil {
			return nil, err
		}
		if request.ObjectRef.Namespace == namespace && strings.HasPrefix(request.UserAgent, "cnat-controller") && !strings.HasPrefix(request.ObjectRef.Name, marker) {
			what := request.Verb + " " + strings.TrimSuffix(request.ObjectRef.Resource+"/"+request.ObjectRef.Subresource, "/")
			if strings.HasSuffix(request.UserAgent, " preflight") {
				what = preflights
			}
			counts[what]++
		}
	}
	return counts, lines.Err()
}

// process is a running controller.
type process struct {
	cmd     *exec.Cmd
	started time.Time
	ended   chan error
}

// startController starts the controller with default flags.
func startController(ctx context.Context, binary string, args ...string) (*process, error) {
	log, err := os.Create(filepath.Join(filepath.Dir(binary), "controller.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &process{cmd: exec.CommandContext(ctx, binary, append([]string{"-metrics-bind-address=", "-health-probe-bind-address="}, args...)...), started: time.Now(), ended: make(chan error, 1)}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { p.ended <- p.cmd.Wait() }()
	return p, nil
}

// stop stops the controller and waits until it has ended.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return <-p.ended
}

// rss returns the current and maximum memory of the controller, in bytes.
func (p *process) rss() (now, most float64, err error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		var to *float64
		switch fields[0] {
		case "VmRSS:":
			to = &now
		case "VmHWM:":
			to = &most
		default:
			continue
		}
		kib, err := strconv.ParseFloat(fields[1], 64)
		if err != nil {
			return 0, 0, err
		}
		*to = kib * 1024
	}
	return now, most, nil
}

// cpu returns how much CPU time the controller has used so far.
func (p *process) cpu() (time.Duration, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	// After the name, which is in parentheses: utime and stime are fields 14 and 15.
	fields := strings.Fields(string(content[bytes.LastIndexByte(content, ')')+1:]))
	if len(fields) < 13 {
		return 0, errors.New("/proc/PID/stat is too short")
	}
	var ticks int
	for _, field := range fields[11:13] {
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	const ticksPerSecond = 100 // USER_HZ, which is the same on all machines.
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}
