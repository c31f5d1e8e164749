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

// Command kubectl-at schedules commands in a cluster like at(1) on a machine. If it is in
// the PATH, it runs as kubectl at.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"regexp"
	goruntime "runtime"
	"syscall"
	"time"
	_ "time/tzdata" // Windows has no time zone database.

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/kubernetes"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // like kubectl
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/scheme"
	cnatclient "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/typed/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/version"
)

// patience is how long to wait for the preflight of a new object. Integration tests replace it.
var patience = 2 * time.Second

// grace is how long an interrupted command has to say what it knows about its request. Reading a file or the standard
// input may never end.
const grace = 2 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() {
		stop() // A second signal terminates the program immediately.
		time.Sleep(grace)
		os.Exit(exitInterrupted)
	})
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	rest.SetDefaultWarningHandler(rest.NewWarningWriter(&printable{out: os.Stderr}, rest.WarningWriterOptions{Deduplicate: true}))
	code := newCLI(streams, clock.RealClock{}.Now).execute(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// cli is shared by all commands.
type cli struct {
	genericiooptions.IOStreams
	config   *genericclioptions.ConfigFlags
	getter   resource.RESTClientGetter
	flags    *pflag.FlagSet // of all commands
	now      func() time.Time
	began    time.Time // from when times count: see begin
	patience time.Duration

	tz string // --tz

	// connect sets these. An empty namespace means all of them.
	namespace string
	cnat      rest.Interface // for the kinds of cnat
	kube      kubernetes.Interface
}

func newCLI(streams genericiooptions.IOStreams, now func() time.Time) *cli {
	c := &cli{IOStreams: streams, now: now, config: genericclioptions.NewConfigFlags(true), patience: patience}
	c.getter = getter{c.config}
	return c
}

// begin lets the times of a command count from the present second. A command that means what is now when
// the API server has answered begins again then: a login may have taken long.
func (c *cli) begin() { c.began = c.now().Truncate(time.Second) }

func (c *cli) command() *cobra.Command {
	c.ErrOut = &printable{out: c.ErrOut}
	root := c.createCommand()
	root.SilenceErrors, root.SilenceUsage, root.SuggestionsMinimumDistance = true, true, 1
	root.CompletionOptions.DisableDefaultCmd = true // See completion-script.
	root.SetIn(c.In)
	root.SetOut(c.Out)
	root.SetErr(c.ErrOut)
	root.SetUsageTemplate(usageTemplate)
	flags := root.PersistentFlags()
	c.flags = flags
	c.config.AddFlags(flags)
	flags.StringVar(&c.tz, "tz", "", "Time zone for times without one and for output, such as Europe/Berlin (default: your own, $TZ)")
	root.SetFlagErrorFunc(flagError)
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		c.begin()
		if err := cmd.ValidateFlagGroups(); err != nil {
			return usageError("%w", err)
		}
		c.config.WithWrapConfigFn(func(config *rest.Config) *rest.Config { return c.limits(cmd.Context(), config) })
		if c.tz == "" {
			return nil
		}
		_, err := c.zone()
		return err
	}

	root.AddCommand(
		c.everyCommand(), c.listCommand(), c.agendaCommand(), c.showCommand(), c.logsCommand(), c.waitCommand(), c.rmCommand(),
		c.suspendCommand(), c.resumeCommand(), c.moveCommand(), c.runNowCommand(), c.freezeCommand(), c.unfreezeCommand(), c.checkCommand(),
		c.explainCommand(), c.completionScriptCommand(), c.versionCommand(),
	)
	c.addCompletions(root)
	return root
}

func (c *cli) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run: func(*cobra.Command, []string) {
			fmt.Fprintf(c.Out, "kubectl-at %s (%s, %s)\n", version.Version, version.Revision(), goruntime.Version())
		},
	}
}

// usageTemplate is cobra's template with the global flags at the end.
const usageTemplate = `Usage:
  {{.UseLine}}{{if .HasAvailableSubCommands}}
  {{.CommandPath}} [command]{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}

Commands:{{range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{if .LocalNonPersistentFlags.HasAvailableFlags}}

Flags:
{{.LocalNonPersistentFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}

Flags of all commands:
{{.Root.PersistentFlags.FlagUsages | trimTrailingWhitespaces}}
`

// execute runs the command kubectl at and returns its exit code.
func (c *cli) execute(ctx context.Context, args []string) int {
	root := c.command()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	var known *coded
	switch {
	case err == nil || errors.As(err, &known):
	case ctx.Err() != nil:
		err = withCode(exitInterrupted, "interrupted: %w", err)
	case cmd.ValidateArgs(cmd.Flags().Args()) != nil: // Cobra only says how many there must be.
		err = usageError("write %s: see %s --help", cmd.UseLine(), cmd.CommandPath())
	}
	return c.report(root, err)
}

// numberAsFlag matches the error for a time such as -30m or -05:00, which is taken for a flag.
var numberAsFlag = regexp.MustCompile(`unknown shorthand flag: '[0-9]'`)

// flagError returns the error for a flag that cannot be parsed.
func flagError(cmd *cobra.Command, err error) error {
	hint := ""
	switch {
	case numberAsFlag.MatchString(err.Error()):
		hint = `, and write a time such as "- 30 minutes" with a space, and one such as "10:12 -05:00" in quotes`
	case !cmd.HasParent():
		hint = ", and write -- before a COMMAND"
	}
	return usageError("%w: see %s --help%s", err, cmd.CommandPath(), hint)
}

// connect prepares requests in the user's namespace. It is called when they are needed:
// explain, version and a client dry run need no cluster.
func (c *cli) connect() (err error) {
	if c.namespace, _, err = c.config.ToRawKubeConfigLoader().Namespace(); err != nil {
		return err
	}
	config, err := c.getter.ToRESTConfig()
	if err != nil {
		return err
	}
	cnat, err := cnatclient.NewForConfig(config)
	if err != nil {
		return err
	}
	c.cnat = cnat.RESTClient()
	c.kube, err = kubernetes.NewForConfig(config)
	return err
}

// limits lets requests end with the command, and after a time.
func (c *cli) limits(ctx context.Context, config *rest.Config) *rest.Config {
	config.QPS, config.Burst = 50, 100 // for the output of many nodes
	limit := requestTimeout
	if config.Timeout != 0 { // --request-timeout
		// client-go would also limit what follows something, and its error would not say what has happened.
		limit, config.Timeout = config.Timeout, 0
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return limited{next, ctx, limit} })
	return config
}

// writer writes the objects of a command and prints them, like kubectl. Then it checks or follows them.
type writer struct {
	*cli
	format *genericclioptions.PrintFlags
	dryRun string
	checks bool // --check
	wait   wait
}

// addWriter adds -o and --dry-run to a command. done describes what the command has done
// with an object.
func (c *cli) addWriter(cmd *cobra.Command, done string) *writer {
	w := &writer{cli: c, format: genericclioptions.NewPrintFlags(done).WithTypeSetter(scheme.Scheme)}
	w.format.AddFlags(cmd)
	cmd.Flags().StringVar(&w.dryRun, "dry-run", "none", "none, client (write nothing) or server (validate on the API server, write nothing)")
	cmd.Flag("dry-run").NoOptDefVal = "empty" // It is refused. Otherwise, the flag would take the next word.
	return w
}

func (w *writer) validate() error {
	suffix, known := map[string]string{"none": "%s", "client": "%s (dry run)", "server": "%s (server dry run)"}[w.dryRun]
	if !known {
		return usageError("--dry-run is %q: it must be none, client or server", w.dryRun)
	}
	if err := w.format.Complete(suffix); err != nil {
		return err
	}
	if _, err := w.format.ToPrinter(); err != nil {
		return usageError("%w", err)
	}
	switch {
	case w.wait.enabled() && w.checks:
		return usageError("--check cannot be used with --wait: remove one of the two")
	case w.wait.enabled() && w.dryRun != "none":
		return usageError("--wait cannot be used with --dry-run=%s: remove one of the two", w.dryRun)
	case !w.wait.enabled() && (w.wait.timeout.value != nil || w.wait.passExitCode):
		return usageError("--timeout and --pass-exit-code require --wait or --logs")
	}
	return nil
}

func (w *writer) isClient() bool { return w.dryRun == "client" }
func (w *writer) isServer() bool { return w.dryRun == "server" }

// runs describes what an At does at its time.
func (w *writer) runs() string {
	if w.dryRun == "none" {
		return "runs"
	}
	return "would run"
}

// fieldManager is the name under which the API server records the changes by this
// program.
const fieldManager = "kubectl-at"

func (w *writer) print(object runtime.Object) error {
	printer, err := w.format.ToPrinter()
	if err != nil {
		return err
	}
	out := w.Out
	if w.wait.logs { // Standard output is for the log.
		out = w.ErrOut
	}
	return printer.PrintObj(object, out)
}
