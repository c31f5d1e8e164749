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
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// A child is an At that its parent, an At with spec.nodes, created for one node. A child
// is never created twice: its name is the lock, and its finalizer keeps a deleted child
// until the parent has ended.

// ChildName returns the name of the child that an At creates for a node.
func ChildName(parent, node string) string {
	return Shorten(parent+"-"+node, validation.DNS1123SubdomainMaxLength)
}

// Shorten returns a name, with a hash instead of its end if it is longer than limit.
func Shorten(name string, limit int) string {
	if len(name) <= limit {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	suffix := "-" + hex.EncodeToString(sum[:5])
	return strings.TrimRight(name[:limit-len(suffix)], "-.") + suffix
}

// newChild returns an At's child for a node. If spec.nodes.maxConcurrent is set, the
// child is suspended until its turn comes.
func newChild(at *v1alpha1.At, node string) *v1alpha1.At {
	child := &v1alpha1.At{
		ObjectMeta: metav1.ObjectMeta{
			Name:            ChildName(at.Name, node),
			Namespace:       at.Namespace,
			Labels:          map[string]string{v1alpha1.LabelAtUID: string(at.UID), v1alpha1.LabelExcludeFromBackup: "true"},
			Annotations:     map[string]string{},
			Finalizers:      []string{v1alpha1.FinalizerTracking},
			OwnerReferences: OwnedBy(at, v1alpha1.AtKind),
		},
		Spec: v1alpha1.AtSpec{
			Schedule: at.Spec.Schedule,
			TimeZone: at.Spec.TimeZone,
			RunSpec: v1alpha1.RunSpec{
				Command:               at.Spec.Command,
				Template:              at.Spec.Template,
				Node:                  node,
				BackoffLimit:          at.Spec.BackoffLimit,
				ActiveDeadlineSeconds: at.Spec.ActiveDeadlineSeconds,
			},
		},
	}
	if len(at.Name) <= validation.LabelValueMaxLength {
		child.Labels[v1alpha1.LabelAtName] = at.Name
	}
	if requester, ok := at.Annotations[v1alpha1.AnnotationRequester]; ok {
		child.Annotations[v1alpha1.AnnotationRequester] = requester
	}
	if at.Spec.Nodes.MaxConcurrent != nil {
		child.Spec.Suspend = ptr.To(true)
	}
	return child
}

// ParentName returns the name of the At that created a child, or "" if the At is not a
// child. An owner reference alone is not enough, because a user may have set it: a
// child's name must match, too.
func ParentName(at *v1alpha1.At) string {
	if owner := ownerAt(at); owner != nil && at.Spec.Node != "" && at.Name == ChildName(owner.Name, at.Spec.Node) {
		return owner.Name
	}
	return ""
}

// NameTaken returns what to do about other, which has the name of a child of an object of
// the given kind, but is not its child: of an earlier object with this name, or of nobody.
func NameTaken(kind string, other *v1alpha1.At, isEarlier bool) string {
	if isEarlier {
		return fmt.Sprintf("At %s of an earlier %s with this name still exists: run kubectl describe at %s to see what it is waiting for.", other.Name, kind, other.Name)
	}
	if owner := cmp.Or(ownerAt(other), Owner(other, v1alpha1.CronAtKind)); owner != nil {
		// For example, At a has node b-c, and At a-b has node c.
		return fmt.Sprintf("At %s already exists and belongs to %s %s: create this %s under another name, or delete %s %s if you no longer need it.", other.Name, owner.Kind, owner.Name, kind, owner.Kind, owner.Name)
	}
	return fmt.Sprintf("At %s already exists and was not created by this %s: delete that At.", other.Name, kind)
}

// IsChildOf reports whether an At is a child of parent.
func IsChildOf(at, parent *v1alpha1.At) bool {
	return ParentName(at) == parent.Name && metav1.IsControlledBy(at, parent)
}

// isChild reports whether the At is a child.
func (w *World) isChild() bool {
	return ParentName(w.At) != "" && (w.parentIsGone() || w.Parent.Spec.Nodes != nil || isNodesRun(w.Parent))
}

// parentIsGone reports whether the parent of a child is gone. Another At may have its
// name.
func (w *World) parentIsGone() bool { return w.Parent == nil || !metav1.IsControlledBy(w.At, w.Parent) }

// lostOwnerLabel returns the label of an At that says that another object created it,
// although the At has no such owner; otherwise "".
func lostOwnerLabel(at *v1alpha1.At) string {
	_, ofAt := at.Labels[v1alpha1.LabelAtUID]
	_, ofCronAt := at.Labels[v1alpha1.LabelCronAtUID]
	switch {
	case ofAt && ownerAt(at) == nil:
		return v1alpha1.LabelAtUID
	case ofCronAt && Owner(at, v1alpha1.CronAtKind) == nil:
		return v1alpha1.LabelCronAtUID
	default:
		return ""
	}
}

// HasLostOwner reports whether an At says that another object created it, but has no such
// owner: it is a copy, or was restored from a backup without its owner and its status, or
// its owner was deleted with --cascade=orphan. It may have run before.
func HasLostOwner(at *v1alpha1.At) bool { return lostOwnerLabel(at) != "" }

// decideByParent decides the steps of a child that depend on its parent. decided is false
// if the At is not a child, or if its parent does not affect the next step.
func (v *view) decideByParent() (d Decision, decided bool) {
	at, parent := v.At, v.Parent
	isChild := v.isChild() // It is none if its parent was deleted with --cascade=orphan.
	isReleased := !isChild || v.parentIsGone() || isDone(at) && (isDone(parent) || parent.DeletionTimestamp != nil)
	switch {
	case isReleased && IsTracked(at):
		return Decision{Action: ReleaseAt{}}, true
	case !isChild:
		return Decision{}, false
	case v.parentIsGone():
		// The garbage collector deletes the child and its Pod.
		return Decision{}, true
	case isDone(at):
		return Decision{}, false
	case isDone(parent) && !hasBegun(at):
		return v.decideStopped(v1alpha1.ReasonNotStarted, "At "+parent.Name+" has ended: the command was not started on this node.")
	case at.DeletionTimestamp != nil:
		return v.decideStopped(v1alpha1.ReasonAtDeleted, "This At was deleted before it ended.")
	case tooManyFailed(parent, parent.Status.Nodes) && !hasBegun(at) && !isSuspended(at):
		return v.decideStopped(v1alpha1.ReasonNotStarted, "More nodes failed than spec.nodes.maxFailed allows: the command was not started on this node.")
	default:
		return Decision{}, !allChildrenExist(parent)
	}
}

// hasBegun reports whether a Pod of an At that has not ended may have started.
func hasBegun(at *v1alpha1.At) bool {
	return at.Status.Phase == v1alpha1.PhaseRunning && (recorded(at) || at.Status.Failed > 0)
}

// decideStopped stops a run. decided is false if the run is already being stopped, has
// ended, or has started after all and may continue.
func (v *view) decideStopped(reason, message string) (d Decision, decided bool) {
	at := v.At
	switch {
	case v.owned:
		if hasEnded(v.pod) || failureTarget(at) != nil || reason == v1alpha1.ReasonNotStarted {
			return Decision{}, false
		}
		return v.writeFailureTarget(reason, message), true
	case recorded(at):
		return Decision{}, false
	default:
		return v.writeDone(nil, reason, message), true
	}
}

// childState is the state in which a parent counts a child.
type childState int

const (
	childWaits childState = iota
	childIsActive
	childSucceeded
	childFailed
)

// stateOfChild returns the state in which the parent counts a child.
func stateOfChild(child *v1alpha1.At) childState {
	switch {
	case isDone(child) && child.Status.Reason == v1alpha1.ReasonNotStarted, isPending(child) && isSuspended(child) && child.DeletionTimestamp == nil:
		return childWaits
	case !isDone(child):
		return childIsActive
	case meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ConditionComplete):
		return childSucceeded
	default:
		return childFailed
	}
}

// blockerOfChild returns the Blocked condition of a child, or nil if nothing blocks the
// child.
func blockerOfChild(child *v1alpha1.At) *metav1.Condition {
	if stateOfChild(child) != childIsActive {
		return nil
	}
	return Blocked(child)
}

// ConcernsParent reports whether the parent of a child must be synced after the child
// changed: because the parent counts or names the change, or waits for it. The parent
// cannot resume a child that has changed, and tries again when it sees the change. The
// message of a blocked child may change with each retry, for example with a quota: the
// parent does not follow such changes.
func ConcernsParent(old, cur *v1alpha1.At) bool {
	was, is := ptr.Deref(blockerOfChild(old), metav1.Condition{}), ptr.Deref(blockerOfChild(cur), metav1.Condition{})
	return stateOfChild(cur) == childWaits || stateOfChild(old) != stateOfChild(cur) || was.Reason != is.Reason
}

// ConcernsChildren reports whether the children of an At wait for this change.
func ConcernsChildren(old, cur *v1alpha1.At) bool {
	return allChildrenExist(old) != allChildrenExist(cur) || isSuspended(old) != isSuspended(cur) ||
		tooManyFailed(old, old.Status.Nodes) != tooManyFailed(cur, cur.Status.Nodes) ||
		isNodesRun(cur) && (old.Status.Phase != cur.Status.Phase || old.DeletionTimestamp.IsZero() != cur.DeletionTimestamp.IsZero())
}

// waitsForParent reports whether the parent keeps a child from starting.
func waitsForParent(at, parent *v1alpha1.At) bool {
	w := World{At: at, Parent: parent}
	return w.isChild() && (w.parentIsGone() || !allChildrenExist(parent) || w.isHeld())
}
