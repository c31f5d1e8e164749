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
	"fmt"
	"io"
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
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
		"in one argument, at once": {
			args:   []string{"now + 1 seconds", "--logs", "--", "echo a >&2; sleep 1; echo b"},
			stdout: "a\nb\n",
		},
		"arguments that a shell would change": {
			args: []string{"now", "--logs", "--", "printf", `<%s>\n`, "", "a  b", "it's", `"q"`, "$HOME", "$(id)", "`id`", `\`, "*", "~", "#x", "-n",
				"a;b", "a&b|c>d", "A=1", "!", "{a,b}", "grüß 🌍", "a\nb"},
			stdout: regexp.QuoteMeta("<>\n<a  b>\n<it's>\n<\"q\">\n<$HOME>\n<$(id)>\n<`id`>\n<\\>\n<*>\n<~>\n<#x>\n<-n>\n" +
				"<a;b>\n<a&b|c>d>\n<A=1>\n<!>\n<{a,b}>\n<grüß 🌍>\n<a\nb>\n"),
		},
		"a program with a name that is shell syntax": {
			args: []string{"now", "--wait", "--pass-exit-code", "--", "if", "true"}, code: 127,
			stderr: `error: at/at-[a-z0-9]{5} failed: CommandFailed: /bin/sh: if: not found \(exit code 127\)\n`,
		},
		"lines of the standard input": {
			args: []string{"now", "--logs"}, stdin: "A='b c'\nfor i in 1 2; do\n  echo \"$i $A\"\ndone\n",
			stdout: "1 b c\n2 b c\n",
		},
		"a script on standard input": {
			args: []string{"now", "--logs"}, stdin: "#!/bin/awk -f\nBEGIN { print \"$awk\" }\n",
			stdout: `\$awk\n`,
		},
		"an environment": {
			args:   []string{"now", "--logs", "--env", "A=b c", "--env=B=", "--", `echo "$A,$B,$(id -u)"`},
			stdout: "b c,,65534\n",
		},
		"an image": {
			args:   []string{"now", "--logs", "--image=busybox:1.37.0", "--", "id", "-u"},
			stdout: "0\n",
		},
		"an image and its own command": {
			args: []string{"now", "--wait", "--image=busybox:1.37.0", "--from=cronjob/backup"},
		},
		"no output": {args: []string{"now", "--logs", "--", "true"}},
		"failure": {
			args: []string{"now", "--logs", "--", "echo no host; exit 7"}, code: 3,
			stdout: "no host\n", stderr: `error: at/echo-[a-z0-9]{5} failed: CommandFailed: no host \(exit code 7\)\n`,
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
		"missed its deadline": {
			args: []string{"2020-01-01T00:00:00Z", "--past", "--wait", "--starting-deadline=1m", "--", "true"}, code: 4,
			stderr: `error: at/true-[a-z0-9]{5} did not run: StartingDeadlineExceeded: [^\n]*\n`,
		},
		"took too long": {
			args: []string{"now", "--wait", "--active-deadline=1s", "--image=busybox:1.37.0", "--", "trap 'exit 5' TERM; sleep 3600 & wait"}, code: 3,
			stderr: `error: at/[a-z0-9-]+ failed: DeadlineExceeded: [^\n]*\n`,
		},
		"timeout": {
			args: []string{"now + 1 hours", "--wait", "--timeout=1s", "--name=timeout", "--", "true"}, code: 124,
			stderr: `error: --timeout has passed: at/timeout is PENDING\. It stays scheduled: [^\n]*\n`,
		},
		"suspended": {
			args: []string{"now", "--wait", "--suspend", "--timeout=1m", "--name=suspended", "--", "true"}, code: 124,
			stderr: `at/suspended is suspended: [^\n]*\nerror: --timeout has passed: [^\n]*\n`,
		},
		"a long log": {
			args:   []string{"now", "--logs", "--", "i=0; while test $i -lt 3; do seq 20000; sleep 1; i=$((i+1)); done | md5sum"},
			stdout: `[0-9a-f]{32}  -\n`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if slices.Contains(tc.args, "--from=cronjob/backup") {
				kubectl(t, "", "create", "cronjob", "-n", k.namespace, "backup", "--image=busybox:1.37.0", "--schedule=0 0 1 1 *", "--", "true")
			}
			k := at{namespace: k.namespace, stdin: tc.stdin}
			first := runs
			if slices.Contains(tc.args, "--from=cronjob/backup") {
				first = copied + runs
			}
			if name == "suspended" {
				first = "suspended, due " + due
			}
			created := atResource + `[a-z0-9-]+ created\n`
			if slices.Contains(tc.args, "--logs") { // Standard output is for the log.
				first, created = created+first, ""
			}
			k.run(t, tc.args...).want(t, tc.code, created+tc.stdout, first+tc.stderr)
		})
	}
}

// TestKubectlAtErrors covers errors from the command line and from the API server.
func TestKubectlAtErrors(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t)}
	createAt(t, newAt(k.namespace, "taken", time.Now().Add(time.Hour), "true"))
	for name, tc := range map[string]struct {
		args   []string
		code   int
		stderr string
	}{
		"no command":                   {args: []string{"now"}, code: 2, stderr: `error: there is no command: [^\n]*\n`},
		"no time":                      {args: []string{"--", "true"}, code: 2, stderr: `error: there is no time: [^\n]*\n`},
		"not a time":                   {args: []string{"now", "and", "then", "--", "true"}, code: 2, stderr: `error: [^\n]*\nnow and then\n *\^+\n`},
		"a wrong schedule":             {args: []string{"every", "0 25 * * *", "--", "true"}, code: 2, stderr: `error: schedule "0 25 \* \* \*" is invalid: hour "25": write numbers from 0 to 23, [^\n]*\n`},
		"no such CronAt":               {args: []string{"show", "cronat/none"}, code: 1, stderr: `error: [^\n]*"none" not found\nkubectl at -n \S+ list --all shows those[^\n]*\n`},
		"an unknown flag":              {args: []string{"now", "--retires=3", "--", "true"}, code: 2, stderr: `error: unknown flag: --retires[^\n]*\n`},
		"a bad number":                 {args: []string{"now", "--retries", "-1", "--", "true"}, code: 1, stderr: `error: [^\n]*spec.backoffLimit in body should be greater than or equal to 0\n`},
		"a bad duration":               {args: []string{"now", "--ttl=soon", "--", "true"}, code: 2, stderr: `error: [^\n]*write whole seconds[^\n]*\n`},
		"a bad zone":                   {args: []string{"now", "--tz=Europe/Berln", "--", "true"}, code: 2, stderr: `error: --tz is "Europe/Berln": [^\n]*\n`},
		"a bad output":                 {args: []string{"now", "-o", "xml", "--", "true"}, code: 2, stderr: `error: [^\n]*"xml"[^\n]*\n`},
		"no name":                      {args: []string{"rm"}, code: 2, stderr: `error: [^\n]*\n`},
		"a name that is taken":         {args: []string{"now", "--name=taken", "--", "true"}, code: 1, stderr: `error: [^\n]*"taken" already exists\nChoose another --name[^\n]*\n`},
		"no such At":                   {args: []string{"show", "none"}, code: 1, stderr: `error: [^\n]*"none" not found\nkubectl at (-n \S+ )?list --all[^\n]*\n`},
		"nothing to copy":              {args: []string{"now", "--from=cronjob/none"}, code: 1, stderr: `error: [^\n]*"none" not found\n`},
		"forbidden":                    {args: []string{"now", "--as=stranger", "--", "true"}, code: 1, stderr: `error: [^\n]*is forbidden: User "stranger" cannot create[^\n]*\nYou need a role that allows this[^\n]*\n`},
		"no API server":                {args: []string{"list", "--server=https://127.0.0.1:1"}, code: 1, stderr: `error: [^\n]*refused\nThe API server does not respond[^\n]*\n`},
		"a template of another kind":   {args: []string{"now", "-f", deploy + "/service.yaml"}, code: 2, stderr: `error: [^\n]*it contains a Service[^\n]*\n`},
		"output of what has not begun": {args: []string{"logs", "taken"}, code: 1, stderr: `error: at/taken has no output yet: PENDING, starts in [^\n]*\n`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k.run(t, tc.args...).want(t, tc.code, "", tc.stderr)
		})
	}
}

// TestKubectlAtNobody runs without a controller.
func TestKubectlAtNobody(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t)}
	cmd := k.command(t, "now", "--name=at", "--wait", "--", "true")
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	for lines := bufio.NewScanner(io.TeeReader(stderr, &said)); lines.Scan() && !nobody.MatchString(lines.Text()+"\n"); {
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(&said, stderr)
	_ = cmd.Wait()
	result{"", said.String(), cmd.ProcessState.ExitCode()}.
		want(t, 130, "", runs+nobody.String()+`error: [^\n]*\n`)
	k.run(t, "list").want(t, 0, `NAME .*\nat .* ago +PENDING +NoController +true\n`, "")
	k.run(t, "show", "at").want(t, 0, `.*Why +Its time has passed and no controller is processing it.*`, "")
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
	result{"", stderr.String(), cmd.ProcessState.ExitCode()}.want(t, 130, "", atResource+`at created\n`+runs+`error: stopped watching: at/at is RUNNING(, [^\n]*)?\. The run continues: [^\n]*\n`)
	execLast(t, k.namespace, "at-pod", "touch", "/tmp/over")
	k.run(t, "logs", "at", "-f").want(t, 0, "begun\nover\n", "")
	wantEnd(t, waitPhase(t, k.namespace, "at", v1alpha1.PhaseDone), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
}

// TestKubectlAtFrom copies Pod templates, then deletes the objects that they come from.
func TestKubectlAtFrom(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t)}
	startController(t, k.namespace)
	create := func(args ...string) {
		t.Helper()
		kubectl(t, "", append([]string{"create", "-n", k.namespace, "--image=busybox:1.37.0"}, args...)...)
	}
	create("cronjob", "backup", "--schedule=0 0 1 1 *", "--", "sh", "-c", "echo from $WHERE")
	kubectl(t, "", "set", "env", "-n", k.namespace, "cronjob/backup", "WHERE=cronjob")
	create("job", "import", "--", "echo", "from job")
	create("deployment", "shop", "--", "sleep", "3600")
	kubectl(t, "", "set", "env", "-n", k.namespace, "deployment/shop", "WHERE=deployment")
	template := filepath.Join(t.TempDir(), "template.yaml")
	if err := os.WriteFile(template, []byte(`
apiVersion: v1
kind: Pod
metadata:
  name: from-file
  labels: {a: b}
spec:
  containers:
  - name: main
    image: busybox:1.37.0
    command: [echo, from file]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args    []string
		created string
		stdout  string
		labels  map[string]string // of the Pod, besides the controller's own
	}{
		"a CronJob": {args: []string{"--from=cronjob/backup"}, created: "backup-[a-z0-9]{5}", stdout: "from cronjob\n"},
		"a CronJob, another command": {
			args:    []string{"--from=cj/backup", "--name=replaced", "--", `echo "replaced $WHERE"`},
			created: "replaced", stdout: "replaced cronjob\n",
		},
		"a CronJob, another environment": {
			args:    []string{"--from=cronjob/backup", "--env=WHERE=elsewhere"},
			created: "backup-[a-z0-9]{5}", stdout: "from elsewhere\n",
		},
		"a Job": {args: []string{"--from=job/import"}, created: "import-[a-z0-9]{5}", stdout: "from job\n"},
		"a Deployment, another command": {
			args:    []string{"--from=deployment/shop", "--", "sh", "-c", "echo from $WHERE"},
			created: "shop-[a-z0-9]{5}", stdout: "from deployment\n",
		},
		"a file": {args: []string{"-f", template}, created: "from-file-[a-z0-9]{5}", stdout: "from file\n"},
		"a file, another command": {
			args:    []string{"-f", template, "--labels=a=b", "--", "echo", "replaced"},
			created: "from-file-[a-z0-9]{5}", stdout: "replaced\n", labels: map[string]string{"a": "b"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := k.run(t, append([]string{"now", "--logs"}, tc.args...)...)
			got.want(t, 0, tc.stdout, `(?:`+copied+`)?`+atResource+tc.created+` created\n`+runs)
			name := regexp.MustCompile(`/(\S+) created`).FindStringSubmatch(got.stderr)
			if name == nil {
				return
			}
			at := waitPhase(t, k.namespace, name[1], v1alpha1.PhaseDone)
			pod, err := kubeClient.CoreV1().Pods(k.namespace).Get(t.Context(), at.Status.Pod.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			labels := map[string]string{v1alpha1.LabelAtUID: string(at.UID), v1alpha1.LabelAtName: at.Name}
			for key, value := range tc.labels {
				labels[key] = value
			}
			if diff := cmp.Diff(labels, pod.Labels); diff != "" {
				t.Errorf("the Pod's labels (-want +got):\n%s", diff)
			}
			if len(at.OwnerReferences) > 0 || len(pod.OwnerReferences) != 1 || pod.OwnerReferences[0].Kind != v1alpha1.AtKind {
				t.Errorf("owners of the At %v, of the Pod %v", at.OwnerReferences, pod.OwnerReferences)
			}
		})
	}
}

// TestKubectlAtChanges changes an At manually throughout its lifecycle.
func TestKubectlAtChanges(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t)}
	startController(t, k.namespace)
	created := atResource + `at created\n`
	k.run(t, "now + 3 hours", "--name=at", "--", "echo YAY; sleep 999; true").want(t, 0, created, runs)
	k.run(t, "now + 1 hours", "--name=sooner", "-o", "name", "--", "echo", "a long command that does not fit into a line").want(t, 0, atResource+`sooner\n`, runs)

	const when = ` +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC +`
	utc := at{namespace: k.namespace, env: []string{"TZ=UTC"}}
	utc.run(t, "list").want(t, 0, `NAME +WHEN +IN +PHASE +REASON +COMMAND *\n`+
		`sooner`+when+`in (1h|5\dm\w*) +PENDING +- +echo 'a long command that does not fit …\n`+
		`at`+when+`in (3h|2h\d+m) +PENDING +- +echo YAY; sleep 999; true\n`, "")
	utc.run(t, "list", "-o", "wide").want(t, 0, `NAME .* EXIT +POD +NODE +REHEARSED +REQUESTER *\n.*`, "")
	utc.run(t, "list", "-o", "name").want(t, 0, atResource+`sooner\n`+atResource+`at\n`, "")
	at{}.run(t, "list", "-A", "-o", "jsonpath={.items[?(@.metadata.namespace=='"+k.namespace+"')].metadata.name}").want(t, 0, `sooner at`, "")

	k.run(t, "suspend", "at").want(t, 0, atResource+`at suspended\n`, "")
	waitAt(t, k.namespace, "at", "to be suspended", func(at *v1alpha1.At) bool { return at.Status.Reason == v1alpha1.ReasonSuspended })
	k.run(t, "run-now", "at").want(t, 0, atResource+`at moved to now\n`, `was [^\n]*: this uses up its planned run; kubectl at -n \S+ now --from at/at is an additional one\nsuspended, due `+due)
	utc.run(t, "show", "at").want(t, 0, `Name +at\nNamespace +cnat-test-\w+\nCommand +echo YAY; sleep 999; true\nWhen .* UTC, \S+ ago\n.*State +PENDING, Suspended\nWhy .*`, "")
	k.run(t, "resume", "at").want(t, 0, atResource+`at resumed\n`, "")
	waitPhase(t, k.namespace, "at", v1alpha1.PhaseRunning)
	k.run(t, "move", "at", "now", "+", "1", "hours").want(t, 1, "", `error: at/at has already started: [^\n]*\n`)
	waitPodRunning(t, k.namespace)
	// With this signal, the shell says nothing.
	execLast(t, k.namespace, "at-pod", "killall", "-PIPE", "sleep")
	k.run(t, "logs", "at", "-f").want(t, 0, "YAY\n", "")
	done := waitPhase(t, k.namespace, "at", v1alpha1.PhaseDone)
	waitEvents(t, done, map[string]int32{v1alpha1.ReasonSuspended: 1, v1alpha1.ReasonResumed: 1, v1alpha1.ReasonSuccessfulCreate: 1, v1alpha1.ReasonCompleted: 1})
	for _, args := range [][]string{{"run-now", "at"}, {"suspend", "at"}, {"resume", "at"}} {
		k.run(t, args...).want(t, 1, "", `error: at/at is done: [^\n]*\n`)
	}
	k.run(t, "now", "--from=at/at", "--name=again", "--logs", "--", "echo again").want(t, 0, "again\n", atResource+`again created\n`+runs)
	k.run(t, "rm", "again").want(t, 0, atResource+`again deleted\n`, "")
	k.run(t, "logs", "at").want(t, 0, "YAY\n", "")
	k.run(t, "wait", "at").want(t, 0, "", "")
	k.run(t, "logs", "at", "--attempt=1").want(t, 0, "YAY\n", "")
	k.run(t, "logs", "at", "--attempt=2").want(t, 1, "", `error: at/at has no attempt 2: [^\n]*\n`)
	k.run(t, "list").want(t, 0, `NAME [^\n]*\nsooner [^\n]*\n`, "")
	k.run(t, "list", "--all").want(t, 0, `NAME [^\n]*\nat [^\n]* ago +DONE +Completed +echo YAY; sleep 999; true\nsooner [^\n]*\n`, "")
	k.run(t, "show", "at").want(t, 0, `Name +at\n.*State +DONE, Completed\nWhy +The command ended with exit code 0\.\n.*Exit code +0\nAttempts\n# +POD +PHASE +EXIT +NODE +CREATED +RAN *\n`+
		`1 +at-pod +Succeeded +0 +\S+ +\S+ ago +\w+\nEvents\n.* SuccessfulCreate .* Completed .*`, "")

	k.run(t, "move", "sooner", "now + 3 hours", "--dry-run=client").want(t, 0, atResource+`sooner moved \(dry run\)\n`, `was [^\n]*\n`+wouldRun)
	k.run(t, "move", "sooner", "now + 3 hours", "--dry-run=server").want(t, 0, atResource+`sooner moved \(server dry run\)\n`, `was [^\n]*\n`+wouldRun)
	k.run(t, "move", "sooner", "now", "+", "2", "hours").want(t, 0, atResource+`sooner moved\n`, `was [^\n]*\nruns [^\n]*, in 2h\n`)
	utc.run(t, "list").want(t, 0, `NAME [^\n]*\nsooner`+when+`in (2h|1h\d+m) [^\n]*\n`, "")

	k.run(t, "rm", "sooner", "--dry-run=server").want(t, 0, atResource+`sooner deleted \(server dry run\)\n`, "")
	k.run(t, "rm", "sooner", "none", "at").want(t, 1, atResource+`sooner deleted\n`+atResource+`at deleted\n`, `error: [^\n]*"none" not found\n[^\n]*\n`)
	eventually(t, "the Pod to be gone", func(ctx context.Context) (bool, error) {
		_, err := kubeClient.CoreV1().Pods(k.namespace).Get(ctx, "at-pod", metav1.GetOptions{})
		return apierrors.IsNotFound(err), ignoreNotFound(err)
	})
	k.run(t, "list", "--all").want(t, 0, "", `Nothing is scheduled\. [^\n]*\n`)
}

// TestKubectlAtMove moves Ats on their own days, in their own zones.
func TestKubectlAtMove(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t), env: []string{"TZ=UTC"}}
	for _, zone := range []*string{nil, ptr.To("Europe/Berlin")} {
		july := newAt(k.namespace, "july", time.Now(), "true")
		july.Spec.Schedule, july.Spec.TimeZone = "2035-07-01T10:12:00+02:00", zone
		want := "2035-07-01T03:00:00+02:00"
		if zone != nil {
			july.Spec.Schedule, want = "2035-07-01T10:12:00", "2035-07-01T03:00:00"
		}
		createAt(t, july)
		k.run(t, "move", "july", "3am").want(t, 0, atResource+`july moved\n`,
			`was Sun 1 Jul 2035 08:12:00 UTC \(Sun 1 Jul 2035 10:12:00 \S+\), in [^\n]*\nruns Sun 1 Jul 2035 01:00:00 UTC \(Sun 1 Jul 2035 03:00:00 \S+\), in [^\n]*\n`)
		moved, err := cnatClient.CnatV1alpha1().Ats(k.namespace).Get(t.Context(), "july", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if moved.Spec.Schedule != want || ptr.Deref(moved.Spec.TimeZone, "") != ptr.Deref(zone, "") {
			t.Errorf("schedule %q in %q, want %q in %q", moved.Spec.Schedule, ptr.Deref(moved.Spec.TimeZone, ""), want, ptr.Deref(zone, ""))
		}
		k.run(t, "rm", "july").want(t, 0, atResource+`july deleted\n`, "")
	}
}

// TestKubectlAtMoveSeveral moves Ats by names, labels and times.
func TestKubectlAtMoveSeveral(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t), env: []string{"TZ=UTC"}}
	for name, schedule := range map[string]string{"two": "2035-07-07T02:00:00Z", "four": "2035-07-07T04:00:00Z"} {
		at := newAt(k.namespace, name, time.Now(), "true")
		at.Labels, at.Spec.Schedule = map[string]string{"app": "shop"}, schedule
		createAt(t, at)
	}
	move := func(name, was, runs string) string {
		return `at/` + name + ` was \w+ \d+ \w+ 2035 ` + was + ` UTC, in [^\n]*\nat/` + name + ` runs \w+ \d+ \w+ 2035 ` + runs + ` UTC, in [^\n]*\n`
	}
	k.run(t, "move", "two", "four", "--to", "-30m").want(t, 0, atResource+`two moved\n`+atResource+`four moved\n`, move("two", "02:00:00", "01:30:00")+move("four", "04:00:00", "03:30:00"))
	k.run(t, "move", "-l", "app=shop", "--to=2035-07-09").want(t, 0, atResource+`four moved\n`+atResource+`two moved\n`, move("four", "03:30:00", "03:30:00")+move("two", "01:30:00", "01:30:00"))
	k.run(t, "move", "--due-before=2035-07-09 03:30", "--to=+1h").want(t, 0, atResource+`two moved\n`, `was Mon 9 Jul 2035 01:30:00 UTC, in [^\n]*\nruns Mon 9 Jul 2035 02:30:00 UTC, in [^\n]*\n`)
	k.run(t, "move", "four", "two", "none", "--to=+1h").want(t, 1, "", `error: ats\S+ "none" not found\n[^\n]*\n`)
	k.run(t, "move", "two", "four", "--to=-12y").want(t, 2, "", `error: at/two: "-12y" is in the past, because it is 2023-07-09T02:30:00Z: write a time in the future, or "now"\n[^\n]*\n[^\n]*\n`)
}

// TestKubectlAtCheck checks runs, with a quota and without.
func TestKubectlAtCheck(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t)}
	startController(t, k.namespace)
	k.run(t, "now + 1 hours", "--name=rehearsed", "--rehearse", "--check", "--", "true").want(t, 0, atResource+`rehearsed created\n`,
		runs+`waiting for the rehearsal of at/rehearsed, 11m at most\nPreflight  [^\n]*\nRehearsal  Passed, \w+ ago: [^\n]*\nDry-run    [^\n]*\nUnchecked  What the command does\.\n`)
	k.run(t, "check", "rehearsed").want(t, 0, `Preflight  [^\n]*\nRehearsal  Passed, \w+ ago: [^\n]*\nDry-run    [^\n]*\nUnchecked  What the command does\.\n`, "")
	k.run(t, "show", "rehearsed").want(t, 0, `Name +rehearsed\n.*\nRehearsed +Passed, \w+ ago\n.*`, "")
	k.run(t, "now + 1 hours", "--name=broken", "--rehearse", "--check", "--env-from=secret/none", "--", "true").want(t, 3, atResource+`broken created\n`,
		runs+`waiting for the rehearsal of at/broken, 11m at most\nerror: at/broken would not start: ContainerNotCreated: [^\n]*secret "none" not found[^\n]*\n`)
	const accepted = `Preflight  The controller has reported nothing against \S+\.\nDry-run    The API server accepts the Pod now, if you create it\.\nUnchecked  [^\n]*\n`
	k.run(t, "now + 1 hours", "--name=accepted", "--check", "--", "true").want(t, 0, atResource+`accepted created\n`, runs+accepted)
	k.run(t, "check", "at/accepted").want(t, 0, accepted, "")
	kubectl(t, "", "create", "role", "-n", k.namespace, "ats", "--verb=get,list,watch", "--resource=ats.cnat.programming-kubernetes.info")
	kubectl(t, "", "create", "rolebinding", "-n", k.namespace, "ats", "--role=ats", "--user=viewer")
	waitAllowed(t, "viewer", authorizationv1.ResourceAttributes{Namespace: k.namespace, Verb: "get", Group: v1alpha1.SchemeGroupVersion.Group, Resource: "ats"})
	k.run(t, "check", "accepted", "--as=viewer").want(t, 0, `Preflight  [^\n]*\nDry-run    You are not allowed to create Pods, so the Pod was not tried\.\nUnchecked  [^\n]*\n`, "")

	admitNoPods(t, k.namespace)
	// The command is another one: equal Pods share the answer to the dry-run.
	const refused = `error: \S+ would not start: PodRefused: [^\n]*exceeded quota[^\n]*\n`
	k.run(t, "now + 1 hours", "--name=refused", "--check", "--", "exit").want(t, 3, atResource+`refused created\n`, runs+refused)
	k.run(t, "check", "refused").want(t, 3, "", refused)
	k.run(t, "now + 1 hours", "--name=tried", "--dry-run=server", "--", "exit").want(t, 0, atResource+`tried created \(server dry run\)\n`, wouldRun+`PodRefused: [^\n]*exceeded quota[^\n]*\n`)
	k.run(t, "every", "@yearly", "--tz=UTC", "--name=refused", "--check", "--", "exit").want(t, 3, cronAtResource+`refused created\n`, `runs next [^\n]*\n`+refused)
}

// TestKubectlAtPending shows an At whose Pod does not start.
func TestKubectlAtPending(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t), env: []string{"TZ=UTC"}}
	startController(t, k.namespace)
	pod := `{"apiVersion": "v1", "kind": "Pod", "spec": {"volumes": [{"name": "v", "configMap": {"name": "none"}}],
		"automountServiceAccountToken": false, "containers": [{"name": "main", "image": "busybox:1.37.0", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}}`
	at{namespace: k.namespace, stdin: pod}.run(t, "now", "--name=at", "-f", "-", "--", "true").want(t, 0, atResource+`at created\n`, runs)
	waitEvents(t, waitPhase(t, k.namespace, "at", v1alpha1.PhaseRunning), map[string]int32{v1alpha1.ReasonSuccessfulCreate: 1})
	eventually(t, "the kubelet's warning", func(ctx context.Context) (bool, error) {
		events, err := kubeClient.CoreV1().Events(k.namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=FailedMount"})
		for i := range events.Items {
			if strings.Contains(events.Items[i].Message, `"none" not found`) {
				return true, nil
			}
		}
		return false, err
	})
	k.run(t, "show", "at").want(t, 0, `Name +at\n.*Warnings of its Pod\n.*\n[^\n]* FailedMount +[^\n]*configmap "none" not found[^\n]*\n.*Events\n.*`, "")
	if page := k.run(t, "show", "at").stdout; strings.Contains(page, "is running") {
		t.Errorf("the command does not run, but the page says so:\n%s", page)
	}
}

// TestKubectlAtEvery changes a CronAt manually throughout its lifecycle.
func TestKubectlAtEvery(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t), env: []string{"TZ=Europe/Berlin"}}
	startController(t, k.namespace)
	k.run(t, "every", "30 2 1 1 *", "--name=backup", "--concurrency=Forbid", "--spread=5m", "--", "echo", "YAY").
		want(t, 0, cronAtResource+`backup created\n`, `runs next [^\n]* 1 Jan \d{4} 02:3\d:\d\d CET \(01:3\d(:\d\d)?Z\), in [^\n]*\n`)
	cronAts := cnatClient.CnatV1alpha1().CronAts(k.namespace)
	var backup *v1alpha1.CronAt
	eventually(t, "the next time", func(ctx context.Context) (bool, error) {
		var err error
		backup, err = cronAts.Get(ctx, "backup", metav1.GetOptions{})
		return err == nil && backup.Status.NextScheduleTime != nil, err
	})
	if zone := ptr.Deref(backup.Spec.TimeZone, ""); zone != "Europe/Berlin" {
		t.Errorf("time zone %q, want that of the user", zone)
	}
	// The plugin and the controller agree, including the delay of --spread.
	next := backup.Status.NextScheduleTime.Time
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	k.run(t, "show", "cronat/backup").want(t, 0, `Name +cronat/backup\n.*Next +`+next.In(berlin).Format("Mon 2 Jan 2006 15:04:05 MST")+` .*`, "")
	k.run(t, "list").want(t, 0, `NAME +SCHEDULE [^\n]*\ncronat/backup +30 2 1 1 \* +Europe/Berlin +`+next.In(berlin).Format("2006-01-02 15:04:05 MST")+` [^\n]*\n`, "")

	// A manual run does not count for the CronAt, but is deleted with it.
	k.run(t, "run-now", "cronat/backup", "--logs").want(t, 0, `YAY\n`, atResource+`backup-manual-[a-z0-9]{5} created\n`+runs)
	k.run(t, "show", "cronat/backup").want(t, 0, `.*Active +0\nAts\n[^\n]*\nbackup-manual-[a-z0-9]{5} +[^\n]* DONE +Completed +echo YAY +0 +[^\n]*\n.*`, "")
	k.run(t, "show", "backup").want(t, 1, "", `error: there is no At "backup", but there is a CronAt: write cronat/backup\n`)
	k.run(t, "suspend", "cronat/backup").want(t, 0, cronAtResource+`backup suspended\n`, `suspended: [^\n]*\n`)
	k.run(t, "resume", "cronat/backup").want(t, 0, cronAtResource+`backup resumed\n`, `runs next [^\n]*\n`)
	k.run(t, "rm", "cronat/backup").want(t, 0, cronAtResource+`backup deleted\n`, "")
	eventually(t, "the Ats to be gone", func(ctx context.Context) (bool, error) {
		ats, err := cnatClient.CnatV1alpha1().Ats(k.namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(ats.Items) == 0, err
	})
}

// TestKubectlAtEveryFrom creates a CronAt from a CronJob.
func TestKubectlAtEveryFrom(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t), env: []string{"TZ=Asia/Kolkata"}}
	kubectl(t, "", "create", "cronjob", "-n", k.namespace, "backup", "--image=busybox:1.37.0", "--schedule=0 0 1 1 *", "--", "echo", "YAY")
	kubectl(t, "", "patch", "cronjob", "-n", k.namespace, "backup", "-p", `{"spec":{"timeZone":"Europe/Berlin","concurrencyPolicy":"Forbid","jobTemplate":{"spec":{"parallelism":2}}}}`)
	notes := `Copied backoffLimit 6, [^\n]*\nDropped parallelism: [^\n]*\nChanged restartPolicy OnFailure to Never: [^\n]*\n` +
		`cronjob/backup still runs, if the cluster has it: suspend it with kubectl patch -n ` + k.namespace + ` cronjob/backup [^\n]*\n`
	k.run(t, "every", "--from=cronjob/backup", "--dry-run=server", "-o", "jsonpath={.spec.schedule}").want(t, 0, `0 0 1 1 \*`, notes+`would run next [^\n]*\n`)
	created := k.run(t, "every", "--from=cronjob/backup")
	created.want(t, 0, cronAtResource+`backup created\n`, notes+`runs next [^\n]* IST \([^\n]* 1 Jan \d{4} 00:00:00 Europe/Berlin\), in [^\n]*\n`)
	// The line is a command.
	_, command, _ := strings.Cut(created.stderr, "suspend it with ")
	command, _, _ = strings.Cut(command, "\n")
	if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", command, err, out)
	}
	cronAt, err := cnatClient.CnatV1alpha1().CronAts(k.namespace).Get(t.Context(), "backup", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cronAt.Spec.AtTemplate.Spec.Template = nil // TestKubectlAtFrom has templates.
	want := v1alpha1.CronAtSpec{
		Schedule: "0 0 1 1 *", TimeZone: ptr.To("Europe/Berlin"), ConcurrencyPolicy: v1alpha1.ForbidConcurrent, Suspend: ptr.To(false),
		SuccessfulAtsHistoryLimit: ptr.To[int32](3), FailedAtsHistoryLimit: ptr.To[int32](1),
		AtTemplate: v1alpha1.AtTemplateSpec{Spec: v1alpha1.RunSpec{BackoffLimit: ptr.To[int32](6)}},
	}
	if diff := cmp.Diff(want, cronAt.Spec); diff != "" {
		t.Errorf("the spec (-want +got):\n%s", diff)
	}

	// A user who may only see Ats only sees Ats.
	kubectl(t, "", "create", "role", "-n", k.namespace, "ats", "--verb=get,list", "--resource=ats.cnat.programming-kubernetes.info")
	kubectl(t, "", "create", "rolebinding", "-n", k.namespace, "ats", "--role=ats", "--user=viewer")
	k.run(t, "now + 1 hours", "--name=at", "--", "true").want(t, 0, atResource+`at created\n`, runs)
	waitAllowed(t, "viewer", authorizationv1.ResourceAttributes{Namespace: k.namespace, Verb: "list", Group: v1alpha1.SchemeGroupVersion.Group, Resource: "ats"})
	k.run(t, "list", "--as=viewer").want(t, 0, `NAME [^\n]*\nat [^\n]*\n`, `Cannot list CronAts: [^\n]* forbidden: [^\n]*\n`)
}

// TestKubectlAtRestart checks with the API server what --restart creates.
func TestKubectlAtRestart(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t)}
	args := []string{"--restart=sts/web", "--ttl=1h", "--active-deadline=10m", "--dry-run=server"}
	k.run(t, append(args, "now", "-o", "jsonpath={.spec.restart}")...).want(t, 0, `{"kind":"StatefulSet","name":"web"}`, wouldRun)
	k.run(t, append([]string{"every", "@daily", "-o", "jsonpath={.spec.atTemplate.spec.restart}"}, args...)...).want(t, 0, `{"kind":"StatefulSet","name":"web"}`, `would run next [^\n]*\n`)
	k.run(t, "now", "--restart=web").want(t, 2, "", `error: --restart is "web": [^\n]*\n`)
}

// TestKubectlAtDryRun checks that nothing is written, and that the output is what would
// be written.
func TestKubectlAtDryRun(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t), env: []string{"TZ=UTC", "KUBECTL_AT_NOW=2026-12-01T00:00:00Z"}}
	args := func(more ...string) []string {
		return append([]string{"2026-12-24T10:12:00+01:00", "--past", "--name=at"}, more...)
	}
	line := `would run Thu 24 Dec 2026 09:12:00 UTC \(Thu 24 Dec 2026 10:12:00 \+01:00\), in 23d9h\n`
	k.run(t, args("--dry-run=client", "--", "true")...).want(t, 0, atResource+`at created \(dry run\)\n`, line)
	k.run(t, args("--dry-run=server", "--", "true")...).want(t, 0, atResource+`at created \(server dry run\)\n`, line+`The API server accepts the Pod now, if you create it\.\n`)
	k.run(t, args("--dry-run=client", "-o", "name", "--", "true")...).want(t, 0, atResource+`at\n`, line)
	manifest := k.run(t, args("--dry-run=client", "-o", "yaml", "--retries=2", "--ttl=7d", "--starting-deadline=90s", "--active-deadline=1h", "--suspend", "--", "echo", "YAY")...)
	if list, err := cnatClient.CnatV1alpha1().Ats(k.namespace).List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Fatalf("%d Ats, %v: want none", len(list.Items), err)
	}
	// The output can be applied.
	kubectl(t, manifest.stdout, "apply", "-n", k.namespace, "-f", "-")
	created, err := cnatClient.CnatV1alpha1().Ats(k.namespace).Get(t.Context(), "at", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := v1alpha1.AtSpec{
		Schedule: "2026-12-24T10:12:00+01:00", Suspend: ptr.To(true),
		StartingDeadlineSeconds: ptr.To[int64](90),
		RunSpec:                 v1alpha1.RunSpec{Command: "echo YAY", BackoffLimit: ptr.To[int32](2), ActiveDeadlineSeconds: ptr.To[int64](3600), TTLSecondsAfterFinished: ptr.To[int32](7 * 24 * 3600)},
	}
	if diff := cmp.Diff(want, created.Spec); diff != "" {
		t.Errorf("the spec (-want +got):\n%s", diff)
	}
	// The API server refuses errors that the command line cannot detect.
	k.run(t, args("--dry-run=server", "-f", writeTemplate(t), "--image=", "--", "true")...).want(t, 1, "", `error: [^\n]*must name an image[^\n]*\n.*`)
}

// writeTemplate writes a Pod without an image.
func writeTemplate(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pod.yaml")
	if err := os.WriteFile(path, []byte("{apiVersion: v1, kind: Pod, spec: {containers: [{name: main}]}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestKubectlAtZones covers users in several time zones on both days on which their
// clocks change. The API server validates each schedule.
func TestKubectlAtZones(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	for name, tc := range map[string]struct {
		zone string
		now  string
		time string
		// expectations: the schedule and its instant, or the error
		schedule string
		runs     string
		problem  string
	}{
		"Berlin, tomorrow's morning": {
			zone: "Europe/Berlin", now: "2026-03-27T15:00:00+01:00", time: "10:12",
			schedule: "2026-03-28T10:12:00+01:00", runs: "Sat 28 Mar 2026 10:12:00 CET (09:12Z), in 19h12m",
		},
		"Berlin, over the change to summer time": {
			zone: "Europe/Berlin", now: "2026-03-28T12:00:00+01:00", time: "tomorrow 10:12",
			schedule: "2026-03-29T10:12:00+02:00", runs: "Sun 29 Mar 2026 10:12:00 CEST (08:12Z), in 21h12m",
		},
		"Berlin, hours over the change": {
			zone: "Europe/Berlin", now: "2026-03-28T12:00:00+01:00", time: "now + 24 hours",
			schedule: "2026-03-29T13:00:00+02:00", runs: "Sun 29 Mar 2026 13:00:00 CEST (11:00Z), in 1d",
		},
		"Berlin, a time that is skipped": {
			zone: "Europe/Berlin", now: "2026-03-28T12:00:00+01:00", time: "2026-03-29 02:30",
			problem: `(01:30|03:30).*(01:30|03:30)`,
		},
		"Berlin, a time that is repeated": {
			zone: "Europe/Berlin", now: "2026-10-24T12:00:00+02:00", time: "tomorrow 02:30",
			problem: `2026-10-25T02:30:00\+02:00.*2026-10-25T02:30:00\+01:00`,
		},
		"Berlin, over the change to winter time": {
			zone: "Europe/Berlin", now: "2026-10-24T12:00:00+02:00", time: "tomorrow noon",
			schedule: "2026-10-25T12:00:00+01:00", runs: "Sun 25 Oct 2026 12:00:00 CET (11:00Z), in 1d1h",
		},
		"New York, over the change to summer time": {
			zone: "America/New_York", now: "2026-03-07T18:00:00-05:00", time: "tomorrow 10:12",
			schedule: "2026-03-08T10:12:00-04:00", runs: "Sun 8 Mar 2026 10:12:00 EDT (14:12Z), in 15h12m",
		},
		"New York, a time that is skipped": {
			zone: "America/New_York", now: "2026-03-07T18:00:00-05:00", time: "tomorrow 02:30",
			problem: `(01:30|03:30).*(01:30|03:30)`,
		},
		"New York, a time that is repeated": {
			zone: "America/New_York", now: "2026-10-31T18:00:00-04:00", time: "1:30 2026-11-01",
			problem: `2026-11-01T01:30:00-04:00.*2026-11-01T01:30:00-05:00`,
		},
		"New York, hours over the change to winter time": {
			zone: "America/New_York", now: "2026-10-31T18:00:00-04:00", time: "now + 12 hours",
			schedule: "2026-11-01T05:00:00-05:00", runs: "Sun 1 Nov 2026 05:00:00 EST (10:00Z), in 12h",
		},
		"New York, an offset": {
			zone: "America/New_York", now: "2026-10-31T18:00:00-04:00", time: "2026-11-01 01:30 -05:00",
			schedule: "2026-11-01T01:30:00-05:00", runs: "Sun 1 Nov 2026 01:30:00 EST (06:30Z), in 8h30m",
		},
		"Kolkata, where clocks do not change": {
			zone: "Asia/Kolkata", now: "2026-03-29T08:00:00+05:30", time: "noon",
			schedule: "2026-03-29T12:00:00+05:30", runs: "Sun 29 Mar 2026 12:00:00 IST (06:30Z), in 4h",
		},
		"Kolkata, the time of New York": {
			zone: "Asia/Kolkata", now: "2026-03-29T08:00:00+05:30", time: "2026-12-24 10:12 America/New_York",
			schedule: "2026-12-24T10:12:00-05:00", runs: "Thu 24 Dec 2026 20:42:00 IST (15:12Z, Thu 24 Dec 2026 10:12:00 America/New_York), in 270d12h",
		},
		"Lord Howe, whose clocks change by half an hour": {
			zone: "Australia/Lord_Howe", now: "2026-10-03T12:00:00+10:30", time: "tomorrow 10:12",
			schedule: "2026-10-04T10:12:00+11:00", runs: "Sun 4 Oct 2026 10:12:00 +11 (Sat 3 Oct 23:12Z), in 21h42m",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			words := strings.Fields(tc.time)
			schedule, line, code := regexp.QuoteMeta(tc.schedule), regexp.QuoteMeta("would run "+tc.runs+"\n"), 0
			if tc.problem != "" {
				line, code = `error: [^\n]*`+tc.problem+`[^\n]*\n`+regexp.QuoteMeta(tc.time)+`\n *\^+\n`, 2
			}
			now := "KUBECTL_AT_NOW=" + tc.now
			flags := []string{"--dry-run=server", "-o", "jsonpath={.spec.schedule}", "--", "true"}
			// By $TZ in words, and by --tz in one.
			at{namespace: namespace, env: []string{now, "TZ=" + tc.zone}}.run(t, append(words, flags...)...).want(t, code, schedule, line)
			at{namespace: namespace, env: []string{now, "TZ=Pacific/Apia"}}.run(t, append([]string{tc.time, "--tz=" + tc.zone}, flags...)...).want(t, code, schedule, line)
			// explain needs no cluster.
			explained := at{env: []string{now, "TZ=" + tc.zone, "KUBECONFIG=/none"}}.run(t, append([]string{"explain"}, words...)...)
			if tc.problem != "" {
				explained.want(t, 2, "", line)
			} else {
				explained.want(t, 0, `schedule +`+schedule+`\nlocal .*\nUTC .*from now in .*how .*`, "")
			}
		})
	}
}

// TestKubectlAtCompletion completes words like kubectl.
func TestKubectlAtCompletion(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t)}
	createAt(t, newAt(k.namespace, "one", time.Now().Add(time.Hour), "true"))
	createAt(t, newAt(k.namespace, "two", time.Now().Add(time.Hour), "true"))
	kubectl(t, "", "create", "cronjob", "-n", k.namespace, "backup", "--image=example.org/backup:1", "--schedule=0 0 1 1 *")
	at{namespace: k.namespace}.run(t, "every", "@yearly", "--name=three", "--tz=UTC", "--", "true").want(t, 0, cronAtResource+`three created\n`, `runs next [^\n]*\n`)
	for name, tc := range map[string]struct {
		words []string
		want  []string
	}{
		"names":         {[]string{"rm", "-n", k.namespace, ""}, []string{"cronat/three", "one", "two"}},
		"names of Ats":  {[]string{"logs", "-n", k.namespace, ""}, []string{"one", "two"}},
		"other names":   {[]string{"rm", "-n", k.namespace, "two", "cronat/three", ""}, []string{"one"}},
		"namespaces":    {[]string{"list", "-n", "kube-s"}, []string{"kube-system"}},
		"what to copy":  {[]string{"now", "-n", k.namespace, "--from", ""}, []string{"at/one", "at/two", "cronat/three", "cronjob/backup"}},
		"images":        {[]string{"now", "-n", k.namespace, "--image", ""}, []string{"example.org/backup:1"}},
		"times":         {[]string{"tom"}, []string{"tomorrow"}},
		"schedules":     {[]string{"every", "@d"}, []string{"@daily"}},
		"a CronJob":     {[]string{"every", "-n", k.namespace, "--from", "cronj"}, []string{"cronjob/backup"}},
		"policies":      {[]string{"every", "--concurrency", ""}, []string{"Allow", "Forbid", "Replace"}},
		"subcommands":   {[]string{"run"}, []string{"run-now"}},
		"a flag's name": {[]string{"now", "--activ"}, []string{"--active-deadline"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			complete := at{}.command(t)
			complete.Args = append([]string{"kubectl", "__complete", "at"}, tc.words...)
			out, err := complete.Output()
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for line := range strings.Lines(string(out)) {
				word, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
				// The shell chooses those that begin as the word does.
				if strings.HasPrefix(word, tc.words[len(tc.words)-1]) && !strings.HasPrefix(word, ":") && word != "" {
					got = append(got, word)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("completions (-want +got):\n%s\n%s", diff, out)
			}
		})
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
