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
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// The tests of cmd/kubectl-at run its binary as a kubectl plugin.

func init() { packages = append(packages, root+"/cmd/kubectl-at") }

// plugin returns the folder of kubectl-at, which also contains the completion script.
var plugin = sync.OnceValues(func() (string, error) {
	dir := filepath.Dir(binary)
	script, err := exec.Command(filepath.Join(dir, "kubectl-at"), "completion-script").Output()
	if err != nil {
		return "", err
	}
	// Tests in other processes may be using it.
	path := filepath.Join(dir, "kubectl_complete-at")
	temporary := fmt.Sprintf("%s.%d", path, os.Getpid())
	return dir, errors.Join(os.WriteFile(temporary, script, 0o755), os.Rename(temporary, path))
})

type result struct {
	stdout, stderr string
	code           int
}

// at runs kubectl at for a test.
type at struct {
	namespace string
	stdin     string
	env       []string
}

func (a at) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	dir, err := plugin()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	args = append([]string{"at"}, args...)
	if a.namespace != "" {
		// kubectl does not accept flags before a plugin's name, and everything after -- belongs
		// to the command.
		args = slices.Insert(args, 1, "--namespace="+a.namespace)
	}
	cmd := exec.CommandContext(ctx, "kubectl", args...)
	cmd.Env = append(append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH")), a.env...)
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
	atResource     = `at\.cnat\.programming-kubernetes\.info/`
	cronAtResource = `cronat\.cnat\.programming-kubernetes\.info/`
	// runs is the line that says when an At is due.
	runs = `runs ` + due
	due  = `[A-Z][a-z]{2} \d+ [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [^\n]*\n`
)

// TestKubectlAt runs a command as described in the README.
func TestKubectlAt(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t)}
	startController(t, k.namespace)
	for name, tc := range map[string]struct {
		args  []string
		stdin string
		// expectations
		code   int
		stdout string // after the line with the created object
		stderr string // after that line, and the one with the time of the run
	}{
		"the README's": {
			args:   []string{"now", "+", "2", "seconds", "--logs", "--", "echo", "YAY"},
			stdout: "YAY\n",
		},
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
		"failure, with the command's exit code": {
			args: []string{"now", "--wait", "--pass-exit-code", "--", "exit 7"}, code: 7,
			stderr: `error: at/exit-[a-z0-9]{5} failed: CommandFailed: [^\n]*exit code 7[^\n]*\n`,
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
	startController(t, k.namespace)
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
	var seen []byte
	for !strings.Contains(string(seen), "begun\n") {
		buffer := make([]byte, 1024)
		n, err := stdout.Read(buffer)
		if err != nil {
			t.Fatalf("%v\n%s%s", err, seen, stderr.String())
		}
		seen = append(seen, buffer[:n]...)
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

// TestKubectlAtChanges changes an At manually throughout its lifecycle. The transcripts of cmd/kubectl-at have
// all that the commands print.
func TestKubectlAtChanges(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t), env: []string{"TZ=UTC"}}
	startController(t, k.namespace)
	k.run(t, "now + 3 hours", "--name=at", "--suspend", "--", "echo YAY").want(t, 0, atResource+`at created\n`, `suspended, due `+due)
	k.run(t, "list").want(t, 0, `NAME +WHEN +IN +PHASE +REASON +COMMAND *\nat +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC +in (3h|2h\d+m) +PENDING +\S+ +echo YAY\n`, "")
	k.run(t, "run-now", "at").want(t, 0, atResource+`at moved to now\n`, `was [^\n]*: this uses up its planned run; kubectl at -n \S+ now --from at/at is an additional one\nsuspended, due `+due)
	k.run(t, "resume", "at").want(t, 0, atResource+`at resumed\n`, "")
	k.run(t, "wait", "at").want(t, 0, "", "")
	k.run(t, "logs", "at").want(t, 0, "YAY\n", "")
	k.run(t, "show", "at").want(t, 0, `Name +at\n.*State +DONE, Completed\nWhy +The command ended with exit code 0\.\n.*Exit code +0\nAttempts\n# +POD +PHASE +EXIT +NODE +CREATED +RAN *\n`+
		`1 +at-pod +Succeeded +0 +\S+ +\S+ ago +\w+\nEvents\n.* SuccessfulCreate .* Completed .*`, "")
	k.run(t, "rm", "at").want(t, 0, atResource+`at deleted\n`, "")
	waitGone(t, k.namespace, "pods")
}

// TestKubectlAtEvery creates a CronAt from a CronJob, and runs it once.
func TestKubectlAtEvery(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t), env: []string{"TZ=Asia/Kolkata"}}
	startController(t, k.namespace)
	kubectl(t, "", "create", "cronjob", "-n", k.namespace, "backup", "--image=busybox:1.37.0", "--schedule=30 2 1 1 *", "--", "echo", "YAY")
	created := k.run(t, "every", "--from=cronjob/backup", "--spread=5m")
	created.want(t, 0, cronAtResource+`backup created\n`, `.*cronjob/backup still runs, if the cluster has it: suspend it with kubectl [^\n]*\nruns next [^\n]* IST [^\n]*\n`)
	// The line is a command.
	_, command, _ := strings.Cut(created.stderr, "suspend it with ")
	command, _, _ = strings.Cut(command, "\n")
	if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", command, err, out)
	}
	kubectl(t, "", "wait", "-n", k.namespace, "--for=jsonpath={.status.nextScheduleTime}", "--timeout="+patience.String(), "cronat/backup")
	next, err := time.Parse(time.RFC3339, kubectl(t, "", "get", "-n", k.namespace, "cronat/backup", "-o", "jsonpath={.status.nextScheduleTime}"))
	if err != nil {
		t.Fatal(err)
	}
	// The plugin and the controller agree, including the delay of --spread.
	k.run(t, "list").want(t, 0, `NAME +SCHEDULE [^\n]*\ncronat/backup +30 2 1 1 \* +\S+ +`+next.In(time.FixedZone("IST", (5*60+30)*60)).Format("2006-01-02 15:04:05 MST")+` [^\n]*\n`, "")

	// A manual run is deleted with its CronAt.
	k.run(t, "run-now", "cronat/backup", "--logs").want(t, 0, `YAY\n`, atResource+`backup-manual-[a-z0-9]{5} created\n`+runs)
	k.run(t, "rm", "cronat/backup").want(t, 0, cronAtResource+`backup deleted\n`, "")
	waitGone(t, k.namespace, "ats")
}

// TestKubectlAtCompletion completes words like kubectl.
func TestKubectlAtCompletion(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	for _, name := range []string{"one", "two"} {
		createAt(t, newAt(namespace, name, time.Now().Add(time.Hour), "true"))
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
