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
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
)

const (
	// parallel is the number of requests at the same time: as many as the controller has workers.
	parallel = 16
	// patience is how long anything may take.
	patience = 10 * time.Minute
	mib      = 1 << 20
)

// cluster is the cluster in which the benchmark runs. Except for the scenario node, it has no node.
type cluster struct {
	kube kubernetes.Interface
	cnat clientset.Interface
	dir  string // folder of its kubeconfig, where hack/localcluster stores the audit log
}

func connect(kubeconfig string) *cluster {
	config := get(clientcmd.BuildConfigFromFlags("", kubeconfig))
	config.QPS = -1
	protobuf := rest.CopyConfig(config)
	protobuf.ContentType = runtime.ContentTypeProtobuf
	return &cluster{get(kubernetes.NewForConfig(protobuf)), get(clientset.NewForConfig(config)), filepath.Dir(kubeconfig)}
}

// each calls do for each i below number, several at a time.
func (b *bench) each(number int, do func(i int) error) {
	ctx, cancel := context.WithCancelCause(b.ctx)
	defer cancel(nil)
	workqueue.ParallelizeUntil(ctx, parallel, number, func(i int) {
		if err := do(i); err != nil {
			cancel(err)
		}
	})
	must(context.Cause(ctx))
}

func (b *bench) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-b.ctx.Done():
		panic(b.ctx.Err())
	}
}

// newNamespace creates a namespace in which Pods can be created.
func (b *bench) newNamespace() string {
	name := get(b.kube.CoreV1().Namespaces().Create(b.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-"}}, metav1.CreateOptions{})).Name
	b.namespaces = append(b.namespaces, name)
	b.kubectl("", "wait", "--for=create", "serviceaccount/default", "-n", name, "--timeout="+patience.String())
	return name
}

// deleteNamespaces deletes the namespaces of this measurement with all that is in them, so that it
// does not slow down what is measured next. The controller still runs, because it removes finalizers.
func (b *bench) deleteNamespaces() {
	if len(b.namespaces) > 0 {
		b.kubectl("", append([]string{"delete", "namespaces", "--timeout=" + patience.String()}, b.namespaces...)...)
	}
	b.namespaces = nil
}

// kubectl runs kubectl with input on its standard input.
func (b *bench) kubectl(input string, args ...string) {
	kubectl := exec.CommandContext(context.WithoutCancel(b.ctx), "kubectl", args...)
	kubectl.Stdin = strings.NewReader(input)
	if output, err := kubectl.CombinedOutput(); err != nil {
		panic(fmt.Errorf("kubectl %q: %w: %s", args, err, output))
	}
}

// seen is when objects were first seen, by name.
type seen struct {
	lock sync.Mutex
	at   map[string]time.Time
}

// seePods records when the Pods of a namespace appear.
func (b *bench) seePods(namespace string) *seen { return b.watchPods(namespace, nil, nil) }

// watchPods records when the Pods of a namespace are first seen as wanted, and calls first for each.
func (b *bench) watchPods(namespace string, wanted func(pod *corev1.Pod) bool, first func(pod *corev1.Pod)) *seen {
	return watch(b, b.kube.CoreV1().RESTClient(), "pods", namespace, &corev1.Pod{}, wanted, first)
}

// seeDone records when the Ats of a namespace end.
func (b *bench) seeDone(namespace string) *seen {
	return watch(b, b.cnat.CnatV1alpha1().RESTClient(), "ats", namespace, &v1alpha1.At{}, func(at *v1alpha1.At) bool {
		return at.Status.Phase == v1alpha1.PhaseDone
	}, nil)
}

func watch[T interface {
	runtime.Object
	metav1.Object
}](b *bench, client cache.Getter, resource, namespace string, kind T, wanted func(T) bool, first func(T)) *seen {
	s := &seen{at: map[string]time.Time{}}
	see := func(object any) {
		o := object.(T)
		s.lock.Lock()
		defer s.lock.Unlock()
		if _, known := s.at[o.GetName()]; known || wanted != nil && !wanted(o) {
			return
		}
		s.at[o.GetName()] = time.Now()
		if first != nil {
			first(o)
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client, resource, namespace, fields.Everything()),
		ObjectType:    kind,
		Handler:       cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, object any) { see(object) }},
	})
	go informer.RunWithContext(b.ctx)
	if !cache.WaitForCacheSync(b.ctx.Done(), informer.HasSynced) {
		panic(b.ctx.Err())
	}
	return s
}

// late waits until a number of objects were seen, and returns how many seconds after its time each was. The
// first by name is due at an instant, and each other one a gap after the one before.
func (b *bench) late(s *seen, number int, due time.Time, gap time.Duration) (seconds []float64) {
	count := 0
	err := wait.PollUntilContextTimeout(b.ctx, 20*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		s.lock.Lock()
		defer s.lock.Unlock()
		count = len(s.at)
		return count >= number, nil
	})
	if err != nil {
		panic(fmt.Errorf("%d of %d were seen: %w", count, number, err))
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	for i, name := range slices.Sorted(maps.Keys(s.at)) {
		late := s.at[name].Sub(due.Add(time.Duration(i) * gap))
		if late < 0 {
			panic(name + " was early")
		}
		seconds = append(seconds, late.Seconds())
	}
	return seconds
}

// playKubelet writes the statuses of the Pods of a namespace. They succeed once they have run for
// as long as lasts; if that is 0, their first status says so.
func (b *bench) playKubelet(namespace string, lasts time.Duration) {
	pods := make(chan *corev1.Pod, 100_000)
	b.watchPods(namespace, nil, func(pod *corev1.Pod) { pods <- pod.DeepCopy() })
	for range parallel {
		go func() {
			for {
				select {
				case pod := <-pods:
					runs := lasts > 0 && pod.Status.Phase != corev1.PodRunning
					if err := b.writePodStatus(pod, runs); err != nil && b.ctx.Err() == nil {
						progress("the status of a Pod is not written: %v", err)
					}
					if runs {
						time.AfterFunc(lasts, func() { pods <- pod })
					}
				case <-b.ctx.Done():
					return
				}
			}
		}()
	}
}

// writePodStatus writes that a Pod runs, or that it has succeeded.
func (b *bench) writePodStatus(pod *corev1.Pod, runs bool) error {
	pod.ResourceVersion = "" // The scheduler may have written it in the meantime.
	pod.Status.Phase = corev1.PodRunning
	state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
	if !runs {
		pod.Status.Phase = corev1.PodSucceeded
		state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.Now()}}
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, State: state}}
	_, err := b.kube.CoreV1().Pods(pod.Namespace).UpdateStatus(b.ctx, pod, metav1.UpdateOptions{})
	return err
}

// requests counts a controller's requests on the objects of some namespaces, using the API
// server's audit log: reads, writes, events, and preflights (dry-runs). It ignores
// those on the marker.
func (b *bench) requests(namespaces ...string) map[string]float64 {
	file := get(os.Open(filepath.Join(b.dir, "audit.log")))
	defer file.Close()
	counts, wanted := map[string]float64{}, sets.New(namespaces...)
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, mib)
	for lines.Scan() {
		if !bytes.HasSuffix(lines.Bytes(), []byte("}")) {
			continue // The last line may be incomplete.
		}
		var request struct {
			Verb, UserAgent, RequestURI string
			ObjectRef                   struct{ Namespace, Name, Resource string }
		}
		must(json.Unmarshal(lines.Bytes(), &request))
		if !wanted.Has(request.ObjectRef.Namespace) || !strings.HasPrefix(request.UserAgent, "cnat-controller") || strings.HasPrefix(request.ObjectRef.Name, marker) {
			continue
		}
		switch {
		case strings.Contains(request.RequestURI, "dryRun=All"):
			counts["preflights"]++
		case request.ObjectRef.Resource == "events":
			counts["events"]++
		case request.Verb == "get":
			counts["reads"]++
		case request.Verb != "list" && request.Verb != "watch":
			counts["writes"]++
		}
	}
	must(lines.Err())
	return counts
}

var cpuSeconds = regexp.MustCompile(`(?m)^process_cpu_seconds_total (\S+)$`)

// serverTime returns the seconds of processor time that the API server has used so far.
func (b *bench) serverTime() float64 {
	metrics := get(b.kube.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(b.ctx))
	return parse(string(cpuSeconds.FindSubmatch(metrics)[1]))
}

// start starts the controller with default flags.
func (b *bench) start(args ...string) {
	log := get(os.Create(b.binary + ".log"))
	defer log.Close()
	b.controller = exec.CommandContext(b.ctx, b.binary, append([]string{"-metrics-bind-address=", "-health-probe-bind-address="}, args...)...)
	b.controller.Stdout, b.controller.Stderr, b.controller.Cancel = log, log, b.terminate
	must(b.controller.Start())
	b.started = time.Now()
}

func (b *bench) terminate() error { return b.controller.Process.Signal(syscall.SIGTERM) }

// stop stops the controller, if it runs, and waits until it has ended.
func (b *bench) stop() {
	if b.controller != nil {
		must(b.terminate())
		must(b.controller.Wait())
		b.controller = nil
	}
}

// proc reads a file of the controller in /proc.
func (b *bench) proc(name string) string {
	return string(get(os.ReadFile(fmt.Sprintf("/proc/%d/%s", b.controller.Process.Pid, name))))
}

// memory returns a figure of the controller's memory, such as VmRSS or, the most so far, VmHWM, in MiB.
func (b *bench) memory(figure string) float64 {
	_, rest, _ := strings.Cut(b.proc("status"), figure+":")
	return parse(strings.Fields(rest)[0]) / 1024
}

// cpu returns how many seconds of processor time the controller has used so far.
func (b *bench) cpu() float64 {
	// After the name, which is in parentheses: utime and stime are fields 14 and 15.
	_, rest, _ := strings.Cut(b.proc("stat"), ") ")
	fields := strings.Fields(rest)
	const ticksPerSecond = 100 // USER_HZ, which is the same on all machines.
	return (parse(fields[11]) + parse(fields[12])) / ticksPerSecond
}

func parse(text string) float64 { return get(strconv.ParseFloat(text, 64)) }
