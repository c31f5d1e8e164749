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
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/resource"
	kubescheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/retry"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/scheme"
)

const (
	// cronAtPrefix distinguishes the name of a CronAt from that of an At.
	cronAtPrefix = "cronat/"
	// chunkSize is the number of objects in an answer, as in kubectl.
	chunkSize = 500
)

// kinds contains the types of all objects that an argument can name.
var kinds = func() *runtime.Scheme {
	all := runtime.NewScheme()
	utilruntime.Must(kubescheme.AddToScheme(all))
	utilruntime.Must(scheme.AddToScheme(all))
	return all
}()

// mapper knows the names of these kinds, with their short names. So no command asks the API server for
// them, and a client dry run needs none.
var mapper = func() meta.RESTMapper {
	all := meta.NewDefaultRESTMapper(nil)
	for group, names := range map[schema.GroupVersion]map[string]string{
		v1alpha1.SchemeGroupVersion: {"at": v1alpha1.AtKind, "ca": v1alpha1.CronAtKind, "freeze": v1alpha1.FreezeKind},
		batchv1.SchemeGroupVersion:  {"cj": "CronJob", "job": "Job"},
		appsv1.SchemeGroupVersion:   {"deploy": "Deployment", "sts": "StatefulSet", "ds": "DaemonSet"},
		corev1.SchemeGroupVersion: {
			"po": "Pod", "podtemplate": "PodTemplate", "cm": "ConfigMap", "secret": "Secret", "pvc": "PersistentVolumeClaim", "sa": "ServiceAccount", "ns": "Namespace", "no": "Node",
		},
	} {
		for short, kind := range names {
			scope := meta.RESTScopeNamespace
			if short == "ns" || short == "no" {
				scope = meta.RESTScopeRoot
			}
			plural, _ := meta.UnsafeGuessKindToResource(group.WithKind(kind))
			all.Add(group.WithKind(kind), scope)
			all.AddSpecific(group.WithKind(kind), plural, group.WithResource(short), scope)
		}
	}
	return all
}()

// getter connects to the cluster, and knows the kinds without it.
type getter struct{ *genericclioptions.ConfigFlags }

func (getter) ToRESTMapper() (meta.RESTMapper, error) { return mapper, nil }

// reference returns the kind and the name of KIND/NAME, by any name of the kind that kubectl accepts, or "".
func reference(text string) (kind, name string) {
	kind, name, _ = strings.Cut(text, "/")
	_, resource := schema.ParseResourceArg(kind)
	found, err := mapper.KindFor(resource.WithVersion(""))
	if err != nil || name == "" || strings.Contains(name, "/") {
		return "", ""
	}
	return found.Kind, name
}

// find looks for objects in the namespace, or in all of them, by any name of a kind that kubectl
// accepts.
func (c *cli) find() *resource.Builder {
	return resource.NewBuilder(c.getter).WithScheme(kinds, kinds.PrioritizedVersionsAllGroups()...).
		NamespaceParam(c.namespace).DefaultNamespace().AllNamespaces(c.namespace == "")
}

// in returns the same in another namespace, or in all of them.
func (c *cli) in(namespace string) *cli {
	there := *c
	there.namespace = namespace
	return &there
}

// get reads the At or the CronAt that an argument names. A name without a kind is that of an At.
func (c *cli) get(arg string) (*resource.Info, error) {
	if kind, _ := reference(arg); strings.Contains(arg, "/") && kind != v1alpha1.AtKind && kind != v1alpha1.CronAtKind {
		return nil, usageError("%q is not a name: write NAME or at/NAME for an At, cronat/NAME for a CronAt", arg)
	}
	if err := c.connect(); err != nil {
		return nil, err
	}
	info, err := c.one("ats", arg)
	if apierrors.IsNotFound(err) && !strings.Contains(arg, "/") {
		if _, err := c.get(cronAtPrefix + arg); err == nil {
			return nil, fmt.Errorf("there is no At %q, but there is a CronAt: write %s%s", arg, cronAtPrefix, arg)
		}
	}
	return info, err
}

// one reads the object with a name, which can also name its kind.
func (c *cli) one(kind, arg string) (*resource.Info, error) {
	infos, err := c.find().ResourceNames(kind, arg).Do().Infos()
	if err != nil {
		return nil, err
	}
	return infos[0], nil
}

// getAt reads the At that an argument names.
func (c *cli) getAt(arg string) (*resource.Info, error) {
	if kind, _ := reference(arg); kind == v1alpha1.CronAtKind {
		return nil, usageError("%s is a CronAt: write the name of one of its Ats, as shown by %s, or change its schedule with %s", arg, c.kubectl("at show %s", arg), c.kubectl("edit %s", arg))
	}
	return c.get(arg)
}

// list returns the objects of a kind with these labels in the namespace.
func (c *cli) list(kind, selector string) ([]*resource.Info, error) {
	infos, err := c.find().ResourceTypes(kind).LabelSelectorParam(selector).SelectAllParam(selector == "").RequestChunksOf(chunkSize).Flatten().Do().Infos()
	for _, info := range infos { // The items of a list have no kind, which -o json shows.
		info.Object.GetObjectKind().SetGroupVersionKind(info.Mapping.GroupVersionKind)
	}
	return infos, err
}

// listOf returns the same as objects of their type.
func listOf[T runtime.Object](c *cli, kind, selector string) (all []T, err error) {
	infos, err := c.list(kind, selector)
	for _, info := range infos {
		all = append(all, info.Object.(T))
	}
	return all, err
}

// listAts returns the Ats with these labels, sorted by time.
func (c *cli) listAts(selector string) ([]*v1alpha1.At, error) {
	ats, err := listOf[*v1alpha1.At](c, "ats", selector)
	slices.SortStableFunc(ats, func(a, b *v1alpha1.At) int { return instantOf(a).Compare(instantOf(b)) })
	return ats, err
}

// object is an object of the API.
type object interface {
	runtime.Object
	metav1.Object
}

// kindOf returns the kind of an object, which may not name it.
func kindOf(object runtime.Object) schema.GroupVersionKind {
	versions, _, err := kinds.ObjectKinds(object)
	utilruntime.Must(err) // kinds has all of them.
	return versions[0]
}

// resourceOf returns the name of an object's kind in a request, such as ats.
func resourceOf(object runtime.Object) string {
	plural, _ := meta.UnsafeGuessKindToResource(kindOf(object))
	return plural.Resource
}

// ref returns the name of an object for a message, as kubectl prints it.
func ref(object object) string { return strings.ToLower(kindOf(object).Kind) + "/" + object.GetName() }

// create creates an At, a CronAt or a Freeze, and prints it.
func (w *writer) create(ctx context.Context, object object) error {
	if w.isClient() {
		return w.print(object)
	}
	err := w.connect()
	if err != nil {
		return err
	}
	options := &metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict, FieldManager: fieldManager}
	if w.isServer() {
		options.DryRun = []string{metav1.DryRunAll}
	}
	err = w.cnat.Post().Namespace(object.GetNamespace()).Resource(resourceOf(object)).VersionedParams(options, metav1.ParameterCodec).Body(object).Do(ctx).Into(object)
	if err != nil {
		return w.unanswered(err, object, "created")
	}
	if err = w.print(object); err == nil {
		w.announceOmitted(object)
	}
	return err
}

// isUnanswered reports whether the API server has not said that it did not do what was requested.
func isUnanswered(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, errNoAnswer) || utilnet.IsTimeout(err) || utilnet.IsProbableEOF(err) ||
		utilnet.IsHTTP2ConnectionLost(err) || apierrors.IsTimeout(err)
}

// unanswered adds to the error of a request what may have been done with an object.
func (w *writer) unanswered(err error, object object, done string) error {
	if w.isServer() || !isUnanswered(err) {
		return err
	}
	return fmt.Errorf("%w: %s may have been %s: see %s", err, ref(object), done, w.kubectl("get %s", ref(object)))
}

// edit changes an object with change, which may refuse that, and prints it.
func (w *writer) edit(info *resource.Info, change func() error) error {
	if err := w.write(info, change); err != nil {
		return err
	}
	return w.print(info.Object)
}

// write does the same, but prints nothing. If the object has changed in the meantime,
// it reads it and calls change again.
func (w *writer) write(info *resource.Info, change func() error) error {
	helper := resource.NewHelper(info.Client, info.Mapping).DryRun(w.isServer()).WithFieldManager(fieldManager)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		before := info.Object.DeepCopyObject().(object)
		before.SetResourceVersion("") // The patch then contains it, as a precondition.
		if err := change(); err != nil || w.isClient() {
			return err
		}
		was, wasErr := json.Marshal(before)
		is, isErr := json.Marshal(info.Object)
		patch, err := jsonpatch.CreateMergePatch(was, is)
		if err = cmp.Or(wasErr, isErr, err); err != nil {
			return err
		}
		patched, err := helper.Patch(info.Namespace, info.Name, types.MergePatchType, patch, nil)
		if apierrors.IsConflict(err) {
			if err := info.Get(); err != nil {
				return err
			}
			if info.Object.(object).GetUID() != before.GetUID() {
				return fmt.Errorf("%s was deleted and created again in the meantime", info.ObjectName())
			}
			return err
		}
		if err != nil {
			return w.unanswered(err, info.Object.(object), "changed")
		}
		info.Object = patched
		return nil
	})
}

// remove deletes an object, unless another one has its name by now, and prints it.
func (w *writer) remove(info *resource.Info) error {
	if !w.isClient() {
		options := &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(info.Object.(metav1.Object).GetUID()))}
		helper := resource.NewHelper(info.Client, info.Mapping).DryRun(w.isServer())
		_, err := helper.DeleteWithOptions(info.Namespace, info.Name, options)
		if err != nil {
			return w.unanswered(err, info.Object.(object), "deleted")
		}
	}
	return w.print(info.Object)
}
