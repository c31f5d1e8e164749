//go:build e2e

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
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

type result struct {
	stdout, stderr string
	code           int
}

// at runs kubectl at for a test.
type at struct {
	namespace string
	stdin     string
}

func (a at) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	args = append([]string{"at"}, args...)
	if a.namespace != "" {
		// kubectl does not accept flags before a plugin's name, and everything after -- belongs
		// to the command.
		args = slices.Insert(args, 1, "--namespace="+a.namespace)
	}
	cmd := exec.CommandContext(ctx, "kubectl", args...)
	cmd.Env = append(os.Environ(), "PATH="+pluginDir()+":"+os.Getenv("PATH"))
	cmd.Stdin = strings.NewReader(a.stdin)
	return cmd
}

func (a at) run(t *testing.T, args ...string) result {
	t.Helper()
	cmd := a.command(t, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("kubectl at %s: %v", strings.Join(args, " "), err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// nobody is what kubectl at says if no controller has seen an At after ten seconds.
var nobody = regexp.MustCompile(`Its time has passed and no controller is processing it: [^\n]*\n`)

// progress is what kubectl at says if a run makes no progress, or if a request takes long, which
// depends on the machine.
var progress = regexp.MustCompile(`(?m)^(at/\S+: (PENDING|RUNNING|Completed after)|The API server does not respond: [^\n]*; retrying)[^\n]*\n`)

// want checks the exit code of kubectl at and, with regular expressions, its output.
func (r result) want(t *testing.T, code int, stdout, stderr string) {
	t.Helper()
	if !strings.Contains(stderr, nobody.String()) {
		// A slow machine may take so long.
		r.stderr = nobody.ReplaceAllString(r.stderr, "")
	}
	r.stderr = progress.ReplaceAllString(r.stderr, "")
	for what, pair := range map[string][2]string{"stdout": {r.stdout, stdout}, "stderr": {r.stderr, stderr}} {
		if !regexp.MustCompile(`^(?s:` + pair[1] + `)$`).MatchString(pair[0]) {
			t.Errorf("%s:\n%swant:\n%s", what, pair[0], pair[1])
		}
	}
	if r.code != code {
		t.Errorf("exit code %d, want %d; stderr:\n%s", r.code, code, r.stderr)
	}
}

const (
	atResource = `at\.cnat\.programming-kubernetes\.info/`
	// runs is the line that says when an At is due.
	runs = `runs ` + due
	due  = `[A-Z][a-z]{2} \d+ [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [^\n]*\n`
)

// TestKubectlAt prints the output of commands. The pages about kubectl at and about CI have its other uses.
func TestKubectlAt(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t)}
	for name, tc := range map[string]struct {
		args  []string
		stdin string
		// expectations
		code   int
		stdout string // after the line with the created object
		stderr string // after that line, and the one with the time of the run
	}{
		"arguments that a shell would change": {
			args: []string{"now", "--logs", "--", "printf", `<%s>\n`, "", "a  b", "it's", `"q"`, "$HOME", "$(id)", "`id`", `\`, "*", "~", "#x", "-n",
				"a;b", "a&b|c>d", "A=1", "!", "{a,b}", "grüß 🌍", "a\nb"},
			stdout: regexp.QuoteMeta("<>\n<a  b>\n<it's>\n<\"q\">\n<$HOME>\n<$(id)>\n<`id`>\n<\\>\n<*>\n<~>\n<#x>\n<-n>\n" +
				"<a;b>\n<a&b|c>d>\n<A=1>\n<!>\n<{a,b}>\n<grüß 🌍>\n<a\nb>\n"),
		},
		"a script on standard input": {
			args: []string{"now", "--logs"}, stdin: "#!/bin/awk -f\nBEGIN { print \"$awk\" }\n",
			stdout: `\$awk\n`,
		},
		"each attempt": {
			args: []string{"now", "--logs", "--retries=1", "--name=attempts", "--", "echo $HOSTNAME; exit 1"}, code: 3,
			stdout: "attempts-pod\nattempts-pod-1\n",
			stderr: `attempt 2: pod/attempts-pod-1\nerror: at/attempts failed: CommandFailed: [^\n]*\n`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			created, first := atResource+`[a-z0-9-]+ created\n`, runs
			if slices.Contains(tc.args, "--logs") { // Standard output is for the log.
				created, first = "", created+runs
			}
			k := at{namespace: k.namespace, stdin: tc.stdin}
			k.run(t, tc.args...).want(t, tc.code, created+tc.stdout, first+tc.stderr)
		})
	}
}

// TestKubectlAtInterrupted presses Ctrl-C.
func TestKubectlAtInterrupted(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t)}
	cmd := k.command(t, "now", "--name=at", "--logs", "--", "echo begun; until test -e /tmp/over; do sleep 0.1; done; echo over")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if seen, err := bufio.NewReader(stdout).ReadString('\n'); seen != "begun\n" {
		t.Fatalf("%v\n%s%s", err, seen, stderr.String())
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	result{"", stderr.String(), cmd.ProcessState.ExitCode()}.want(t, 130, "", atResource+`at created\n`+runs+`error: stopped watching: at/at is RUNNING[^\n]*\. The run continues: [^\n]*\n`)
	execLast(t, k.namespace, "at-pod", "touch", "/tmp/over")
	k.run(t, "logs", "at", "-f").want(t, 0, "begun\nover\n", "")
	wantEnd(t, waitPhase(t, k.namespace, "at", v1alpha1.PhaseDone), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
}

// TestKubectlAtCompletion completes words like kubectl.
func TestKubectlAtCompletion(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	for _, name := range []string{"one", "two"} {
		createAt(t, newAt(namespace, name, time.Now().Add(time.Hour), "true"))
	}
	script, err := exec.Command(filepath.Join(pluginDir(), "kubectl-at"), "completion-script").Output()
	if err == nil {
		err = os.WriteFile(filepath.Join(pluginDir(), "kubectl_complete-at"), script, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	complete := at{}.command(t)
	complete.Args = []string{"kubectl", "__complete", "at", "rm", "-n", namespace, "two", ""}
	if out, err := complete.Output(); err != nil || !strings.HasPrefix(string(out), "one\t") || strings.Contains(string(out), "two") {
		t.Errorf("completions %s: %v; want one", out, err)
	}
}

// execLast runs a command in a Pod that ends the Pod. That may kill the command before it has
// ended itself.
func execLast(t *testing.T, namespace, pod string, command ...string) {
	t.Helper()
	out, err := tryKubectl(t, "", append([]string{"exec", "-n", namespace, pod, "--"}, command...)...)
	if err != nil && !strings.Contains(out+err.Error(), "exit code 137") {
		t.Fatal(err)
	}
}
