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

package plan

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

// Forecast reports what would happen if an At that is not due yet were due now. The zero
// value means that the API server would accept its Pod.
type Forecast struct {
	// Reason is the reason of condition Blocked; empty if nothing would block the At.
	Reason string
	// Message is the API server's refusal, as one line.
	Message string
	// Rehearsal is the result of a rehearsal that may not be in the status yet.
	Rehearsal Rehearsal
}

// newForecast returns a forecast whose Sentence is not truncated: otherwise, it would differ from what
// ForecastIn returns.
func newForecast(reason, message string) *Forecast {
	return &Forecast{Reason: reason, Message: answer.Truncate(answer.OneLine(message), answer.MaxMessage-64)}
}

// forecastPrefix marks the message of a Blocked condition as a forecast, as opposed to
// the message of an At that is due. No other message begins with it.
const forecastPrefix = "If it were due now: "

// Sentence returns the message of condition Blocked for a forecast with a reason.
func (f *Forecast) Sentence() string { return forecastPrefix + f.Message }

// ForecastIn returns the forecast of the last preflight that conditions report. It is the zero value
// if they report none.
func ForecastIn(conditions []metav1.Condition) Forecast {
	blocked := meta.FindStatusCondition(conditions, v1alpha1.ConditionBlocked)
	if !IsRefusal(blocked) {
		return Forecast{}
	}
	return Forecast{Reason: blocked.Reason, Message: strings.TrimPrefix(blocked.Message, forecastPrefix)}
}

// IsForecast reports whether condition Blocked, which may be nil, is a forecast, of a
// preflight or a rehearsal.
func IsForecast(blocked *metav1.Condition) bool {
	return IsRefusal(blocked) || blocked != nil && strings.HasPrefix(blocked.Message, rehearsalPrefix)
}

// IsRefusal reports whether condition Blocked, which may be nil, is the forecast of a preflight.
func IsRefusal(blocked *metav1.Condition) bool {
	return blocked != nil && strings.HasPrefix(blocked.Message, forecastPrefix)
}

// A preflight is repeated forecastLead before the At is due, or up to forecastSpread
// earlier. Many Ats may be due at the same instant. Syncing them all at one other instant
// would delay the Ats that are due then.
const (
	forecastLead   = 10 * time.Minute
	forecastSpread = time.Minute
)

// forecastMargin is the minimum time before the At is due at which a forecast is still
// worth its requests.
const forecastMargin = time.Second

// Foresee predicts the API server's answer for the time when the At is due. err is the
// answer to creating the Pod, or restarting the workload, with dryRun=All. Foresee
// returns nil if err does not allow a prediction. refused is the reason for a refusal.
func Foresee(refused string, err error) *Forecast {
	switch {
	case err == nil || apierrors.IsAlreadyExists(err):
		// The API server checks the name last. Another Pod may have it now, but be gone by
		// then.
		return &Forecast{}
	case answer.IsTransient(err), isAboutDryRun(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case isInvalidPod(err):
		return newForecast(v1alpha1.ReasonInvalidPod, err.Error())
	default:
		return newForecast(refused, err.Error())
	}
}

// NeedsNodes reports whether the nodes of the cluster decide if an At can run.
func NeedsNodes(at *v1alpha1.At) bool { return at.Spec.Node != "" || at.Spec.Nodes != nil }

// ForeseeNodes returns a forecast for an At from the cluster's nodes, or from the error
// of reading them. It returns nil if they do not allow a prediction.
func ForeseeNodes(at *v1alpha1.At, nodes []*corev1.Node, err error) *Forecast {
	switch {
	case apierrors.IsForbidden(err):
		return newForecast(v1alpha1.ReasonNodesForbidden, nodesForbiddenMessage(err))
	case err != nil:
		return nil
	case at.Spec.Node != "":
		if slices.ContainsFunc(nodes, func(node *corev1.Node) bool { return node.Name == at.Spec.Node }) {
			return &Forecast{}
		}
		return newForecast(v1alpha1.ReasonNodeGone, fmt.Sprintf("Node %s does not exist.", at.Spec.Node))
	}
	switch chosen, _, err := ChooseNodes(at, nodes); {
	case err != nil:
		return newForecast(v1alpha1.ReasonInvalidSelector, err.Error())
	case len(chosen) == 0:
		return newForecast(v1alpha1.ReasonNoNodes, noNodesMessage)
	default:
		return &Forecast{}
	}
}

// isAboutDryRun reports whether a refusal concerns the dry-run request rather than the
// Pod: a webhook does not support dry-run or is too slow, or the API server does not know
// a new CRD yet, which takes half a minute.
func isAboutDryRun(err error) bool {
	text := strings.ToLower(err.Error())
	return supportsNoDryRun(err) ||
		apierrors.IsInternalError(err) && (strings.Contains(text, "deadline exceeded") || strings.Contains(text, "timeout")) ||
		apierrors.IsForbidden(err) && strings.Contains(text, "cannot find restmapping")
}

// supportsNoDryRun reports whether a webhook does not support dry-run.
func supportsNoDryRun(err error) bool {
	return apierrors.IsBadRequest(err) && strings.Contains(err.Error(), "does not support dry run")
}

// MayConcernCommand reports whether a refusal of a Pod may be due to the commands of its
// containers: the API server itself accepts any command, but a webhook and a policy see
// them, and they have a size.
func MayConcernCommand(err error) bool {
	if err == nil {
		return false
	}
	text := strings.ToLower(err.Error())
	return apierrors.IsRequestEntityTooLargeError(err) || strings.Contains(text, "too large") ||
		strings.Contains(text, "admission webhook") || strings.Contains(text, "admissionpolicy")
}

// HasForecast reports whether the Blocked condition of an At is a forecast.
func HasForecast(at *v1alpha1.At) bool { return IsForecast(Blocked(at)) }

// WantsForecast reports whether an At is pending and not due yet, so that a preflight makes
// sense, and how long it has until it is due.
func WantsForecast(at *v1alpha1.At, now time.Time) (left time.Duration, wanted bool) {
	instant, err := Instant(&at.Spec)
	left = instant.Sub(now)
	return left, err == nil && left > forecastMargin && at.DeletionTimestamp == nil &&
		isPending(at)
}

// WantsForecastAtStart reports whether an At needs a preflight when the caches of a controller
// that started at start have synced, which may take minutes: it may have missed one while no
// controller was working, or it has the forecast of an earlier controller. All other Ats have
// had their preflight, and there may be very many of them.
func WantsForecastAtStart(at *v1alpha1.At, start, now time.Time) bool {
	left, wanted := WantsForecast(at, now)
	_, rehearses := UntilRehearsal(at, now)
	return wanted && (HasForecast(at) || rehearses || start.Sub(at.CreationTimestamp.Time) < Grace || left <= Lead(at.UID))
}

// IsFarOff reports whether an At is pending and will be for longer than a time, without a
// preflight or a rehearsal in it.
func IsFarOff(at *v1alpha1.At, now time.Time, within time.Duration) bool {
	left, wanted := WantsForecast(at, now)
	return wanted && !at.Spec.Rehearse && left > within+forecastLead+forecastSpread
}

// Lead returns how long before the due time of the object with the given UID the last
// preflight takes place.
func Lead(uid types.UID) time.Duration {
	hash := fnv.New32a()
	hash.Write([]byte(uid))
	return forecastLead + time.Duration(hash.Sum32()%uint32(forecastSpread/time.Millisecond))*time.Millisecond
}
