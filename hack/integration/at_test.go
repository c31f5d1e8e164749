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

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

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
	// wouldRun is that line of a dry run.
	wouldRun = `would run ` + due
	// copied are the lines that say what a copy changes.
	copied = `(?:(?:Changed|Copied|Dropped) [^\n]*\n)+`
	due    = `[A-Z][a-z]{2} \d+ [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [^\n]*\n`
)

// applyCRD installs the CRD as described in docs/install.md, in a test that has its own
// cluster. In the other tests, it is installed.
func applyCRD(t *testing.T) {
	t.Helper()
	kubectl(t, "", "apply", "-f", crd)
	eventually(t, "Ats to be served", areServed)
}

// testKubectlAtNotInstalled uses a cluster without the CRD, and leaves it so.
func testKubectlAtNotInstalled(t *testing.T) {
	const hint = `[^\n]*the server could not find the requested resource[^\n]*\nThe cluster does not know ats: cnat is not installed, or too old\. Install it with [^\n]*\n`
	at{}.run(t, "now", "--", "true").want(t, 1, "", "error: "+hint)
	at{}.run(t, "list").want(t, 1, "", "error: "+hint)

	// An older cnat only has Ats.
	applyCRD(t)
	kubectl(t, "", "delete", "crd", "cronats.cnat.programming-kubernetes.info")
	k := at{namespace: newNamespace(t)}
	k.run(t, "now + 1 hours", "--name=at", "--", "true").want(t, 0, atResource+`at created\n`, runs)
	k.run(t, "list").want(t, 0, `NAME [^\n]*\nat [^\n]*\n`, "")
	k.run(t, "show", "none").want(t, 1, "", `error: [^\n]*"none" not found\nkubectl at (-n \S+ )?list --all[^\n]*\n`)
	k.run(t, "every", "@daily", "--", "true").want(t, 1, "",
		`error: [^\n]*the server could not find the requested resource[^\n]*\nThe cluster does not know cronats: cnat is not installed, or too old\. Install it with [^\n]*\n`)
	kubectl(t, "", "delete", "--ignore-not-found", "-f", crd)
}

// TestKubectlAt runs a command as described in the README.
func TestKubectlAt(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t)}
	startController(t, k.namespace)
	kubectl(t, "", "create", "cronjob", "-n", k.namespace, "backup", "--image=busybox:1.37.0", "--schedule=0 0 1 1 *", "--", "sh", "-c", "echo from $WHERE")
	kubectl(t, "", "set", "env", "-n", k.namespace, "cronjob/backup", "WHERE=cronjob")
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
		"a Pod from a file, an environment, and another command": {
			args:   []string{"now", "--logs", "-f", "-", "--env=A=b c", "--", `echo "$A"`},
			stdin:  "{apiVersion: v1, kind: Pod, spec: {containers: [{name: main, image: busybox:1.37.0, command: [echo, none]}]}}",
			stdout: "b c\n",
		},
		"a CronJob": {args: []string{"now", "--logs", "--from=cronjob/backup"}, stdout: "from cronjob\n"},
		"failure, with the command's exit code": {
			args: []string{"now", "--wait", "--pass-exit-code", "--", "exit 7"}, code: 7,
			stderr: `error: at/exit-[a-z0-9]{5} failed: CommandFailed: [^\n]*exit code 7[^\n]*\n`,
		},
		"each attempt": {
			args: []string{"now", "--logs", "--retries=1", "--name=attempts", "--", "echo $HOSTNAME; exit 1"}, code: 3,
			stdout: "attempts-pod\nattempts-pod-1\n",
			stderr: `attempt 2: pod/attempts-pod-1\nerror: at/attempts failed: CommandFailed: [^\n]*\n`,
		},
		"took too long": {
			args: []string{"now", "--wait", "--active-deadline=1s", "--image=busybox:1.37.0", "--", "trap 'exit 5' TERM; sleep 3600 & wait"}, code: 3,
			stderr: `error: at/[a-z0-9-]+ failed: DeadlineExceeded: [^\n]*\n`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			created, first := atResource+`[a-z0-9-]+ created\n`, `(?:`+copied+`)?`+runs
			if slices.Contains(tc.args, "--logs") { // Standard output is for the log.
				created, first = "", `(?:`+copied+`)?`+created+runs
			}
			k := at{namespace: k.namespace, stdin: tc.stdin}
			k.run(t, tc.args...).want(t, tc.code, created+tc.stdout, first+tc.stderr)
		})
	}
}

// TestKubectlAtErrors covers errors of the API server.
func TestKubectlAtErrors(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t)}
	createAt(t, newAt(k.namespace, "taken", time.Now().Add(time.Hour), "true"))
	for stderr, args := range map[string][]string{
		`error: [^\n]*spec.backoffLimit in body should be greater than or equal to 0\n`:                            {"now", "--retries", "-1", "--", "true"},
		`error: [^\n]*"taken" already exists\nChoose another name[^\n]*\n`:                                         {"now", "--name=taken", "--", "true"},
		`error: [^\n]*"none" not found\nkubectl at (-n \S+ )?list --all[^\n]*\n`:                                   {"show", "none"},
		`error: [^\n]*is forbidden: User "stranger" cannot create[^\n]*\nYou need a role that allows this[^\n]*\n`: {"now", "--as=stranger", "--", "true"},
		`error: [^\n]*refused\nThe API server does not respond[^\n]*\n`:                                            {"list", "--server=https://127.0.0.1:1"},
	} {
		k.run(t, args...).want(t, 1, "", stderr)
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

// TestKubectlAtChanges changes an At manually throughout its lifecycle.
func TestKubectlAtChanges(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t), env: []string{"TZ=UTC"}}
	startController(t, k.namespace)
	k.run(t, "now + 3 hours", "--name=at", "--", "echo YAY; sleep 999; true").want(t, 0, atResource+`at created\n`, runs)
	k.run(t, "now + 1 hours", "--name=sooner", "-o", "name", "--", "true").want(t, 0, atResource+`sooner\n`, runs)
	const when = ` +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC +`
	k.run(t, "list").want(t, 0, `NAME +WHEN +IN +PHASE +REASON +COMMAND *\n`+
		`sooner`+when+`in (1h|5\dm\w*) +PENDING +- +true\n`+
		`at`+when+`in (3h|2h\d+m) +PENDING +- +echo YAY; sleep 999; true\n`, "")

	k.run(t, "suspend", "at").want(t, 0, atResource+`at suspended\n`, "")
	waitAt(t, k.namespace, "at", "to be suspended", func(at *v1alpha1.At) bool { return at.Status.Reason == v1alpha1.ReasonSuspended })
	k.run(t, "run-now", "at").want(t, 0, atResource+`at moved to now\n`, `was [^\n]*: this uses up its planned run; kubectl at -n \S+ now --from at/at is an additional one\nsuspended, due `+due)
	k.run(t, "resume", "at").want(t, 0, atResource+`at resumed\n`, "")
	waitPodRunning(t, k.namespace)
	k.run(t, "move", "at", "now", "+", "1", "hours").want(t, 1, "", `error: at/at has already started: [^\n]*\n`)
	// With this signal, the shell says nothing.
	execLast(t, k.namespace, "at-pod", "killall", "-PIPE", "sleep")
	k.run(t, "logs", "at", "-f").want(t, 0, "YAY\n", "")
	k.run(t, "wait", "at").want(t, 0, "", "")
	k.run(t, "now", "--from=at/at", "--name=again", "--logs", "--", "echo again").want(t, 0, "again\n", atResource+`again created\n`+runs)
	k.run(t, "logs", "at", "--attempt=1").want(t, 0, "YAY\n", "")
	k.run(t, "show", "at").want(t, 0, `Name +at\n.*State +DONE, Completed\nWhy +The command ended with exit code 0\.\n.*Exit code +0\nAttempts\n# +POD +PHASE +EXIT +NODE +CREATED +RAN *\n`+
		`1 +at-pod +Succeeded +0 +\S+ +\S+ ago +\w+\nEvents\n.* SuccessfulCreate .* Completed .*`, "")

	k.run(t, "move", "sooner", "now + 3 hours", "--dry-run=server").want(t, 0, atResource+`sooner moved \(server dry run\)\n`, `was [^\n]*\n`+wouldRun)
	k.run(t, "move", "sooner", "now", "+", "2", "hours").want(t, 0, atResource+`sooner moved\n`, `was [^\n]*\nruns [^\n]*, in 2h\n`)
	k.run(t, "rm", "sooner", "none", "at", "again").want(t, 1, atResource+`sooner deleted\n`+atResource+`at deleted\n`+atResource+`again deleted\n`, `error: [^\n]*"none" not found\n[^\n]*\n`)
	waitGone(t, k.namespace, "pods")
	k.run(t, "list", "--all").want(t, 0, "", `Nothing is scheduled\. [^\n]*\n`)
}

// TestKubectlAtCheck checks runs, with a quota and without.
func TestKubectlAtCheck(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t)}
	startController(t, k.namespace)
	k.run(t, "now + 1 hours", "--name=rehearsed", "--rehearse", "--check", "--", "true").want(t, 0, atResource+`rehearsed created\n`,
		runs+`waiting for the rehearsal of at/rehearsed, 11m at most\nPreflight  [^\n]*\nRehearsal  Passed, \w+ ago: [^\n]*\nDry-run    [^\n]*\nUnchecked  What the command does\.\n`)
	k.run(t, "now + 1 hours", "--name=broken", "--rehearse", "--check", "--env-from=secret/none", "--", "true").want(t, 3, atResource+`broken created\n`,
		runs+`waiting for the rehearsal of at/broken, 11m at most\nerror: at/broken would not start: ContainerNotCreated: [^\n]*secret "none" not found[^\n]*\n`)
	admitPods(t, k.namespace, 0)
	// The command is another one: equal Pods share the answer to the dry-run.
	const refused = `error: \S+ would not start: PodRefused: [^\n]*exceeded quota[^\n]*\n`
	k.run(t, "now + 1 hours", "--name=refused", "--check", "--", "exit").want(t, 3, atResource+`refused created\n`, runs+refused)
	k.run(t, "check", "refused").want(t, 3, "", refused)
	k.run(t, "now + 1 hours", "--name=tried", "--dry-run=server", "--", "exit").want(t, 0, atResource+`tried created \(server dry run\)\n`, wouldRun+`PodRefused: [^\n]*exceeded quota[^\n]*\n`)
	k.run(t, "every", "@yearly", "--tz=UTC", "--name=refused", "--check", "--", "exit").want(t, 3, cronAtResource+`refused created\n`, `runs next [^\n]*\n`+refused)
}

// TestKubectlAtEvery creates a CronAt from a CronJob, and changes it manually throughout its lifecycle.
func TestKubectlAtEvery(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t), env: []string{"TZ=Asia/Kolkata"}}
	startController(t, k.namespace)
	kubectl(t, "", "create", "cronjob", "-n", k.namespace, "backup", "--image=busybox:1.37.0", "--schedule=30 2 1 1 *", "--", "echo", "YAY")
	kubectl(t, "", "patch", "cronjob", "-n", k.namespace, "backup", "-p", `{"spec":{"timeZone":"Europe/Berlin","concurrencyPolicy":"Forbid","jobTemplate":{"spec":{"parallelism":2}}}}`)
	notes := `Copied backoffLimit 6, [^\n]*\nDropped parallelism: [^\n]*\nChanged restartPolicy OnFailure to Never: [^\n]*\n` +
		`cronjob/backup still runs, if the cluster has it: suspend it with kubectl patch -n ` + k.namespace + ` cronjob/backup [^\n]*\n`
	created := k.run(t, "every", "--from=cronjob/backup", "--spread=5m")
	created.want(t, 0, cronAtResource+`backup created\n`, notes+`runs next [^\n]* IST \([^\n]* 1 Jan \d{4} 02:3\d:\d\d Europe/Berlin\), in [^\n]*\n`)
	// The line is a command.
	_, command, _ := strings.Cut(created.stderr, "suspend it with ")
	command, _, _ = strings.Cut(command, "\n")
	if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", command, err, out)
	}
	var next time.Time
	eventually(t, "the next time", func(ctx context.Context) (bool, error) {
		cronAt, err := cnatClient.CnatV1alpha1().CronAts(k.namespace).Get(ctx, "backup", metav1.GetOptions{})
		if err != nil || cronAt.Status.NextScheduleTime == nil {
			return false, err
		}
		next = cronAt.Status.NextScheduleTime.Time
		return true, nil
	})
	// The plugin and the controller agree, including the delay of --spread.
	k.run(t, "list").want(t, 0, `NAME +SCHEDULE [^\n]*\ncronat/backup +30 2 1 1 \* +Europe/Berlin +`+next.In(time.FixedZone("IST", (5*60+30)*60)).Format("2006-01-02 15:04:05 MST")+` [^\n]*\n`, "")

	// A manual run does not count for the CronAt, but is deleted with it.
	k.run(t, "run-now", "cronat/backup", "--logs").want(t, 0, `YAY\n`, atResource+`backup-manual-[a-z0-9]{5} created\n`+runs)
	k.run(t, "show", "cronat/backup").want(t, 0, `.*Active +0\nAts\n[^\n]*\nbackup-manual-[a-z0-9]{5} +[^\n]* DONE +Completed +[^\n]*\n.*`, "")
	k.run(t, "suspend", "cronat/backup").want(t, 0, cronAtResource+`backup suspended\n`, `suspended: [^\n]*\n`)
	k.run(t, "resume", "cronat/backup").want(t, 0, cronAtResource+`backup resumed\n`, `runs next [^\n]*\n`)
	k.run(t, "rm", "cronat/backup").want(t, 0, cronAtResource+`backup deleted\n`, "")
	waitGone(t, k.namespace, "ats")
}

// TestKubectlAtDryRun checks that nothing is written, and that the output can be applied.
func TestKubectlAtDryRun(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t), env: []string{"TZ=UTC", "KUBECTL_AT_NOW=2026-12-01T00:00:00Z"}}
	args := []string{"2026-12-24T10:12:00+01:00", "--past", "--name=at", "--retries=2", "--ttl=7d"}
	line := `would run Thu 24 Dec 2026 09:12:00 UTC \(Thu 24 Dec 2026 10:12:00 \+01:00\), in 23d9h\n`
	k.run(t, append(args, "--dry-run=server", "--", "true")...).want(t, 0, atResource+`at created \(server dry run\)\n`, line+`The API server accepts the Pod now, if you create it\.\n`)
	manifest := k.run(t, append(args, "--dry-run=client", "-o", "yaml", "--", "echo", "YAY")...)
	waitGone(t, k.namespace, "ats")
	kubectl(t, manifest.stdout, "apply", "-n", k.namespace, "-f", "-")
	created := waitPhase(t, k.namespace, "at", v1alpha1.PhasePending)
	want := v1alpha1.AtSpec{
		Schedule: "2026-12-24T10:12:00+01:00",
		RunSpec:  v1alpha1.RunSpec{Command: "echo YAY", BackoffLimit: ptr.To[int32](2), TTLSecondsAfterFinished: ptr.To[int32](7 * 24 * 3600)},
	}
	if diff := cmp.Diff(want, created.Spec); diff != "" {
		t.Errorf("the spec (-want +got):\n%s", diff)
	}
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
