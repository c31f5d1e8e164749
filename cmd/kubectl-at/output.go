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
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/scheme"
)

// output prints the objects that a command has written, like kubectl.
type output struct {
	flags  *genericclioptions.PrintFlags
	dryRun string
}

// noDryRunValue is the value of --dry-run if none is given.
const noDryRunValue = "unchanged"

// addOutput adds -o and --dry-run to a command. done describes what the command has done
// with an object.
func addOutput(cmd *cobra.Command, done string) *output {
	o := &output{flags: genericclioptions.NewPrintFlags(done).WithTypeSetter(scheme.Scheme)}
	o.flags.AddFlags(cmd)
	cmd.Flags().StringVar(&o.dryRun, "dry-run", "none", "none, client (write nothing) or server (validate on the API server, write nothing)")
	cmd.Flag("dry-run").NoOptDefVal = noDryRunValue // Like kubectl. Otherwise, the flag would take the next word.
	return o
}

func (o *output) validate() error {
	if o.dryRun == noDryRunValue {
		return usageError("--dry-run has no value: write --dry-run=client or --dry-run=server")
	}
	suffix, known := map[string]string{"none": "%s", "client": "%s (dry run)", "server": "%s (server dry run)"}[o.dryRun]
	if !known {
		return usageError("--dry-run is %q: it must be none, client or server", o.dryRun)
	}
	if err := o.flags.Complete(suffix); err != nil {
		return err
	}
	if _, err := o.flags.ToPrinter(); err != nil {
		return usageError("%w", err)
	}
	return nil
}

func (o *output) isClient() bool { return o.dryRun == "client" }

// runs describes what an At does at its time.
func (o *output) runs() string {
	if o.dryRun == "none" {
		return "runs"
	}
	return "would run"
}

// serverDryRun returns the value of dryRun in a request's options.
func (o *output) serverDryRun() []string {
	if o.dryRun == "server" {
		return []string{metav1.DryRunAll}
	}
	return nil
}

// fieldManager is the name under which the API server records the changes by this
// program.
const fieldManager = "kubectl-at"

func (o *output) createOptions() metav1.CreateOptions {
	return metav1.CreateOptions{DryRun: o.serverDryRun(), FieldValidation: metav1.FieldValidationStrict, FieldManager: fieldManager}
}

func (o *output) print(c *cli, object runtime.Object) error {
	printer, err := o.flags.ToPrinter()
	if err != nil {
		return err
	}
	return printer.PrintObj(object, c.Out)
}
