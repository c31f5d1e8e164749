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

package cronat

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/connect"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/events"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/patch"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/staleness"
	"programming-kubernetes.info/cnat-controller/pkg/metrics"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// act takes the step that was decided. It returns the decision or, if the API server
// refused the step, the decision that follows. again reports whether to decide again now,
// based on the changes to world.
func (c *Controller) act(ctx context.Context, name cache.ObjectName, world *cronplan.World, decision cronplan.Decision) (_ cronplan.Decision, again bool, err error) {
	switch action := decision.Action.(type) {
	case nil:
	case cronplan.LookForCronAt:
		return decision, true, c.lookForCronAt(ctx, name, world)
	case cronplan.LookForAts:
		return decision, true, c.lookForAts(ctx, world)
	case cronplan.CreateAt:
		// Then it has to be decided again: the CronAt may have been edited meanwhile.
		if waited, err := c.waitAhead(ctx, 1); waited || err != nil {
			return decision, true, err
		}
		created, err := c.createAt(ctx, action.At)
		if err == nil {
			// One CronAt in each 100 ms goes on with its status. When that comes back through the
			// watch, the cache is known to be fresh, so that the others that are due need not be
			// read. Theirs are written after all Ats are created: the event of the At triggers that.
			if c.freshness.Claim(c.clock.Now()) {
				replace(world, plan.KeepAt(created))
				return decision, true, nil
			}
			return decision, false, nil
		}
		var existing *v1alpha1.At
		if apierrors.IsAlreadyExists(err) {
			existing, err = c.getAt(ctx, action.At)
		}
		switch {
		case err != nil:
			decision = cronplan.Refused(*world, fmt.Errorf("create At: %w", err))
		case !world.IsChild(existing):
			decision = cronplan.AtNameTaken(*world, existing)
		default:
			// The cache may lack the Ats of earlier times, too.
			err := c.lookForAts(ctx, world)
			replace(world, existing)
			return decision, true, err
		}
	case cronplan.DeleteAts:
		return decision, true, c.deleteAts(ctx, world, action, decision.Events)
	case cronplan.ExpireAt:
		return decision, true, c.expireAt(ctx, world, action)
	case cronplan.ReleaseAt:
		return decision, true, c.releaseAt(ctx, world, action.At)
	default:
		return decision, false, fmt.Errorf("unknown action %T", action)
	}
	// There was no action, or the API server refused it.
	if decision.Status == nil {
		return decision, false, nil
	}
	if err := c.writeStatus(ctx, world, decision); err != nil {
		return decision, false, err
	}
	return decision, decision.Retry == nil, nil
}

// replace adds an At to world, replacing any At of that name.
func replace(world *cronplan.World, at *v1alpha1.At) {
	world.Ats = append(slices.DeleteFunc(slices.Clone(world.Ats), func(other *v1alpha1.At) bool { return other.Name == at.Name }), at)
}

// waitAhead waits until -kube-api-qps permits a number of requests. waited reports whether
// they had to wait.
func (c *Controller) waitAhead(ctx context.Context, requests int32) (waited bool, err error) {
	return connect.WaitAhead(ctx, c.client.CnatV1alpha1().RESTClient().GetRateLimiter(), requests)
}

// lookForCronAt reads the CronAt when an At may be created immediately afterwards.
func (c *Controller) lookForCronAt(ctx context.Context, name cache.ObjectName, world *cronplan.World) error {
	if _, err := c.waitAhead(ctx, 2); err != nil {
		return err
	}
	client := c.client.CnatV1alpha1()
	cronAt, err := client.CronAts(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if err != nil {
		cronAt = nil
		if err := answer.UnlessGone(ctx, client.RESTClient(), v1alpha1.SchemeGroupVersion.WithResource("cronats"), name.Name, err); err != nil {
			return fmt.Errorf("read the CronAt: %w", err)
		}
	}
	if cronAt == nil || world.CronAt == nil || cronAt.UID != world.CronAt.UID {
		world.AtsAreLive = false
	}
	world.CronAt, world.CronAtIsLive, world.CronAtAsOf = cronAt, true, c.clock.Now()
	return nil
}

// lookForAts reads the Ats of the CronAt. Ats that are only in the cache may be gone, or
// may have lost their label: they count until the cache is updated.
func (c *Controller) lookForAts(ctx context.Context, world *cronplan.World) error {
	ats := c.client.CnatV1alpha1().Ats(world.CronAt.Namespace)
	options := metav1.ListOptions{LabelSelector: v1alpha1.LabelCronAtUID + "=" + string(world.CronAt.UID)}
	err := connect.Each(ctx, ats.List, options, func(at *v1alpha1.At) {
		if at = plan.KeepAt(at); world.IsChild(at) {
			replace(world, at)
		}
	})
	if err != nil {
		return fmt.Errorf("list the Ats: %w", err)
	}
	world.AtsAreLive = true
	return nil
}

// createAt creates and returns an At.
func (c *Controller) createAt(ctx context.Context, at *v1alpha1.At) (*v1alpha1.At, error) {
	created, err := c.client.CnatV1alpha1().Ats(at.Namespace).Create(ctx, at, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	klog.FromContext(ctx).V(2).Info("Created At", "at", klog.KObj(created), "schedule", created.Spec.Schedule)
	return created, nil
}

// getAt reads the At with the name of an At that could not be created.
func (c *Controller) getAt(ctx context.Context, at *v1alpha1.At) (*v1alpha1.At, error) {
	existing, err := c.client.CnatV1alpha1().Ats(at.Namespace).Get(ctx, at.Name, metav1.GetOptions{})
	switch {
	case answer.IsNotFound(err, at.Name):
		return nil, errors.New("the At already existed but has since been deleted")
	case err != nil:
		return nil, err
	}
	return plan.KeepAt(existing), nil
}

// deleteAts deletes Ats unless they have changed since the decision.
func (c *Controller) deleteAts(ctx context.Context, world *cronplan.World, action cronplan.DeleteAts, events []plan.Event) error {
	options := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}
	if action.Replaced {
		options.PropagationPolicy = ptr.To(metav1.DeletePropagationForeground)
	}
	for i, at := range action.Ats {
		options.Preconditions = &metav1.Preconditions{UID: &at.UID, ResourceVersion: &at.ResourceVersion}
		err := c.client.CnatV1alpha1().Ats(at.Namespace).Delete(ctx, at.Name, options)
		if err != nil && !answer.IsNotFound(err, at.Name) {
			return c.report(world.CronAt, v1alpha1.ReasonAtNotDeleted, fmt.Errorf("delete At %s: %w", at.Name, err))
		}
		deleted := at.DeepCopy()
		deleted.DeletionTimestamp = &metav1.Time{Time: world.Now}
		replace(world, deleted)
		klog.FromContext(ctx).V(2).Info("Deleted At", "at", klog.KObj(at), "replaced", action.Replaced)
		c.record(world.CronAt, events[i:i+1])
	}
	return nil
}

// expireAt sets the starting deadline of an At unless it has changed since the decision.
func (c *Controller) expireAt(ctx context.Context, world *cronplan.World, action cronplan.ExpireAt) error {
	at := action.At
	body := fmt.Appendf(nil, `{"metadata":{"uid":%q,"resourceVersion":%q},"spec":{"startingDeadlineSeconds":%d}}`, at.UID, at.ResourceVersion, action.Seconds)
	expired, err := c.client.CnatV1alpha1().Ats(at.Namespace).Patch(ctx, at.Name, types.MergePatchType, body, metav1.PatchOptions{})
	switch {
	case answer.IsNotFound(err, at.Name):
		expired = at.DeepCopy()
		expired.Spec.StartingDeadlineSeconds = &action.Seconds
	case err != nil:
		return c.report(world.CronAt, v1alpha1.ReasonAtNotExpired, fmt.Errorf("set the starting deadline of At %s: %w", at.Name, err))
	}
	replace(world, plan.KeepAt(expired))
	klog.FromContext(ctx).V(2).Info("Expired At", "at", klog.KObj(at), "startingDeadlineSeconds", action.Seconds)
	return nil
}

// releaseAt removes the finalizer from an At.
func (c *Controller) releaseAt(ctx context.Context, world *cronplan.World, at *v1alpha1.At) error {
	released, err := c.withoutFinalizer(ctx, at)
	switch {
	case answer.IsNotFound(err, at.Name):
		released = at.DeepCopy()
		released.Finalizers = nil
	case err != nil:
		return c.report(world.CronAt, v1alpha1.ReasonAtNotReleased, fmt.Errorf("remove the finalizer of At %s: %w", at.Name, err))
	}
	replace(world, plan.KeepAt(released))
	c.forgetCounted(at.UID)
	klog.FromContext(ctx).V(2).Info("Released At", "at", klog.KObj(at))
	return nil
}

// withoutFinalizer removes the finalizer from an At, and returns the result.
func (c *Controller) withoutFinalizer(ctx context.Context, at *v1alpha1.At) (*v1alpha1.At, error) {
	ats := c.client.CnatV1alpha1().Ats(at.Namespace)
	if !plan.HasAllFinalizers(at) {
		whole, err := ats.Get(ctx, at.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		whole.UID, at = at.UID, whole
	}
	body, err := patch.WithoutFinalizer(at, v1alpha1.FinalizerScheduled)
	if err != nil {
		return nil, err
	}
	return ats.Patch(ctx, at.Name, types.MergePatchType, body, metav1.PatchOptions{})
}

// writeStatus writes the decision's status and records its events. It puts the resulting
// CronAt into world.
func (c *Controller) writeStatus(ctx context.Context, world *cronplan.World, decision cronplan.Decision) error {
	cronAt := world.CronAt
	body, err := patch.Status(cronAt.ResourceVersion, &cronAt.Status, decision.Status)
	if err != nil {
		return err
	}
	updated, err := staleness.Send(c.written, c.freshness, c.clock, cronAt, func() (*v1alpha1.CronAt, error) {
		return c.client.CnatV1alpha1().CronAts(cronAt.Namespace).Patch(ctx, cronAt.Name, types.MergePatchType, body, metav1.PatchOptions{}, "status")
	})
	switch {
	case answer.IsNotFound(err, cronAt.Name):
		world.CronAt, world.CronAtIsLive = nil, true
		return nil
	case err != nil:
		return fmt.Errorf("write the status: %w", err)
	}
	klog.FromContext(ctx).V(2).Info("Wrote status", "lastScheduleTime", ptr.Deref(updated.Status.LastScheduleTime, metav1.Time{}), "active", updated.Status.Active, "reason", updated.Status.Reason)
	metrics.CronAtMissed.Add(float64(missed(decision.Status) - missed(&cronAt.Status)))
	c.record(updated, decision.Events)
	world.CronAt, world.CronAtIsLive, world.CronAtAsOf = updated, true, c.clock.Now()
	return nil
}

func missed(status *v1alpha1.CronAtStatus) int64 {
	return ptr.Deref(status.Missed, v1alpha1.MissedTimes{}).Count
}

// report records an event on the CronAt, if there is one, for an error that will not
// resolve by itself. It returns the error to retry with.
func (c *Controller) report(cronAt *v1alpha1.CronAt, reason string, err error) error {
	if cronAt == nil {
		return err
	}
	return events.Report(c.recorder, cronAt, reason, err)
}

func (c *Controller) record(cronAt *v1alpha1.CronAt, events []plan.Event) {
	for _, event := range events {
		c.recorder.Event(cronAt, event.Type, event.Reason, event.Message)
	}
}
