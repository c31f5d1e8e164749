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
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2/ktesting"
)

func TestParseResources(t *testing.T) {
	for name, tc := range map[string]struct {
		requests, limits string
		// expectations
		want    corev1.ResourceRequirements
		wantErr string
	}{
		"none": {},
		"requests": {
			requests: "cpu=10m,memory=16Mi",
			want: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi"),
			}},
		},
		"both": {
			requests: "memory=16Mi", limits: "memory=16Mi,ephemeral-storage=1Gi",
			want: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("16Mi")},
				Limits: corev1.ResourceList{
					corev1.ResourceMemory: resource.MustParse("16Mi"), corev1.ResourceEphemeralStorage: resource.MustParse("1Gi"),
				},
			},
		},
		"no quantity":            {requests: "cpu", wantErr: `-default-requests is "cpu": "cpu" is not a quantity`},
		"not a quantity":         {limits: "cpu=1,memory=much", wantErr: `"memory=much" is not a quantity`},
		"negative":               {limits: "cpu=-1", wantErr: `"cpu=-1" is not a quantity`},
		"no such resource":       {limits: "mem=1Gi", wantErr: `"mem=1Gi" is not a quantity of cpu, memory or ephemeral-storage`},
		"a comma too many":       {limits: "cpu=1,", wantErr: `"" is not a quantity`},
		"a request over a limit": {requests: "cpu=2", limits: "cpu=1", wantErr: "-default-requests has more cpu than -default-limits"},
	} {
		t.Run(name, func(t *testing.T) {
			o := options{requests: tc.requests, limits: tc.limits}
			err := o.parseResources()
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("got error %v, want %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, o.defaults.Resources); diff != "" {
				t.Errorf("resources (-want +got):\n%s", diff)
			}
		})
	}
}

// TestValidate has flags that are refused.
func TestValidate(t *testing.T) {
	for args, want := range map[string]string{
		"run":                    `unexpected argument "run": all options are flags, see -help`,
		"-workers=0":             "-workers is 0: it must be at least 1",
		"-metrics-namespaces=-1": "-metrics-namespaces is -1: it must not be negative; 0 counts all namespaces together",
		"-tls-cert-file=a":       "-tls-cert-file and -tls-private-key-file belong together: set both",
		"-tls-cert-file=a -tls-private-key-file=b": "-tls-cert-file needs -metrics-secure: set both",
		"-preflight-qps=-1":                        "-preflight-qps is -1: it must not be negative; 0 turns preflights off",
		"-logging-format=xml":                      `-logging-format is "xml": it must be text or json`,
		"-default-limits=memory":                   `-default-limits is "memory": "memory" is not a quantity of cpu, memory or ephemeral-storage; write for example cpu=10m,memory=16Mi`,
	} {
		o := options{logging: logsapi.NewLoggingConfiguration()}
		flags := flag.NewFlagSet("", flag.ContinueOnError)
		o.addFlags(flags)
		if err := errors.Join(flags.Parse(strings.Fields(args)), o.validate(flags.Args())); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", args, err, want)
		}
	}
}

// TestLargeErrors checks that the clients keep little of an error.
func TestLargeErrors(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":%q,"reason":"Forbidden","code":403}`, strings.Repeat("no ", 1<<20))
	}))
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		CurrentContext: "a",
		Contexts:       map[string]*clientcmdapi.Context{"a": {Cluster: "a"}},
		Clusters:       map[string]*clientcmdapi.Cluster{"a": {Server: server.URL}},
	}, kubeconfig); err != nil {
		t.Fatal(err)
	}
	config, _, err := loadConfig(&options{kubeconfig: kubeconfig})
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CoreV1().Pods("default").Get(t.Context(), "at-pod", metav1.GetOptions{})
	if !apierrors.IsForbidden(err) || len(err.Error()) > 100_000 {
		t.Errorf("got an error of %d bytes, want less: %.100s", len(err.Error()), err.Error())
	}
}

// TestServeAddressTaken serves health and metrics at addresses that are in use.
func TestServeAddressTaken(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	taken := listener.Addr().String()
	for name, tc := range map[string]struct {
		options options
		given   []string
		want    string // of the error
	}{
		"default addresses":         {options: options{healthAddress: taken, metricsAddress: taken}},
		"default addresses, secure": {options: options{healthAddress: taken, metricsAddress: taken, metricsSecure: true}},
		"address given for health":  {options: options{healthAddress: taken}, given: []string{"health-probe-bind-address"}, want: "see -health-probe-bind-address"},
		"address given for metrics": {options: options{metricsAddress: taken}, given: []string{"metrics-bind-address"}, want: "see -metrics-bind-address"},
		"another error":             {options: options{healthAddress: "8081"}, want: "missing port in address; see -health-probe-bind-address"},
		"unused addresses":          {options: options{healthAddress: "127.0.0.1:0", metricsAddress: "127.0.0.1:0"}, given: []string{"health-probe-bind-address", "metrics-bind-address"}},
		"no addresses":              {},
	} {
		t.Run(name, func(t *testing.T) {
			_, ctx := ktesting.NewTestContext(t)
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			tc.options.given = map[string]bool{}
			for _, name := range tc.given {
				tc.options.given[name] = true
			}
			err := (&program{options: &tc.options, besideConfig: &rest.Config{}}).serve(ctx)
			if (err == nil) != (tc.want == "") || err != nil && !strings.HasSuffix(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
