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

package preflight

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/metrics"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/steps/workload"
)

// verdict is the answer to the dry-run creation of a Pod.
type verdict struct {
	pod string // its name
	// forecast is nil if the answer does not allow a prediction.
	forecast *plan.Forecast
	// retry reports whether another try may have a meaningful answer.
	retry bool
}

// byCommand is shared in the place of a verdict that depends on the commands: Pods that are alike
// have answers of their own.
type byCommand struct{}

// newVerdict returns the verdict that ended with the given error. It does not keep the error,
// which can have any size.
func newVerdict(ctx context.Context, forecast *plan.Forecast, err error) verdict {
	if forecast == nil {
		klog.FromContext(ctx).V(2).Info("Preflight has no result", "cause", answer.ForLog(err))
	}
	return verdict{forecast: forecast, retry: !apierrors.IsBadRequest(err)}
}

// result returns the result of a dry-run for the metrics.
func (v verdict) result() string {
	switch {
	case v.forecast == nil:
		return metrics.PreflightUnknown
	case v.forecast.Reason == "":
		return metrics.PreflightAccepted
	default:
		return metrics.PreflightRefused
	}
}

// named returns the answer for the dry-run of the same Pod with another name.
func (v verdict) named(pod string) verdict {
	if v.forecast != nil {
		v.forecast = &plan.Forecast{
			Reason:  v.forecast.Reason,
			Message: strings.ReplaceAll(v.forecast.Message, strconv.Quote(v.pod), strconv.Quote(pod)),
		}
	}
	return v
}

// ask returns what would happen if an At were due now.
func (p *Preflight) ask(ctx context.Context, at *v1alpha1.At) verdict {
	if at.Spec.Restart != nil {
		return p.askRestart(ctx, at)
	}
	v := p.askPod(ctx, at)
	if plan.NeedsNodes(at) && v.forecast != nil && v.forecast.Reason == "" {
		nodes, err := p.nodes(ctx)
		v = newVerdict(ctx, plan.ForeseeNodes(at, nodes, err), err)
	}
	return v
}

// askPod returns the API server's answer to the creation of an At's Pod, which may be the
// answer for a Pod like it. Commands do not count: very many Ats differ in nothing else. But
// where a webhook or a policy has refused one of these Pods, maybe for its command, each
// command gets its own answer.
func (p *Preflight) askPod(ctx context.Context, at *v1alpha1.At) verdict {
	pod := plan.NewPod(at, p.defaults)
	like, same := plan.PodKeys(pod)
	key := like
	shared, _ := p.shared.Get(key)
	if shared == (byCommand{}) {
		key = same
		shared, _ = p.shared.Get(key)
	}
	if v, ok := shared.(verdict); ok {
		metrics.Preflights.WithLabelValues(metrics.PreflightShared).Inc()
		return v.named(pod.Name)
	}
	if p.dryRuns.Wait(ctx) != nil {
		return verdict{}
	}
	_, err := p.dryRun(ctx, pod)
	// A webhook that does not support dry-run causes a BadRequest error, and a retry will
	// not change that.
	v := newVerdict(ctx, plan.Foresee(v1alpha1.ReasonPodRefused, err), err)
	v.pod = pod.Name
	if v.result() == metrics.PreflightRefused && plan.MayConcernCommand(err) {
		key = same
		p.shared.Set(like, byCommand{}, sharedTime)
	}
	metrics.Preflights.WithLabelValues(v.result()).Inc()
	validFor := refusedPeriod
	if v.result() == metrics.PreflightAccepted || v.forecast == nil && !v.retry {
		validFor = sharedTime
	}
	p.shared.Set(key, v, validFor)
	return v
}

// dryRun returns the Pod that the API server would store.
func (p *Preflight) dryRun(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	admitted, err := p.Kube.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return nil, fmt.Errorf("create Pod: %w", err)
	}
	return admitted, nil
}

// askRestart looks whether the workload of spec.restart could be restarted.
func (p *Preflight) askRestart(ctx context.Context, at *v1alpha1.At) verdict {
	if p.dryRuns.Wait(ctx) != nil {
		return verdict{}
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	forecast, err := workload.Foresee(ctx, p.Kube.AppsV1(), at, p.clock.Now())
	v := newVerdict(ctx, forecast, err)
	metrics.Preflights.WithLabelValues(v.result()).Inc()
	return v
}
