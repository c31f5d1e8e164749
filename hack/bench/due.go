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
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

const (
	// warmUp is the number of Pods to create before the first measurement.
	warmUp = 500
	// longCommand is how long the commands of burst-long take.
	longCommand = 8 * time.Second
	// untilAllStarted means that no command ends before all have started.
	untilAllStarted = -1
	// spreadSeconds is spec.spreadSeconds of the CronAts that are spread.
	spreadSeconds = 60
	labelFleet    = "fleet" // of the benchmark's nodes
)

// kind is what can be due at one instant.
type kind struct {
	resource string
	object   func(name string, due time.Time) runtime.Object
}

const cronJobsResource = "cronjobs"

var (
	ats       = kind{"ats", func(name string, due time.Time) runtime.Object { return newAt(name, due) }}
	nodeAts   = onNodes(nil)
	cronAts   = spread(0)
	spreadAts = spread(spreadSeconds)
	cronJobs  = kind{cronJobsResource, func(name string, due time.Time) runtime.Object {
		template := corev1.PodTemplateSpec{Spec: plan.NewPod(newAt("at", due), defaults).Spec}
		return &batchv1.CronJob{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: batchv1.CronJobSpec{
				Schedule:    due.Format("4 15 2 1 *"),
				TimeZone:    ptr.To("UTC"),
				JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: template}},
			},
		}
	}}
	defaults = plan.Defaults{Image: "busybox:1.37.0"}
)

func newAt(name string, due time.Time) *v1alpha1.At {
	return &v1alpha1.At{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.AtSpec{Schedule: due.UTC().Format(time.RFC3339Nano), RunSpec: v1alpha1.RunSpec{Command: "echo YAY"}},
	}
}

// onNodes are Ats whose Pods the scheduler ignores: one that fits on any of very many
// nodes would cost the scheduler more than one for a single node.
func onNodes(nodes *v1alpha1.AtNodes) kind {
	return kind{"ats", func(name string, due time.Time) runtime.Object {
		at := newAt(name, due)
		at.Spec.Nodes = nodes
		at.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			SchedulerName: "none",
			Containers:    []corev1.Container{{Name: "command", Image: defaults.Image}},
		}}
		return at
	}}
}

// spread are CronAts that start within some seconds.
func spread(seconds int32) kind {
	return kind{"cronats", func(name string, due time.Time) runtime.Object {
		return &v1alpha1.CronAt{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1alpha1.CronAtSpec{
				Schedule:      due.Format("4 15 2 1 *"),
				SpreadSeconds: ptr.To(seconds),
				AtTemplate:    v1alpha1.AtTemplateSpec{Spec: newAt("", due).Spec.RunSpec},
			},
		}
	}}
}

func (b *bench) create(k kind, namespace, name string, due time.Time) error {
	client := b.cnat.CnatV1alpha1().RESTClient()
	if k.resource == cronJobsResource {
		client = b.kube.BatchV1().RESTClient()
	}
	return client.Post().Namespace(namespace).Resource(k.resource).Body(k.object(name, due)).Do(b.ctx).Error()
}

func (b *bench) createAll(k kind, namespace string, number int, due time.Time) {
	b.each(number, func(i int) error { return b.create(k, namespace, fmt.Sprintf("at-%06d", i), due) })
}

// createDue creates what is due once all is created, and returns that time.
func (b *bench) createDue(k kind, namespace string, number int) time.Time {
	due := time.Now().Add(5*time.Second + time.Duration(number)*6*time.Millisecond).Truncate(time.Millisecond).UTC()
	if k.resource != ats.resource { // They are due at full minutes.
		due = due.Add(time.Duration(number) * 10 * time.Millisecond).Truncate(time.Minute).Add(time.Minute)
	}
	b.createAll(k, namespace, number, due)
	if time.Until(due) < time.Second {
		panic("the machine is too slow: not all was created before it was due")
	}
	progress("%d are due in %v", number, time.Until(due).Round(time.Second))
	return due
}

// run starts a controller, creates objects that become due at one instant, whose commands take
// lasts, and waits until all have ended. It returns how many seconds late each Pod was, and the last
// end. commands is the number of Pods.
func (b *bench) run(k kind, number, commands int, lasts time.Duration) (late []float64, end float64) {
	namespace := b.newNamespace()
	b.start("-namespace=" + namespace)
	pods, done := b.seePods(namespace), b.seeDone(namespace)
	if lasts != untilAllStarted {
		b.playKubelet(namespace, lasts)
	}
	due := b.createDue(k, namespace, number)
	before := b.serverTime()
	late = b.late(pods, commands, due, 0)
	if lasts == untilAllStarted {
		b.playKubelet(namespace, 0)
	}
	if k.resource != cronJobsResource { // Of those, no At is DONE in the end.
		end = slices.Max(b.late(done, number, due, 0))
		b.figures["processor time of the API server for each run, ms"] = (b.serverTime() - before) * 1000 / float64(commands)
		b.sleep(15 * time.Second) // Pods are released, and events are written, some time after the end.
		for _, what := range []string{"writes", "reads", "events", "preflights"} {
			b.figures["requests for each run: "+what] = b.requests(namespace)[what] / float64(commands)
		}
	}
	b.deleteNamespaces()
	b.stop()
	return late, end
}

// podsToCreate returns the Pods that the controller would create, in a new namespace. They have no
// finalizer, because nothing would remove it.
func (b *bench) podsToCreate(number int) (namespace string, pods []*corev1.Pod) {
	namespace, pods = b.newNamespace(), make([]*corev1.Pod, number)
	b.each(number, func(i int) error {
		at := newAt(fmt.Sprintf("at-%06d", i), far)
		at.Spec.Suspend = ptr.To(true)
		at, err := b.cnat.CnatV1alpha1().Ats(namespace).Create(b.ctx, at, metav1.CreateOptions{})
		if err == nil {
			pods[i] = plan.NewPod(at, defaults)
			pods[i].Finalizers = nil
		}
		return err
	})
	return namespace, pods
}

// bare creates the same Pods as the controller in a bare loop, and returns how many seconds it is
// until the last is seen.
func (b *bench) bare(number int) float64 {
	namespace, pods := b.podsToCreate(number)
	created := b.seePods(namespace)
	b.sleep(3 * time.Second)
	start := time.Now()
	b.createPods(pods)
	last := slices.Max(b.late(created, number, start, 0))
	b.deleteNamespaces()
	return last
}

func (b *bench) createPods(pods []*corev1.Pod) {
	b.each(len(pods), func(i int) error {
		_, err := b.kube.CoreV1().Pods(pods[i].Namespace).Create(b.ctx, pods[i], metav1.CreateOptions{})
		return err
	})
}

// floor does only what no system can leave out for a number of runs: it creates the Pod, the
// kubelet writes the Pod's status, and then it writes a record. As in the controller, the Pods come
// first. It returns how many seconds it takes until the last Pod is seen, and until all is recorded.
func (b *bench) floor(number int, lasts time.Duration) (lastPod, end float64) {
	namespace, toCreate := b.podsToCreate(number)
	send := func(request *rest.Request, body []byte) error {
		return request.Namespace(namespace).Resource("records").Body(body).Do(b.ctx).Error()
	}
	b.each(number, func(i int) error {
		return send(b.cnat.CnatV1alpha1().RESTClient().Post(), fmt.Appendf(nil, `{"apiVersion":%q,"kind":"Record","metadata":{"name":%q}}`, v1alpha1.SchemeGroupVersion, toCreate[i].Name))
	})
	pods, ended := b.seePods(namespace), make(chan string, number)
	b.watchPods(namespace, hasSucceeded, func(pod *corev1.Pod) { ended <- pod.Name })
	b.playKubelet(namespace, lasts)
	b.sleep(3 * time.Second)
	before, start := b.serverTime(), time.Now()
	b.createPods(toCreate)
	b.each(number, func(int) error {
		select {
		case name := <-ended:
			patch := fmt.Appendf(nil, `{"status":{"exitCode":0,"completionTime":%q}}`, time.Now().UTC().Format(time.RFC3339))
			return send(b.cnat.CnatV1alpha1().RESTClient().Patch(types.MergePatchType).Name(name).SubResource("status"), patch)
		case <-b.ctx.Done():
			return b.ctx.Err()
		}
	})
	end = time.Since(start).Seconds()
	b.figures["floor: processor time of the API server for each run, ms"] = (b.serverTime() - before) * 1000 / float64(number)
	lastPod = slices.Max(b.late(pods, number, start, 0))
	b.deleteNamespaces()
	return lastPod, end
}

func hasSucceeded(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded }

// burst compares Ats that are due at one instant with a bare loop and with the floor, both measured
// just before.
func burst(lasts time.Duration) func(b *bench) {
	return func(b *bench) {
		bare := b.bare(b.number)
		floorPod, floorEnd := b.floor(b.number, lasts)
		late, end := b.run(ats, b.number, b.number, lasts)
		b.figures["bare loop: last Pod, s"] = bare
		b.figures["floor: last Pod, s"] = floorPod
		b.figures["floor: all recorded, s"] = floorEnd
		b.figures["last Pod, s"] = slices.Max(late)
		b.figures["all DONE, s"] = end
		b.figures["last Pod, to the bare loop"] = slices.Max(late) / bare
		b.figures["last Pod, to the floor"] = slices.Max(late) / floorPod
		// The duration of the commands does not count.
		b.figures["all DONE, to the floor"] = (end - lasts.Seconds()) / (floorEnd - lasts.Seconds())
	}
}

// cronJob measures CronJobs that become due at one instant, for comparison.
func cronJob(b *bench) {
	bare := b.bare(b.number)
	late, _ := b.run(cronJobs, b.number, b.number, 0)
	b.figures["CronJobs: last Pod, s"] = slices.Max(late)
	b.figures["CronJobs: last Pod, to the bare loop"] = slices.Max(late) / bare
}

// cronAt compares CronAts that are due at one instant with the same number of Ats. Then they are
// spread over a minute.
func cronAt(b *bench) {
	ofAts, _ := b.run(ats, b.number, b.number, untilAllStarted)
	ofCronAts, _ := b.run(cronAts, b.number, b.number, untilAllStarted)
	b.figures["CronAts: last Pod, s"] = slices.Max(ofCronAts)
	b.figures["CronAts: last Pod, to Ats"] = slices.Max(ofCronAts) / slices.Max(ofAts)
	var started [spreadSeconds]int // by second
	spread, _ := b.run(spreadAts, b.number, b.number, untilAllStarted)
	for _, late := range spread {
		started[int(late)]++
	}
	b.figures["spread over a minute: most in a second, of 1,000"] = float64(slices.Max(started[:])) * 1000 / float64(b.number)
}

// nodes compares one At for a number of nodes with the same number of Ats.
func nodes(b *bench) {
	b.each(b.number, func(i int) error { // without capacity, so that no other Pods are scheduled there
		_, err := b.kube.CoreV1().Nodes().Create(b.ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%06d", i), Labels: map[string]string{labelFleet: ""}},
		}, metav1.CreateOptions{})
		return err
	})
	_, separate := b.run(nodeAts, b.number, b.number, 0)
	_, one := b.run(onNodes(&v1alpha1.AtNodes{
		Selector: metav1.LabelSelector{MatchLabels: map[string]string{labelFleet: ""}},
	}), 1, b.number, 0)
	b.figures["one At: DONE, s"] = one
	b.figures["one At: DONE, to separate Ats"] = one / separate
	must(b.kube.CoreV1().Nodes().DeleteCollection(b.ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: labelFleet}))
}
