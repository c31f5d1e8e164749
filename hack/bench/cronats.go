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
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

const (
	// spreadSeconds is spec.spreadSeconds of the CronAts that are spread.
	spreadSeconds = 60
	// maxPerSecond is how many of a thousand of these CronAts may start in one second. The
	// mean is 17.
	maxPerSecond = 40
)

// cronAts compares CronAts that are due at one instant with the same number of Ats, each
// with a controller that was just started. Then the same number of CronAts is spread over
// a minute.
func (b *bench) cronAts(ctx context.Context, number int) error {
	if _, err := b.bare(ctx, warmUp); err != nil {
		return err
	}
	// The order avoids that changes over time, such as the size of etcd, affect the result.
	var ats, cronAts time.Duration
	for _, ofCronAts := range []bool{false, true, true, false} {
		what, total, create := "last Pod of Ats late", &ats, b.createDue
		if ofCronAts {
			what, total, create = "last Pod of CronAts late", &cronAts, func(ctx context.Context, namespace string, number int) (time.Time, error) {
				return b.createCronAts(ctx, namespace, number, 0)
			}
		}
		late, err := b.runDue(ctx, number, create)
		if err != nil {
			return err
		}
		last := slices.Max(late)
		b.report(what, last.Seconds(), "s", nil)
		*total += last
	}
	b.report("last Pod of CronAts late, to Ats", cronAts.Seconds()/ats.Seconds(), "times", ptr.To(2.0))

	late, err := b.runDue(ctx, number, func(ctx context.Context, namespace string, number int) (time.Time, error) {
		return b.createCronAts(ctx, namespace, number, spreadSeconds)
	})
	if err != nil {
		return err
	}
	if slices.Max(late) >= spreadSeconds*time.Second {
		return fmt.Errorf("a CronAt with a spread of %d s started %v late", spreadSeconds, slices.Max(late))
	}
	var started [spreadSeconds]int // by second
	for _, by := range late {
		started[by/time.Second]++
	}
	b.report("most in a second, spread over a minute", float64(slices.Max(started[:])), "", ptr.To(float64(maxPerSecond*number)/1000))
	return nil
}

// createCronAts creates CronAts that are due at the next full minute after all have been
// created, and returns that time.
func (b *bench) createCronAts(ctx context.Context, namespace string, number int, spread int32) (time.Time, error) {
	due := time.Now().Add(5*time.Second + time.Duration(number)*16*time.Millisecond).Truncate(time.Minute).Add(time.Minute).UTC()
	err := each(ctx, number, func(i int) error {
		_, err := b.cnat.CnatV1alpha1().CronAts(namespace).Create(ctx, &v1alpha1.CronAt{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("cronat-%06d", i)},
			Spec: v1alpha1.CronAtSpec{
				Schedule:      due.Format("4 15 2 1 *"),
				SpreadSeconds: ptr.To(spread),
				AtTemplate:    v1alpha1.AtTemplateSpec{Spec: newAt("", due).Spec.RunSpec},
			},
		}, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return due, err
	}
	if time.Until(due) < 3*time.Second {
		return due, errors.New("the machine is too slow: the CronAts were not there before they were due")
	}
	progress("%d CronAts are due in %v", number, time.Until(due).Round(time.Second))
	return due, nil
}

// runDue creates a number of commands that become due and end after all have been
// started, and returns how late each Pod was. Each command has one At and one Pod.
func (b *bench) runDue(ctx context.Context, number int, create func(ctx context.Context, namespace string, number int) (time.Time, error)) (_ []time.Duration, err error) {
	namespace, err := b.newNamespace(ctx)
	if err != nil {
		return nil, err
	}
	if err := b.start(ctx, "-namespace="+namespace); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	pods, err := b.seePods(ctx, namespace)
	if err != nil {
		return nil, err
	}
	defer pods.stop()
	done, err := b.seeDone(ctx, namespace)
	if err != nil {
		return nil, err
	}
	defer done.stop()
	begin := make(chan struct{})
	if err := b.playKubelet(ctx, namespace, 0, begin); err != nil {
		return nil, err
	}
	due, err := create(ctx, namespace, number)
	if err != nil {
		return nil, err
	}
	if _, err := pods.wait(ctx, number, 10*time.Minute, "Pods"); err != nil {
		return nil, err
	}
	close(begin)
	if _, err := done.wait(ctx, number, 10*time.Minute, "Ats DONE"); err != nil {
		return nil, err
	}
	// A second At would have been created or refused by then.
	if err := sleep(ctx, 15*time.Second); err != nil {
		return nil, err
	}
	if err := b.wantOnce(ctx, namespace, number); err != nil {
		return nil, err
	}
	var late []time.Duration
	for _, at := range pods.at {
		late = append(late, at.Sub(due))
	}
	if slices.Min(late) < 0 {
		return nil, errors.New("it was early")
	}
	return late, nil
}

// wantOnce returns an error unless the number of Ats is correct, and each At and each Pod
// was created once.
func (b *bench) wantOnce(ctx context.Context, namespace string, number int) error {
	ats, err := b.cnat.CnatV1alpha1().Ats(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	requests, err := b.requests(namespace)
	if err != nil {
		return err
	}
	createdAts := requests["create ats"]
	if createdAts == 0 { // The benchmark created them.
		createdAts = len(ats.Items)
	}
	if len(ats.Items) != number || createdAts != number || requests["create pods"] != number {
		return fmt.Errorf("there are %d Ats, after %d creations, and %d creations of Pods: want %d of each", len(ats.Items), createdAts, requests["create pods"], number)
	}
	return nil
}
