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
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

const (
	// maxLogTries is the maximum number of consecutive failed requests for a log.
	maxLogTries = 10
	// statusDelay is how long a container may be shown as running after the end of its log.
	statusDelay = 5 * time.Second
)

func (c *cli) logsCommand() *cobra.Command {
	w := wait{logs: true}
	var follow bool
	var attempt int32
	cmd := &cobra.Command{
		Use:   "logs NAME",
		Short: "Print the output of a run",
		Long: `Print the output of the latest attempt, or of another one; with --nodes that on each node, each
line with the name of the node. If the command has not started, print the output of the init
container that is running or has failed. With -f, wait for the start and print the output of that
attempt and all later ones, until the end of the run; the exit code then reports the outcome, like
that of kubectl at TIME --logs.`,
		Example: `  kubectl at logs backup-x2b4f
  kubectl at logs backup-x2b4f -f
  kubectl at logs backup-x2b4f -c proxy
  kubectl at logs backup-x2b4f --attempt 1`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if attempt < 0 {
				return usageError("--attempt is %d: the first one is 1", attempt)
			}
			if !follow && (w.timeout.value != nil || w.passExitCode) {
				return usageError("--timeout and --pass-exit-code require -f")
			}
			info, err := c.getAt(args[0])
			if err != nil {
				return err
			}
			at := info.Object.(*v1alpha1.At)
			switch {
			case at.Spec.Restart != nil:
				return fmt.Errorf("%s restarts %s, which has no output: see %s", ref(at), targetOf(&at.Spec.RunSpec), c.kubectl("at show %s", at.Name))
			case follow:
				return c.follow(cmd.Context(), at, &w)
			}
			return c.logs(cmd.Context(), at, attempt, w.container)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "Print the output as it is written, until the end")
	cmd.Flags().StringVarP(&w.container, "container", "c", "", "Name of the container (default: the one that runs the command)")
	cmd.Flags().Int32Var(&attempt, "attempt", 0, "Number of the attempt, from 1 (default: the latest)")
	w.addLimits(cmd.Flags(), "With -f: ")
	cmd.MarkFlagsMutuallyExclusive("follow", "attempt")
	return cmd
}

// logs prints the output so far of a container of an attempt, from 1, or of the latest one; with nodes that on each.
func (c *cli) logs(ctx context.Context, at *v1alpha1.At, attempt int32, container string) (failed error) {
	ats := []*v1alpha1.At{at}
	if at.Spec.Nodes != nil {
		ats, failed = c.nodeAts(at)
	}
	var lock sync.Mutex
	found := false
	for _, one := range ats {
		latest := newestAttempt(one) + 1
		number := cmp.Or(attempt, latest)
		if number == 0 || number > latest {
			continue
		}
		found = true
		log := podLog{cli: c, out: c.Out, at: one, attempt: number - 1, container: container}
		if at.Spec.Nodes != nil {
			log.out = ofNode(one, c.Out, &lock)
		}
		failed = errors.Join(failed, log.print(ctx))
	}
	switch {
	case found || failed != nil:
		return failed
	case attempt > 0:
		return fmt.Errorf("%s has no attempt %d: %s", ref(at), attempt, c.stateLine(at))
	}
	return fmt.Errorf("%s has no output yet: %s", ref(at), c.stateLine(at))
}

// newestAttempt returns the number of the latest attempt with a Pod, starting at 0, or -1
// if there is none.
func newestAttempt(at *v1alpha1.At) int32 {
	if at.Status.Pod != nil && at.Status.Pod.Name == plan.PodName(at) {
		return plan.PodsBefore(at)
	}
	return plan.PodsBefore(at) - 1
}

// streams prints the output of the attempts of a run: those of an At one after the other, those of
// the Ats of nodes at the same time, each line with its node. A nil one prints nothing.
type streams struct {
	*cli
	ctx       context.Context
	out       io.Writer
	container string
	lock      sync.Mutex // of out and failed
	of        map[types.UID]*stream
	printed   sync.WaitGroup
	failed    error
	looked    func() error // looks for all attempts of the Ats of nodes; nil without nodes
}

// stream is the output of one At.
type stream struct {
	next int32         // the number of the attempt that has not been seen
	last chan struct{} // is closed after the last one that has been seen is printed
}

// streamLogs prints the output of a container, or of the one that counts, of the latest attempt of a run, and of later ones.
func (c *cli) streamLogs(ctx context.Context, out io.Writer, at *v1alpha1.At, container string) *streams {
	s := &streams{cli: c, ctx: ctx, out: out, container: container, of: map[types.UID]*stream{}}
	if at.Spec.Nodes != nil {
		s.lookAtNodes(at)
	}
	return s
}

// lookAtNodes detects new attempts of the Ats of nodes.
func (s *streams) lookAtNodes(parent *v1alpha1.At) {
	ctx, stop := context.WithCancel(s.ctx)
	var watched sync.WaitGroup
	s.looked = func() error {
		stop()
		watched.Wait()
		ats, err := s.nodeAts(parent)
		for _, at := range ats {
			s.look(at)
		}
		return err
	}
	watched.Go(func() {
		ofNodes := cache.NewFilteredListWatchFromClient(s.cnat, "ats", parent.Namespace, func(options *metav1.ListOptions) { options.LabelSelector = ofNodes(parent) })
		_ = watchObjects(ctx, s.ErrOut, ofNodes, false, func(at *v1alpha1.At) bool {
			s.look(at)
			return false
		}) // What it missed is read in the end.
	})
}

// look detects new attempts.
func (s *streams) look(at *v1alpha1.At) {
	if s == nil || at.Spec.Nodes != nil {
		return
	}
	of := s.of[at.UID]
	if of == nil {
		of = &stream{max(newestAttempt(at), 0), make(chan struct{})}
		close(of.last)
		s.of[at.UID] = of
	}
	for ; of.next <= newestAttempt(at); of.next++ {
		log, before, last := podLog{cli: s.cli, out: s.out, at: at, attempt: of.next, container: s.container}, of.last, make(chan struct{})
		if s.looked != nil {
			log.out = ofNode(at, s.out, &s.lock)
		}
		of.last = last
		s.printed.Go(func() {
			defer close(last)
			<-before
			if err := log.stream(s.ctx); err != nil && s.ctx.Err() == nil {
				s.lock.Lock()
				defer s.lock.Unlock()
				s.failed = errors.Join(s.failed, err)
			}
		})
	}
}

// finish waits until everything is printed.
func (s *streams) finish() error {
	if s == nil {
		return nil
	}
	var err error
	if s.looked != nil {
		err = s.looked()
	}
	s.printed.Wait()
	return errors.Join(err, s.failed)
}

// podLog prints the log of a container.
type podLog struct {
	*cli
	out       io.Writer
	at        *v1alpha1.At
	attempt   int32  // from 0
	container string // "" for the one that counts
}

func (l *podLog) pod() string { return plan.NameOfPod(l.at.Name, l.attempt) }

// ended returns the result of printing a log, and ends its last line if others follow.
func (l *podLog) ended(err error) error {
	if lines, ok := l.out.(*prefixed); ok {
		lines.end()
	}
	if err != nil {
		return fmt.Errorf("read the log of Pod %s: %w", l.pod(), err)
	}
	return nil
}

// stream prints the log from the start of the container to the end of the Pod, including
// the log of a Pod that has already ended, or of a restarted container.
func (l *podLog) stream(ctx context.Context) error {
	if l.attempt > 0 {
		l.say("attempt %d: pod/%s", l.attempt+1, l.pod())
	}
	return l.ended(l.streamAll(ctx))
}

func (l *podLog) streamAll(ctx context.Context) error {
	for restart := int32(-1); ; {
		var pod *corev1.Pod
		var container string
		var status *corev1.ContainerStatus
		err := l.watchPod(ctx, func(next *corev1.Pod) bool {
			pod = next
			if l.check(pod) != nil {
				return true
			}
			container, status = containerOf(pod, l.container)
			if status != nil && (status.RestartCount <= restart || !hasStarted(status)) {
				status = nil
			}
			return status != nil || isOver(pod)
		})
		if err == nil {
			err = l.check(pod)
		}
		switch {
		case err != nil:
			return err
		case status == nil && restart < 0 && blockingInit(pod) != nil:
			return l.printOf(ctx, pod)
		case status == nil:
			return nil
		}
		restart = status.RestartCount
		if err := l.follow(ctx, container, restart); err != nil {
			return err
		}
	}
}

// follow prints the log of a container until it ends. If following fails, or ends before
// the container does, follow requests the log again and skips what was already printed.
func (l *podLog) follow(ctx context.Context, container string, restart int32) error {
	printed, hasEnded := int64(0), false
	for try := 1; ; try++ {
		n, err := l.copy(ctx, &corev1.PodLogOptions{Container: container, Follow: !hasEnded}, printed)
		if printed += n; n > 0 {
			try = 0
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case hasEnded && (err == nil || apierrors.IsNotFound(err)):
			return nil
		case err == nil:
			var isThere bool
			if hasEnded, isThere = l.hasEnded(ctx, restart); hasEnded && !isThere {
				return nil
			}
			if hasEnded {
				continue // The rest of the log, if it ended before the container.
			}
		case try >= maxLogTries, apierrors.IsNotFound(err), apierrors.IsForbidden(err):
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.NewTimer(retryPeriod).C:
		}
	}
}

// hasEnded reports whether a container whose log is at its end has ended, and whether its log
// is still there.
func (l *podLog) hasEnded(ctx context.Context, restart int32) (hasEnded, isThere bool) {
	ctx, cancel := context.WithTimeout(ctx, statusDelay)
	defer cancel()
	err := l.watchPod(ctx, func(pod *corev1.Pod) bool {
		_, status := containerOf(pod, l.container)
		isThere = status != nil && status.RestartCount == restart
		hasEnded = isOver(pod) || !isThere || status.State.Running == nil
		return hasEnded
	})
	if errors.Is(err, errGone) {
		return true, false
	}
	return hasEnded, isThere
}

// print prints the log so far.
func (l *podLog) print(ctx context.Context) error {
	pod, err := l.pods().Get(ctx, l.pod(), metav1.GetOptions{})
	if err == nil {
		err = l.check(pod)
	}
	if err == nil {
		err = l.printOf(ctx, pod)
	}
	return l.ended(err)
}

// check returns an error if the Pod is not that of the At, or lacks the container.
func (l *podLog) check(pod *corev1.Pod) error {
	if !plan.IsOf(pod, l.at) {
		return errors.New("that Pod belongs to another object")
	}
	names := namesOf(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers))
	if l.container != "" && !slices.Contains(names, l.container) {
		return fmt.Errorf("it has no container %q: choose one of %s", l.container, strings.Join(names, ", "))
	}
	return nil
}

// printOf prints the log so far of a Pod. If the command has not started, that is the log of the init container that it
// waits for. If a container waits for its next start, it is the last log. printOf says so, and how the container ended.
func (l *podLog) printOf(ctx context.Context, pod *corev1.Pod) error {
	container, status := containerOf(pod, l.container)
	note := ""
	if init := blockingInit(pod); init != nil && l.container == "" {
		container, status = init.Name, init
		note = "the command has not started. This is the output of container " + container
	}
	options := &corev1.PodLogOptions{Container: container}
	if status != nil && status.State.Running == nil {
		options.Previous = status.State.Waiting != nil && status.LastTerminationState.Terminated != nil
		ended := cmp.Or(status.State.Terminated, status.LastTerminationState.Terminated)
		if ended != nil && (note != "" || options.Previous || l.container == "" && !isOver(pod)) {
			note = cmp.Or(note, "this is the output of container "+container) + fmt.Sprintf(", which ended with exit code %d", ended.ExitCode)
		}
		if options.Previous {
			note += " and will start again"
		}
	}
	if note != "" {
		l.say("pod/%s: %s", pod.Name, note)
	}
	_, err := l.copy(ctx, options, 0)
	return err
}

func (l *podLog) pods() corev1client.PodInterface { return l.kube.CoreV1().Pods(l.at.Namespace) }

// copy prints a log except for its first bytes, and returns how many bytes it printed.
func (l *podLog) copy(ctx context.Context, options *corev1.PodLogOptions, skip int64) (int64, error) {
	stream, err := l.pods().GetLogs(l.pod(), options).Stream(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = stream.Close() }()
	if _, err := io.CopyN(io.Discard, stream, skip); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	return io.Copy(l.out, stream)
}

func (l *podLog) watchPod(ctx context.Context, seen func(*corev1.Pod) bool) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: l.at.Namespace, Name: l.pod()}}
	return watchObject(ctx, l.ErrOut, l.kube.CoreV1().RESTClient(), pod, seen)
}

func namesOf(containers []corev1.Container) (names []string) {
	for _, container := range containers {
		names = append(names, container.Name)
	}
	return names
}

// mainContainer returns the index of the container that counts.
func mainContainer(annotations map[string]string, containers []corev1.Container) int {
	return max(0, slices.Index(namesOf(containers), annotations[plan.DefaultContainer]))
}

// containerOf returns the name and the status of a container; without a name, those of the container that counts.
func containerOf(pod *corev1.Pod, name string) (string, *corev1.ContainerStatus) {
	if name == "" {
		name = pod.Spec.Containers[mainContainer(pod.Annotations, pod.Spec.Containers)].Name
	}
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if status.Name == name {
			return name, &status
		}
	}
	return name, nil
}

// blockingInit returns the status of the init container that is running or has failed while the command has not started.
func blockingInit(pod *corev1.Pod) *corev1.ContainerStatus {
	if _, status := containerOf(pod, ""); status != nil && hasStarted(status) {
		return nil
	}
	for _, init := range slices.Backward(pod.Spec.InitContainers) {
		_, status := containerOf(pod, init.Name)
		if status == nil || !hasStarted(status) {
			continue
		}
		isSidecar, ended := ptr.Deref(init.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways, status.State.Terminated
		if ended != nil && ended.ExitCode == 0 || isSidecar && ptr.Deref(status.Started, false) {
			return nil
		}
		return status
	}
	return nil
}

// hasStarted reports whether a container has a log.
func hasStarted(status *corev1.ContainerStatus) bool {
	return status.State.Running != nil || status.State.Terminated != nil || status.LastTerminationState.Terminated != nil
}

func isOver(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
