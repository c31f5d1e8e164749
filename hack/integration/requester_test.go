//go:build integration

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

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// requesters is a namespace in which three users may write Ats and CronAts. The double is a
// service account with the name of the controller's.
type requesters struct{ namespace, alice, bob, double string }

func newRequesters(t *testing.T) *requesters {
	t.Helper()
	namespace := newNamespace(t)
	bind := func(name string) string {
		return bindRole(t, namespace, name, rule("create get patch update", cnat.GroupName, "ats", "cronats"), rule("create", "", "pods"))
	}
	return &requesters{namespace, bind("alice"), bind("bob"), bind(serviceAccount)}
}

// claim is what a user, or the administrator if that is "", does with an object.
type claim struct {
	what    string
	user    string
	verb    string // create, annotate, or edit, which changes the spec
	claimed string // the requester; "-" removes it
	// expectations
	denied string // empty: allowed
	want   string // the requester afterwards
}

// send sends the claim about an object, and returns what the API server answers. The double writes what looks like an At
// that the controller creates.
func (r *requesters) send(t *testing.T, object string, c *claim, parameters ...string) (string, error) {
	t.Helper()
	kind, name, _ := strings.Cut(object, "/")
	annotations := fmt.Sprintf(`{%q: %q}`, v1alpha1.AnnotationRequester, c.claimed)
	switch c.claimed {
	case "":
		annotations = "{}"
	case "-":
		annotations = fmt.Sprintf(`{%q: null}`, v1alpha1.AnnotationRequester)
	}
	spec := `"schedule": "2099-01-01T00:00:00Z", "command": "true"`
	if kind == v1alpha1.CronAtKind {
		spec = `"schedule": "* * * * *", "suspend": true, "atTemplate": {"spec": {"command": "true"}}`
	}
	owner := ""
	if c.user == r.double {
		owner = fmt.Sprintf(`, "labels": {%q: "a"}, "ownerReferences": [{"apiVersion": "%s", "kind": "CronAt", "name": "a", "uid": "a", "controller": true}]`, v1alpha1.LabelCronAtUID, v1alpha1.SchemeGroupVersion)
	}
	what := creates(fmt.Sprintf(`{"kind": %q, "apiVersion": "%s", "metadata": {"name": %q, "annotations": %s%s}, "spec": {%s}}`, kind, v1alpha1.SchemeGroupVersion, name, annotations, owner, spec))
	if c.verb != "create" {
		what = merges(what.object+"/"+name, map[string]string{
			"annotate": `{"metadata": {"annotations": ` + annotations + `}}`,
			"edit":     `{"metadata": {"annotations": ` + annotations + `}, "spec": {"startingDeadlineSeconds": 60}}`,
		}[c.verb])
	}
	return actAs(t, c.user, r.namespace).send(t, what, parameters...)
}

// try sends claims about an object, in this order.
func (r *requesters) try(t *testing.T, object string, claims ...claim) {
	t.Helper()
	for i := range claims {
		c := &claims[i]
		if _, err := r.send(t, object, c); c.denied == "" && err != nil || c.denied != "" && (err == nil || !strings.Contains(err.Error(), c.denied)) {
			t.Errorf("%s: %s: got %v, want %q", object, c.what, err, c.denied)
		}
		if got := r.get(t, object).Annotations[v1alpha1.AnnotationRequester]; got != c.want {
			t.Errorf("%s: %s: the requester is %q, want %q", object, c.what, got, c.want)
		}
	}
}

// tryDouble claims an At for another as the double does. Other policies may refuse it, too.
func (r *requesters) tryDouble(t *testing.T) {
	t.Helper()
	out, err := r.send(t, "At/child", &claim{user: r.double, verb: "create", claimed: r.alice}, "dryRun", "All")
	if want := fmt.Sprintf(`%q:%q`, v1alpha1.AnnotationRequester, r.double); err == nil && !strings.Contains(out, want) {
		t.Errorf("an At of the double is created for another, want %q:\n%s", want, out)
	}
}

// get returns the metadata of an object, which are empty if there is none.
func (r *requesters) get(t *testing.T, object string) (metadata metav1.PartialObjectMetadata) {
	t.Helper()
	kind, name, _ := strings.Cut(object, "/")
	answer, err := actAs(t, "", r.namespace).send(t, attempt{http.MethodGet, strings.ToLower(kind) + "s/" + name, runtime.ContentTypeJSON, ""})
	if err == nil {
		err = json.Unmarshal([]byte(answer), &metadata)
	}
	if ignoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return metadata
}

// install installs artifacts/requester for the namespace, until the test has ended.
func (r *requesters) install(t *testing.T) {
	t.Helper()
	if !strings.Contains(kubectl(t, "", "get", "--raw=/apis/admissionregistration.k8s.io/v1"), `"mutatingadmissionpolicies"`) {
		t.Skip("this version of Kubernetes has no MutatingAdmissionPolicies")
	}
	policy, err := os.ReadFile(root + "/artifacts/requester/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const binding = "  policyName: cnat-requester\n"
	selected := strings.Replace(string(policy), binding, binding+"  matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: "+r.namespace+"}}}\n", 1)
	kubectl(t, selected, "apply", "-f", "-")
	cleanUp(t, selected, "delete", "-f", "-")
	eventually(t, "the policy to be in force", func(context.Context) (bool, error) {
		out, err := r.send(t, "At/x", &claim{user: r.alice, verb: "create"}, "dryRun", "All")
		return strings.Contains(out, fmt.Sprintf(`%q:%q`, v1alpha1.AnnotationRequester, r.alice)), err
	})
}

// TestRequesterPolicy checks the policy cnat-requester: no user can name another one as the
// requester of an At or a CronAt.
func TestRequesterPolicy(t *testing.T) {
	t.Parallel()
	r := newRequesters(t)
	for _, object := range []string{"At/x", "CronAt/x"} {
		eventually(t, "the policy to be in force", func(context.Context) (bool, error) {
			_, err := r.send(t, object, &claim{user: r.alice, verb: "create", claimed: "mallory"}, "dryRun", "All")
			return err != nil, nil
		})
		const set, keep = "leave it out, or set it to ", "leave it as it is"
		r.try(t, object,
			claim{"create for another", r.alice, "create", "mallory", set + r.alice, ""},
			claim{"create for nobody", r.alice, "create", " ", set + r.alice, ""},
			claim{"create", r.alice, "create", r.alice, "", r.alice},
			claim{"name another", r.alice, "annotate", "mallory", keep, r.alice},
			claim{"name oneself, but the spec is that of another", r.bob, "annotate", r.bob, keep, r.alice},
			claim{"name nobody", r.bob, "annotate", "-", keep, r.alice},
			claim{"change nothing", r.bob, "annotate", "", "", r.alice},
			claim{"change the spec for another", r.bob, "edit", "mallory", set + r.bob, r.alice},
			claim{"change the spec, and leave its creator", r.bob, "edit", "", set + r.bob, r.alice},
			claim{"change the spec, and name nobody", r.bob, "edit", "-", "", ""},
			claim{"change nothing, without a requester", r.bob, "annotate", "", "", ""},
			claim{"name oneself later", r.bob, "annotate", r.bob, keep, ""},
		)
	}
	r.tryDouble(t)
	template := `{"spec": {"atTemplate": {"metadata": {"annotations": {"` + v1alpha1.AnnotationRequester + `": "mallory"}}}}}`
	out, err := tryKubectl(t, "", "patch", "CronAt/x", "--type=merge", "-p", template, "-n", r.namespace)
	if err == nil || !strings.Contains(out, "which is reserved") {
		t.Errorf("a template with a requester: %v: %s", err, out)
	}
}

// TestRequester checks the policy of artifacts/requester: it writes the user to an At or a CronAt.
// The Ats of a CronAt have the same.
func TestRequester(t *testing.T) {
	t.Parallel()
	r := newRequesters(t)
	r.install(t)
	for _, kind := range []string{"At/", "CronAt/"} {
		r.try(t, kind+"x",
			claim{"create for another", r.alice, "create", "mallory", "", r.alice},
			claim{"name another", r.alice, "annotate", "mallory", "", r.alice},
			claim{"name oneself, but the spec is that of another", r.bob, "annotate", r.bob, "", r.alice},
			claim{"name nobody", r.bob, "annotate", "-", "", r.alice},
			claim{"change the spec for another", r.bob, "edit", "mallory", "", r.bob},
		)
		r.try(t, kind+"backup", claim{"restore as an administrator", "", "create", r.bob, "", r.bob})
	}
	r.tryDouble(t)

	kubectl(t, "", "delete", "ats", "--all", "-n", r.namespace)
	r.try(t, "CronAt/cronat", claim{"create", r.alice, "create", "", "", r.alice})
	kubectl(t, "", "patch", "CronAt/cronat", "-n", r.namespace, "--as="+r.alice, "--type=merge", "-p", `{"spec": {"suspend": false}}`)
	kubectl(t, "", "patch", "CronAt/cronat", "-n", r.namespace, "--subresource=status", "--type=merge", "-p", `{"status":{"active":0,"observedSchedule":{"schedule":"* * * * *","since":"`+time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)+`"}}}`)
	startController(t, r.namespace)
	eventually(t, "the At of the CronAt", func(ctx context.Context) (bool, error) {
		ats, err := cnatClient.CnatV1alpha1().Ats(r.namespace).List(ctx, metav1.ListOptions{})
		if err != nil || len(ats.Items) == 0 {
			return false, err
		}
		if got := ats.Items[0].Annotations[v1alpha1.AnnotationRequester]; got != r.alice {
			t.Errorf("the requester of the At is %q, want %q", got, r.alice)
		}
		return true, nil
	})
}
