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
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

const (
	readmePage     = "README.md"
	installPage    = "docs/install.md"
	productionPage = "docs/production.md"
	scriptsPage    = "docs/tasks/scripts.md"

	// tutorialPage shows what its commands print.
	tutorialPage = "docs/tutorial.md"
)

// archive is the image of README.md.
const archive = "cnat-controller.tar"

// tableHeader matches the header of a table that kubectl prints.
var tableHeader = regexp.MustCompile(`(?m)^[A-Z]+(?: +[A-Z]+)+ *$`)

// imageArchive returns the path of the image that README.md builds.
func imageArchive() string { return filepath.Join(programs, archive) }

// pluginDir returns the folder of kubectl-at, which README.md builds.
func pluginDir() string { return filepath.Join(programs, "bin") }

// cut returns the commands of a page before the first one that begins with a text, and from there on.
func cut(page string, commands []string, text string) (before, after []string) {
	i := slices.IndexFunc(commands, func(command string) bool { return strings.HasPrefix(command, text) })
	if i < 0 {
		panic(fmt.Sprintf("%s has no command %s: %q", page, text, commands))
	}
	return commands[:i], commands[i:]
}

// installAsReadme installs cnat as README.md says, for all tests that share a cluster. Some of them need more
// permissions, restart annotations, and many rehearsals at once.
func installAsReadme(dir string) error {
	r, err := newReader(dir, metav1.NamespaceDefault)
	if err != nil {
		return err
	}
	// With what it requests, it would hardly get time from two busy processors.
	patch := `[{"op": "replace", "path": "/spec/template/spec/containers/0/resources/requests/cpu", "value": "500m"}`
	for _, arg := range []string{"-v=4", "-restart-annotations", "-rehearsals=100", "-rehearsals-per-namespace=100"} {
		patch += fmt.Sprintf(`, {"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": %q}`, arg)
	}
	commands, _ := cut(readmePage, consoleCommands(readmePage), "kubectl at ")
	for _, command := range commands {
		switch {
		case strings.HasPrefix(command, "export PATH="):
			continue // All readers have that folder there.
		case strings.HasPrefix(command, "kind load image-archive "):
			if out, err := load(imageArchive()); err != nil {
				return fmt.Errorf("load the image: %w\n%s", err, out)
			}
			continue
		case strings.HasPrefix(command, "hack/build-image.sh "):
			command = strings.ReplaceAll(command, archive, imageArchive())
		case strings.HasPrefix(command, "kubectl apply "):
			command += " -f artifacts/restarts -f artifacts/restarts/annotations && kubectl patch -n cnat-system deployment/cnat-controller --type=json -p '" + patch + "]'"
		}
		if out, err := r.try(context.Background(), command); err != nil {
			return fmt.Errorf("%s: %w\n%s", command, err, out)
		}
	}
	return nil
}

// TestReadme runs the other commands of README.md, up to the removal, which TestOutside tries, and those of docs/install.md
// that run an example.
func TestReadme(t *testing.T) {
	t.Parallel()
	_, commands := cut(readmePage, consoleCommands(readmePage), "kubectl at ")
	commands, _ = cut(readmePage, commands, uninstall)
	_, example := cut(installPage, consoleCommands(installPage), "kubectl apply -f artifacts/examples/")
	example, _ = cut(installPage, example, "kubectl apply -k ")
	r := readerOf(t, newNamespace(t))
	var all strings.Builder
	for _, command := range slices.Concat(commands, example) {
		out := progress.ReplaceAllString(r.run(t, command), "")
		all.WriteString(out)
		if strings.Contains(command, " logs ") && out != "YAY\n" {
			t.Errorf("%s: got %q, want YAY", command, out)
		}
	}
	wantLines(t, all.String(), blocks(readmePage, "text"))
}

// uninstall is the command that removes what README.md and docs/production.md install.
const uninstall = "kubectl delete -f artifacts/install.yaml"

// TestHelm runs the commands of docs/install.md for kustomize and Helm. Between the installation and the removal
// with Helm, it tries all options of the chart.
func TestHelm(t *testing.T) {
	if !inOwnCluster(t, "--node") {
		return
	}
	logFailure(t, systemNamespace)
	kubectl(t, stubs(), "apply", "-f", "-")
	before, err := clusterObjects(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, commands := cut(installPage, consoleCommands(installPage), "kubectl apply -k ")
	commands, _ = cut(installPage, commands, "go build")
	install, remove := cut(installPage, commands, "helm uninstall ")
	loadImage(t, imageArchive())
	runInstallation(t, install)
	ats := tryChart(t)
	runInstallation(t, remove[:1])
	wantChartGone(t, ats)
	runInstallation(t, remove[1:])
	if err := nothingLeft(t.Context(), before); err != nil {
		t.Error(err)
	}
}

// TestOutside runs the commands of docs/install.md from the controller outside of the cluster on, and before the removal those
// of docs/production.md.
func TestOutside(t *testing.T) {
	if !inOwnCluster(t, "--node") {
		return
	}
	_, commands := cut(installPage, consoleCommands(installPage), "go build")
	production, _ := cut(productionPage, consoleCommands(productionPage), uninstall)
	before, after := cut(installPage, commands, uninstall)
	loadImage(t, imageArchive())
	runInstallation(t, slices.Concat(before, production, after))
}

// runInstallation runs commands of docs/install.md as they stand there, in a cluster of its own.
func runInstallation(t *testing.T, commands []string) {
	t.Helper()
	r := readerOf(t, metav1.NamespaceDefault)
	var controller *exec.Cmd
	var log bytes.Buffer
	t.Cleanup(func() {
		if controller != nil && controller.ProcessState == nil {
			_ = controller.Process.Kill()
			_ = controller.Wait()
		}
		if t.Failed() {
			t.Logf("the controller's log:\n%s", log.String())
		}
	})
	// What a reader replaces.
	own := strings.NewReplacer("DIRECTORY", kustomization(t))
	for _, command := range commands {
		switch {
		case strings.HasPrefix(command, "./cnat-controller"):
			// The signal is for the controller, not for the shell; and it is not waited for.
			controller = r.shell(context.Background(), "exec "+command)
			controller.Env = append(controller.Env, "KUBECONFIG=")
			controller.Stdout, controller.Stderr = &log, &log
			if err := controller.Start(); err != nil {
				t.Fatal(err)
			}
			continue
		case strings.HasPrefix(command, "kubectl delete -f artifacts/examples/cnat-crd.yaml"), strings.HasPrefix(command, "kubectl delete -k "):
			waitCollector(t, "default") // Otherwise, the Pods may stay for minutes, and keep their names.
		case strings.HasPrefix(command, uninstall):
			waitCollector(t, "default")
			// There is something to stop.
			createAt(t, newAt("default", "runs", time.Now(), untilStopped))
			waitPhase(t, "default", "runs", v1alpha1.PhaseRunning)
		case strings.HasPrefix(command, "kubectl get pods -A -l"):
			leavePod(t)
		}
		out := r.run(t, own.Replace(command))
		switch {
		case strings.HasPrefix(command, uninstall):
			eventually(t, "the Pods to be gone", func(context.Context) (bool, error) {
				return kubectl(t, "", "get", "pods", "-A", "-l", v1alpha1.LabelAtUID, "-o", "name") == "", nil
			})
		case strings.HasPrefix(command, "kubectl delete -f artifacts/examples/cnat-crd.yaml"):
			if err := errors.Join(controller.Process.Signal(syscall.SIGTERM), controller.Wait()); err != nil {
				t.Fatalf("the controller ended badly: %v", err)
			}
		case strings.HasPrefix(command, "kubectl logs example-at-pod"):
			if out != "YAY\n" {
				t.Errorf("%s: got %q, want YAY", command, out)
			}
			at := waitPhase(t, "default", "example-at", v1alpha1.PhaseDone)
			waitEvents(t, at, map[string]int32{v1alpha1.ReasonSuccessfulCreate: 1, v1alpha1.ReasonCompleted: 1})
		}
	}
}

// TestDocs runs the commands of the other pages, each page in a namespace of its own.
func TestDocs(t *testing.T) {
	t.Parallel()
	// What some pages need.
	prepare := map[string]func(t *testing.T, namespace string){
		"docs/troubleshooting.md": func(t *testing.T, namespace string) {
			t.Helper()
			for name, command := range map[string]string{"example-at": "echo YAY", "fails": "ls /data"} {
				createAt(t, newAt(namespace, name, time.Now(), command))
				waitPhase(t, namespace, name, v1alpha1.PhaseDone)
			}
		},
		"docs/faq.md": func(t *testing.T, namespace string) {
			t.Helper()
			createAt(t, newAt(namespace, "example-at", time.Now(), "echo YAY"))
			waitPhase(t, namespace, "example-at", v1alpha1.PhaseDone)
			cronAt := newCronAt(namespace, "0 3 * * *")
			cronAt.Name = "backup"
			createCronAt(t, cronAt)
		},
		"docs/tasks/team-access.md": func(t *testing.T, namespace string) {
			t.Helper()
			roles := root + "/artifacts/deploy/roles.yaml"
			kubectl(t, "", "apply", "-f", roles)
			cleanUp(t, "", "delete", "-f", roles)
			kubectl(t, "", "create", "rolebinding", "probe", "-n", namespace, "--clusterrole=edit", "--user=probe")
			waitAllowed(t, "probe", authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "create", Group: cnat.GroupName, Resource: "ats"})
			kubectl(t, "", "delete", "rolebinding", "probe", "-n", namespace)
		},
		scriptsPage: loadKubectl,
		"docs/tasks/failures.md": func(t *testing.T, namespace string) {
			t.Helper()
			loadKubectl(t, namespace)
			loadImage(t, "registry.example.com/kubectl-at:v0.1.0="+filepath.Join(pluginDir(), "kubectl-at"))
		},
	}
	for _, page := range pages() {
		commands := consoleCommands(page)
		if len(commands) == 0 || slices.Contains([]string{readmePage, installPage, productionPage}, page) {
			continue
		}
		t.Run(strings.TrimSuffix(strings.TrimPrefix(page, "docs/"), ".md"), func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			if prepare := prepare[page]; prepare != nil {
				prepare(t, namespace)
			}
			r := readerOf(t, namespace)
			var all strings.Builder
			for _, command := range commands {
				// What a reader replaces.
				out := r.run(t, strings.ReplaceAll(command, "--serviceaccount=default:", "--serviceaccount="+namespace+":"))
				all.WriteString(out)
				if strings.Contains(command, "{.status.message}") && !strings.Contains(readPage(page), out) {
					t.Errorf("%s prints this, which the page does not have:\n%s", command, out)
				}
			}
			if page == tutorialPage {
				wantLines(t, all.String(), blocks(page, "text"))
			}
			if strings.Contains(readPage(page), "\n## Clean up\n") {
				wantNothingLeft(t, namespace)
			}
		})
	}
}

// loadKubectl loads the image of kubectl to the node.
func loadKubectl(t *testing.T, _ string) {
	t.Helper()
	program, err := exec.LookPath("kubectl")
	if err != nil {
		t.Fatal(err)
	}
	loadImage(t, "registry.k8s.io/kubectl:v1.37.1="+program)
}

// wantNothingLeft waits until nothing exists that the commands of a page can make in its namespace.
func wantNothingLeft(t *testing.T, namespace string) {
	t.Helper()
	const kinds = "ats,cronats,freezes,pods,configmaps,secrets,serviceaccounts,resourcequotas,deployments,replicasets,jobs,cronjobs,roles,rolebindings"
	left := ""
	err := poll(t.Context(), t.Name()+": what the page has made to be gone", func(context.Context) (bool, error) {
		left = kubectl(t, "", "get", "-n", namespace, kinds, "-o", "name")
		return left == "configmap/kube-root-ca.crt\nserviceaccount/default\n", nil // Each namespace has these.
	})
	if err != nil {
		t.Errorf("%v: there is left\n%s", err, left)
	}
}

// changes matches what is different each time in what kubectl prints: days, months, times, ages, namespaces,
// generated names.
var changes = regexp.MustCompile(`\b(?:echo-[a-z0-9]{5}|[A-Z][a-z]{2} \d+ [A-Z][a-z]{2} \d+|\d[\d:TZhms-]*|(?:default|cnat-test[a-z]+-[a-z0-9]+)/)`)

// wantLines finds the lines of what a page quotes, in their order, in what its commands have printed.
func wantLines(t *testing.T, printed string, quoted []string) {
	t.Helper()
	same := func(line string) string {
		return strings.Join(strings.Fields(changes.ReplaceAllString(line, "_")), " ")
	}
	var lines []string
	for line := range strings.Lines(printed) {
		lines = append(lines, same(line))
	}
	for _, block := range quoted {
		for line := range strings.Lines(block) {
			i := slices.Index(lines, same(line))
			if i < 0 {
				t.Errorf("the page has this line, which is not printed, or not there: %q, as %q, in\n%s", line, same(line), strings.Join(lines, "\n"))
				return
			}
			lines = lines[i+1:]
		}
	}
}

// TestQuoted compares the headers of the tables that the pages quote with those of the API
// server, and creates the objects that they show without storing them.
func TestQuoted(t *testing.T) {
	t.Parallel()
	headers := map[string]bool{}
	for _, path := range []string{
		"/apis/cnat.programming-kubernetes.info/v1alpha1/ats", "/apis/cnat.programming-kubernetes.info/v1alpha1/cronats",
		"/api/v1/pods", "/apis/coordination.k8s.io/v1/leases",
	} {
		raw, err := kubeClient.Discovery().RESTClient().Get().AbsPath(path).Param("limit", "1").
			SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(t.Context()).Raw()
		var table metav1.Table
		if err = errors.Join(err, json.Unmarshal(raw, &table)); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		var columns []string
		for _, column := range table.ColumnDefinitions {
			if column.Priority == 0 {
				columns = append(columns, strings.ToUpper(column.Name))
			}
		}
		headers[strings.Join(columns, " ")] = true
	}
	custom := regexp.MustCompile(`custom-columns=(\S+)`)
	namespace := newNamespace(t)
	tables, objects := 0, 0
	for _, page := range pages() {
		text := readPage(page)
		for _, match := range custom.FindAllStringSubmatch(text, -1) {
			var columns []string
			for column := range strings.SplitSeq(match[1], ",") {
				name, _, _ := strings.Cut(column, ":")
				columns = append(columns, name)
			}
			headers[strings.Join(columns, " ")] = true
		}
		for _, line := range tableHeader.FindAllString(text, -1) {
			tables++
			// TestDocs compares that page with what kubectl at prints.
			if page != tutorialPage && !headers[strings.Join(strings.Fields(line), " ")] {
				t.Errorf("%s quotes a table with these columns, which nothing prints: %s", page, line)
			}
		}
		for _, block := range blocks(page, "yaml") {
			if strings.HasPrefix(block, "apiVersion: cnat.") {
				objects++
				kubectl(t, block, "apply", "--dry-run=server", "-n", namespace, "-f", "-")
			}
		}
	}
	if tables == 0 || objects == 0 {
		t.Errorf("there are %d tables and %d objects", tables, objects)
	}
}

// kustomization returns a folder with the kustomization.yaml of docs/install.md, with the image
// that the nodes have.
func kustomization(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	absolute, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(dir, absolute)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("- artifacts/", "- "+relative+"/artifacts/", "registry.example.com/", "").Replace(blocks(installPage, "yaml")[0])
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// reader is somebody who types the commands of a page.
type reader struct {
	name string // of the test
	env  []string
}

// newReader returns a reader with a home, whose kubeconfig has the namespace, and who has installed kubectl at.
func newReader(home, namespace string) (*reader, error) {
	config, err := clientcmd.LoadFromFile(os.Getenv("KUBECONFIG"))
	if err != nil {
		return nil, err
	}
	config.Contexts[config.CurrentContext].Namespace = namespace
	path := filepath.Join(home, ".kube", "config")
	// go finds its caches by HOME.
	caches, cachesErr := exec.Command("go", "env", "GOCACHE", "GOMODCACHE").Output()
	lines := append(strings.Fields(string(caches)), "", "")
	return &reader{env: append(os.Environ(), "HOME="+home, "KUBECONFIG="+path, "PATH="+pluginDir()+":"+os.Getenv("PATH"), "GOCACHE="+lines[0], "GOMODCACHE="+lines[1], "TZ=UTC",
		// On a slow machine, a preflight takes longer than 2 s.
		"KUBECTL_AT_PATIENCE=6s")}, errors.Join(cachesErr, clientcmd.WriteToFile(*config, path))
}

// readerOf returns a reader with a home of their own, who uses a namespace.
func readerOf(t *testing.T, namespace string) *reader {
	t.Helper()
	r, err := newReader(t.TempDir(), namespace)
	if err != nil {
		t.Fatal(err)
	}
	r.name = t.Name()
	return r
}

// shell returns a shell that runs a command where the README says to.
func (r *reader) shell(ctx context.Context, command string) *exec.Cmd {
	shell := exec.CommandContext(ctx, "bash", "-c", command)
	shell.Dir = root
	shell.Env = r.env
	return shell
}

// run is try for a test that needs the command to succeed.
func (r *reader) run(t *testing.T, command string) string {
	t.Helper()
	out, err := r.try(t.Context(), command)
	if err != nil && strings.HasPrefix(command, "helm uninstall ") && stillExists(out) {
		waitUninstalled(t)
		err = nil
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return out
}

// try runs a command and returns what it prints.
func (r *reader) try(ctx context.Context, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	defer announce(r.name + ": " + command)()
	// A slow machine needs more time than a reader's.
	command = regexp.MustCompile(`--timeout=\w+`).ReplaceAllLiteralString(command, "--timeout="+patience.String())
	if time.Now().UTC().Hour() < 2 { // It must not run while the page is read.
		command = strings.ReplaceAll(command, "kubectl at 02:00", "kubectl at 14:00")
	}
	if strings.HasPrefix(command, "kubectl auth can-i ") { // The API server may not know a new binding yet.
		command = "until " + command + "; do sleep 1; done"
	}
	if strings.HasPrefix(command, "kubectl delete -") { // What is in the namespace may be gone with it.
		command += " --ignore-not-found"
	}
	shell := r.shell(ctx, command)
	if strings.Contains(command, "--env-from secret/shop ") { // It does not exist, and the page quotes the preflight.
		shell.Env = append(shell.Env, "KUBECTL_AT_PATIENCE="+patience.String())
	}
	out, err := shell.CombinedOutput()
	return string(out), err
}

// leavePod leaves a Pod behind as a controller does that is removed too early, and
// wants it to be gone at the end.
func leavePod(t *testing.T) {
	t.Helper()
	at := newAt("default", "left", time.Now(), "true")
	at.UID = "left"
	pods := kubeClient.CoreV1().Pods("default")
	pod := plan.NewPod(at, plan.Defaults{Image: "busybox:1.37.0"})
	pod.OwnerReferences = nil
	create(t, pods, pod)
	if err := pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := poll(context.Background(), "the Pod that was left behind to be gone", func(ctx context.Context) (bool, error) {
			_, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
			return apierrors.IsNotFound(err), ignoreNotFound(err)
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// pages returns the pages of the documentation.
func pages() []string {
	found := []string{readmePage}
	err := fs.WalkDir(os.DirFS(root), "docs", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".md") {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		panic(err)
	}
	return found
}

// consoleCommands returns the commands of the console blocks of a page: its lines, and with a
// line the here-document that it begins.
func consoleCommands(page string) []string {
	var commands []string
	for _, block := range blocks(page, "console") {
		command := ""
		for line := range strings.Lines(block) {
			command += line
			if strings.Contains(command, "<<'EOF'\n") && line != "EOF\n" {
				continue
			}
			commands = append(commands, strings.TrimSpace(command))
			command = ""
		}
		if command != "" {
			panic(page + " has a here-document that does not end: " + command)
		}
	}
	return commands
}

// block matches a block, which may be indented as part of a list, and its language.
var block = regexp.MustCompile("(?ms)^( *)```([^\n]+)\n(.*?)^ *```$")

// blocks returns the blocks of a page in a language.
func blocks(page, language string) []string {
	var found []string
	for _, match := range block.FindAllStringSubmatch(readPage(page), -1) {
		if match[2] == language {
			found = append(found, regexp.MustCompile("(?m)^"+match[1]).ReplaceAllLiteralString(match[3], ""))
		}
	}
	return found
}

func readPage(page string) string {
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		panic(err)
	}
	return string(text)
}
