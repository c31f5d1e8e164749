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
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// run has the flags that describe the run, which At and CronAt have in common.
type run struct {
	*writer
	changed func(flag string) bool

	name             string
	suspend          bool
	rehearse         bool
	retries          int32
	activeDeadline   seconds
	startingDeadline seconds
	ttl              seconds
	restart          string
	workload         *v1alpha1.AtRestart // after validate
	pod              podFlags
	nodes            nodeFlags
	labels           string
	labelSet         labels.Set // after validate
}

// addRun adds the flags to a command that creates an object.
func (c *cli) addRun(cmd *cobra.Command) *run {
	r := &run{writer: c.addWriter(cmd, "created"), changed: cmd.Flags().Changed}
	flags := cmd.Flags()
	flags.StringVar(&r.name, "name", "", "Name of the new object (default: derived from the command)")
	flags.BoolVar(&r.suspend, "suspend", false, "Create it suspended: nothing starts until kubectl at resume")
	flags.Int32Var(&r.retries, "retries", 0, "Number of retries after a failure")
	flags.Var(&r.activeDeadline, "active-deadline", "Maximum duration of the run, including all attempts")
	flags.Var(&r.startingDeadline, "starting-deadline", "Maximum delay of the start; after it, the run fails without starting")
	flags.Var(&r.ttl, "ttl", "Delete the At and its Pods this long after its end")
	flags.StringVar(&r.restart, "restart", "", "Restart deployment/NAME, statefulset/NAME or daemonset/NAME, like kubectl rollout restart, instead of running a command")
	flags.StringVarP(&r.labels, "labels", "l", "", "Labels of the new object, such as app=shop,team=a; those of a CronAt also apply to its Ats")
	flags.BoolVar(&r.rehearse, "rehearse", false, "Try the Pod on a node before the run is due, without running its command; it needs quota and room for a moment")
	flags.BoolVar(&r.checks, "check", false, "Wait for the preflight and the rehearsal, like kubectl at check; exit with 3 if the run would be refused, with 124 if no rehearsal of --rehearse has passed")
	r.pod.addFlags(flags)
	r.nodes.addFlags(flags)
	for _, ofCommand := range []string{"from", "filename", "container", "args", "image", "env", "env-from", "service-account", "node", "nodes", "retries", "rehearse"} {
		cmd.MarkFlagsMutuallyExclusive("restart", ofCommand)
	}
	cmd.MarkFlagsMutuallyExclusive("from", "filename")
	cmd.MarkFlagsMutuallyExclusive("node", "nodes")
	return r
}

func (r *run) validate(command []string) error {
	if err := r.writer.validate(); err != nil {
		return err
	}
	var err error
	if r.labelSet, err = labels.ConvertSelectorToLabelsMap(r.labels); err != nil {
		return usageError("--labels is %q: write NAME=VALUE, separated by commas", r.labels)
	}
	if err := cmp.Or(r.validateRestart(command), r.nodes.validate(), r.pod.validate()); err != nil {
		return err
	}
	if command != nil && strings.TrimSpace(strings.Join(command, "")) == "" {
		return usageError("there is no command after --: write one, or remove --")
	}
	if r.pod.args && len(command) == 0 {
		return usageError("there are no arguments for --args: write them after --")
	}
	return nil
}

// describe returns what is copied, with what the flags change.
func (r *run) describe(command []string) (from source, err error) {
	if r.workload != nil {
		from.name, from.run().Restart = "restart-"+r.workload.Name, r.workload
	} else if from, err = r.copied(); err != nil { // A file may choose the namespace.
		return from, err
	}
	metadata := &from.metadata
	metadata.Name = r.name
	namespace, isGiven, err := r.config.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return from, err
	}
	if !r.isClient() || isGiven { // Like kubectl create. Otherwise the output fits any namespace.
		metadata.Namespace = namespace
	}
	metadata.Labels = r.labelSet
	spec := from.run()
	r.nodes.apply(spec)
	spec.Rehearse = spec.Rehearse || r.rehearse
	if r.changed("retries") {
		spec.BackoffLimit = &r.retries
	}
	spec.ActiveDeadlineSeconds = cmp.Or(r.activeDeadline.value, spec.ActiveDeadlineSeconds)
	if r.ttl.value != nil {
		spec.TTLSecondsAfterFinished = ptr.To(int32(*r.ttl.value))
	}
	what, err := r.applyCommand(&from, command)
	if err != nil {
		return from, err
	}
	if metadata.Name == "" {
		metadata.Name = generateName(cmp.Or(from.name, what))
	}
	for _, note := range from.notes {
		r.say("%s", note)
	}
	return from, nil
}

// applyCommand sets what runs, and returns it as a command line, or "" if it is what is copied.
func (r *run) applyCommand(from *source, command []string) (what string, err error) {
	spec := from.run()
	what = shellCommand(command)
	switch {
	case r.pod.args:
		return what, r.applyArgs(spec, command)
	case len(command) > 1 && spec.Template != nil && (r.pod.isCopied() || r.pod.image != ""):
		// That image may have no shell.
		spec.Command = ""
		spec.Template.Spec.Containers[0].Command, spec.Template.Spec.Containers[0].Args = verbatim(command), nil
	case what != "":
		spec.Command = r.unixText(what)
	case spec.Restart == nil && (!r.pod.isCopied() || from.isServer):
		if what, err = r.readCommand(from); err != nil {
			return "", err
		}
		spec.Command = interpreted(what)
	}
	return what, nil
}

// applyArgs gives the program of the main container other arguments.
func (r *run) applyArgs(spec *v1alpha1.RunSpec, args []string) error {
	if spec.Command != "" || spec.Template == nil {
		return usageError("--args is for a program with arguments, but %s runs a command line: write the whole COMMAND after --, without --args", r.pod.name())
	}
	main := &spec.Template.Spec.Containers[0]
	// Which of these words are the program is not known: sh -c LINE, python report.py.
	if n := len(main.Command); n > 1 && (len(main.Args) == 0 || main.Command[n-1] == "-c") {
		return usageError("--args replaces args, but the arguments of the container %s are in its command: write the whole COMMAND after --, without --args", main.Name)
	}
	main.Args = verbatim(args)
	return nil
}

// readCommand reads the command from standard input.
func (r *run) readCommand(from *source) (string, error) {
	missing := "there is no command: write it after --, or pipe it into the standard input"
	if from.isServer {
		missing += ". That of " + r.pod.name() + " would not end"
	}
	if isTerminal(r.In) {
		return "", usageError("%s", missing)
	}
	lines, err := io.ReadAll(r.In)
	if err != nil {
		return "", fmt.Errorf("read the command from standard input: %w", err)
	}
	script := r.unixText(string(lines))
	if strings.TrimSpace(script) == "" {
		return "", usageError("%s", missing)
	}
	return strings.TrimRight(script, "\n"), nil
}

// unixText returns a text as a shell reads it, without what Windows adds.
func (r *run) unixText(text string) string {
	text = strings.TrimPrefix(text, "\ufeff")
	unix := strings.ReplaceAll(text, "\r\n", "\n")
	if unix != text {
		r.say("Changed the line ends of the command from CRLF to LF: a shell takes CR for a part of the line.")
	}
	return unix
}

// shebang matches the first line of a script and, in groups, the interpreter and, like Linux, at most one argument.
var shebang = regexp.MustCompile(`^#![ \t]*(\S*[^/\s])(?:[ \t]+(\S.*?))?[ \t\r]*(?:\n|$)`)

// interpreted returns a command line that runs a script by its own interpreter, as if it were
// a file.
func interpreted(script string) string {
	found := shebang.FindStringSubmatch(script)
	if found == nil || found[2] == "" && strings.HasSuffix(found[1], "/sh") {
		return script
	}
	interpreter := quote(found[1])
	if found[2] != "" {
		interpreter += " " + quote(found[2])
	}
	end := "END"
	for strings.Contains("\n"+script+"\n", "\n"+end+"\n") {
		end += "_"
	}
	return fmt.Sprintf("exec %s /dev/stdin <<'%s'\n%s\n%s", interpreter, end, script, end)
}

func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// validateRestart rejects a command, and its output, together with --restart.
func (r *run) validateRestart(command []string) error {
	kind, name := reference(r.restart)
	r.workload = &v1alpha1.AtRestart{Kind: v1alpha1.RestartKind(kind), Name: name}
	switch {
	case !r.changed("restart"):
		r.workload = nil
	case command != nil:
		return usageError("--restart does not run a command: remove what follows --")
	case r.wait.logs:
		return errLogsOfRestart
	case !slices.Contains(restartable, r.workload.Kind):
		return usageError("--restart is %q: write deployment/NAME, statefulset/NAME or daemonset/NAME", r.restart)
	}
	return nil
}

var restartable = []v1alpha1.RestartKind{v1alpha1.RestartDeployment, v1alpha1.RestartStatefulSet, v1alpha1.RestartDaemonSet}

// errLogsOfRestart says what to use instead of --logs.
var errLogsOfRestart = usageError("--logs prints the output of a command, but a restart has none: use --wait")

// targetOf returns the name of the workload to restart, as kubectl prints it, or "" if
// there is none.
func targetOf(spec *v1alpha1.RunSpec) string {
	if spec.Restart == nil {
		return ""
	}
	return strings.ToLower(string(spec.Restart.Kind)) + "/" + spec.Restart.Name
}

// maxStem keeps the name of the Pod, which extends that of the At, below 63 characters,
// so that it is not shortened.
const maxStem = 40

var (
	assignment = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=[^$\\'"\x60]*$`)
	notInName  = regexp.MustCompile(`[^a-z0-9]+`)
)

// generateName returns a name that indicates what runs.
func generateName(what string) string { return stem(what) + "-" + rand.String(5) }

// stem returns the first word of a command line, the program, as part of a name. It omits
// the other words, since they may contain secrets.
func stem(what string) string {
	words := append(strings.Fields(what), "at") // if there is no program
	for assignment.MatchString(words[0]) {
		words = words[1:]
	}
	if strings.ContainsAny(words[0], "=$`\\'\"") { // It may be a part of a secret.
		return "at"
	}
	name := notInName.ReplaceAllString(strings.ToLower(path.Base(words[0])), "-")
	name = strings.Trim(name, "-")
	return cmp.Or(strings.TrimRight(name[:min(len(name), maxStem)], "-"), "at")
}

var (
	// harmless matches words without special meaning to a shell.
	harmless = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)
	// reserved matches words that have a special meaning as the first word.
	reserved = regexp.MustCompile(`^(case|do|done|elif|else|esac|fi|for|function|if|in|select|then|time|until|while)$|=`)
)

// shellCommand returns the command line that makes a shell run exactly these arguments. A
// single argument is a command line already.
func shellCommand(args []string) string {
	if len(args) < 2 {
		return strings.Join(args, "")
	}
	first := quote(args[0])
	if first == args[0] && reserved.MatchString(first) {
		first = "'" + first + "'"
	}
	return first + " " + quoteAll(args[1:])
}

// verbatim protects the arguments of a container from the kubelet, which replaces $(NAME) and
// $$.
func verbatim(args []string) []string {
	var all []string
	for _, arg := range args {
		if strings.Contains(arg, "$(") || strings.Contains(arg, "$$") {
			arg = strings.ReplaceAll(arg, "$", "$$")
		}
		all = append(all, arg)
	}
	return all
}

// quoteAll returns the arguments of a program as a shell reads them.
func quoteAll(args []string) string {
	quoted := make([]string, len(args))
	for i, arg := range args {
		quoted[i] = quote(arg)
	}
	return strings.Join(quoted, " ")
}

// quote returns a word as a shell reads it, except for the first one of a line.
func quote(word string) string {
	if harmless.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// seconds is a flag that contains a number of whole seconds, given as a duration: 90s,
// 1h30m, or 7d.
type seconds struct{ value *int64 }

var _ pflag.Value = &seconds{}

func (s *seconds) String() string {
	if s.value == nil {
		return ""
	}
	return short(plan.Seconds(*s.value))
}

func (s *seconds) Type() string { return "duration" }

func (s *seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	if days, isDays := strings.CutSuffix(text, "d"); isDays {
		var number uint64
		number, err = strconv.ParseUint(days, 10, 15)
		d = time.Duration(number) * day
	}
	if err != nil || d%time.Second != 0 || d > math.MaxInt32*time.Second {
		return errors.New("write whole seconds, such as 90s, 1h30m or 7d")
	}
	n := int64(d / time.Second)
	s.value = &n
	return nil
}
