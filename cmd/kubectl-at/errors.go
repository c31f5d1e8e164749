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
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/tools/clientcmd"

	"programming-kubernetes.info/cnat-controller/cmd/kubectl-at/timespec"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

// Exit codes.
const (
	exitError       = 1
	exitUsage       = 2
	exitFailed      = 3   // the run
	exitMissed      = 4   // the starting deadline
	exitTimeout     = 124 // like timeout(1)
	exitInterrupted = 130 // like a shell after Ctrl-C
)

// coded is an error with its own exit code.
type coded struct {
	code int
	err  error
}

func (e *coded) Error() string { return e.err.Error() }
func (e *coded) Unwrap() error { return e.err }

func withCode(code int, format string, args ...any) error {
	return &coded{code: code, err: fmt.Errorf(format, args...)}
}

func usageError(format string, args ...any) error { return withCode(exitUsage, format, args...) }

// printable replaces what is not printable, except for line feeds. A message may contain
// text from the cluster, which must not control the terminal.
type printable struct {
	out  io.Writer
	lock sync.Mutex // of out
}

func (p *printable) Write(data []byte) (int, error) {
	p.lock.Lock()
	defer p.lock.Unlock()
	_, err := io.WriteString(p.out, strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, string(data)))
	return len(data), err
}

// say prints a line for people on standard error, unless it is empty.
func (c *cli) say(format string, args ...any) {
	if line := answer.OneLine(fmt.Sprintf(format, args...)); line != "" {
		fmt.Fprintln(c.ErrOut, line)
	}
}

// kubectl returns a command line for a hint. It reaches the same cluster and namespace as
// this one.
func (c *cli) kubectl(format string, args ...any) string {
	verb, rest, _ := strings.Cut(fmt.Sprintf(format, args...), " ")
	line := "kubectl " + verb
	for _, name := range []string{"kubeconfig", "context", "cluster", "server", "user", "as", "namespace"} {
		written := "--" + name + "="
		if name == "namespace" {
			written = "-n "
			if verb == "apply" || strings.Contains(rest, " -A") || strings.Contains(rest, " -n ") { // A manifest that is applied has namespaces.
				continue
			}
		}
		if c.flags.Changed(name) {
			line += " " + written + quote(c.flags.Lookup(name).Value.String())
		}
	}
	return line + " " + rest
}

// report prints an error with a hint, and returns the exit code.
func (c *cli) report(root *cobra.Command, err error) int {
	if err == nil {
		return 0
	}
	out, code := c.ErrOut, exitError
	var withCode *coded
	if errors.As(err, &withCode) {
		code = withCode.code
	}
	var mistake *timespec.Error
	if errors.As(err, &mistake) {
		fmt.Fprintf(out, "error: %s\n%s\n", err, mistake.Caret())
		if mistake.Unknown {
			fmt.Fprintln(out, hintOnWord(root, mistake))
		}
		return exitUsage
	}
	fmt.Fprintf(out, "error: %s\n", err)
	if hint := c.hintOn(err); hint != "" {
		fmt.Fprintln(out, hint)
	}
	return code
}

// hintOn returns a hint about an error from the API server or from the connection to it.
func (c *cli) hintOn(err error) string {
	resource := resourceOfError(err)
	switch {
	case clientcmd.IsEmptyConfig(err):
		return "Choose a cluster with --kubeconfig, --context or $KUBECONFIG."
	case apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return "The cluster does not know " + resource + ": cnat is not installed, or too old. Install it with " + c.kubectl("apply -f install.yaml") + ", which is part of each release, or choose another cluster with --context."
	case apierrors.IsNotFound(err) && (resource == "ats" || resource == "cronats"):
		return c.kubectl("at list --all") + " shows those of the namespace, " + c.kubectl("at list --all -A") + " those of all namespaces."
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), " cannot "):
		return "You need a role that allows this, such as the cluster role view to read, or edit to write. Ask a cluster administrator; " + c.kubectl("auth whoami") + " shows your user."
	case apierrors.IsUnauthorized(err):
		return "The cluster does not accept your credentials: log in again, or choose another user with --user or --context."
	case apierrors.IsAlreadyExists(err):
		return "Choose another name, or remove the other one with " + c.kubectl("delete %s NAME", resource) + "."
	case utilnet.IsConnectionRefused(err):
		return "The API server does not respond: check that the cluster is running, and that $KUBECONFIG and --context select the right one."
	}
	return ""
}

// resourceOfError returns the resource that an API server's error concerns.
func resourceOfError(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil {
		return status.Status().Details.Kind
	}
	return ""
}

// hintOnWord returns a hint about a word that is no part of a time: it may be a command of kubectl at, or begin a
// COMMAND.
func hintOnWord(root *cobra.Command, mistake *timespec.Error) string {
	if mistake.Offset > 0 {
		return "Write -- before a COMMAND, as in kubectl at TIME [flags] -- COMMAND."
	}
	if names := root.SuggestionsFor(strings.Fields(mistake.Text)[0]); len(names) > 0 {
		return "Did you mean kubectl at " + strings.Join(names, " or ") + "?"
	}
	return "kubectl at --help shows times and commands."
}
