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
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// allNodes is the value of --nodes for all nodes.
const allNodes = "all"

// nodeFlags select the nodes on which the command runs.
type nodeFlags struct {
	changed       func(flag string) bool
	node, nodes   string
	maxConcurrent string
	maxFailed     int32
	selector      metav1.LabelSelector // after validate
}

func (f *nodeFlags) addFlags(flags *pflag.FlagSet) {
	f.changed = flags.Changed
	flags.StringVar(&f.node, "node", "", "Name of the node on which the command runs")
	flags.StringVar(&f.nodes, "nodes", "", "Run the command once on each node that a label selector matches, such as pool=workers; "+allNodes+" means all nodes")
	flags.StringVar(&f.maxConcurrent, "max-concurrent", "", "With --nodes: maximum number of nodes on which it runs at the same time, as a number or a percentage (default: all)")
	flags.Int32Var(&f.maxFailed, "max-failed", 0, "With --nodes: do not start it on further nodes after it has failed on more than this number (default: no limit)")
}

func (f *nodeFlags) validate() error {
	given := f.changed
	for flag, value := range map[string]string{"node": f.node, "nodes": f.nodes, "max-concurrent": f.maxConcurrent} {
		if given(flag) && strings.TrimSpace(value) == "" { // perhaps an unset variable
			return usageError("--%s is empty: write a value, or remove it", flag)
		}
	}
	switch {
	case !given("nodes") && (given("max-concurrent") || given("max-failed")):
		return usageError("--max-concurrent and --max-failed require --nodes")
	case !given("nodes") || f.nodes == allNodes:
		return nil
	}
	selector, err := metav1.ParseToLabelSelector(f.nodes)
	if err != nil {
		return usageError("--nodes is %q: %w", f.nodes, err)
	}
	f.selector = *selector
	return nil
}

// apply sets the fields for the flags.
func (f *nodeFlags) apply(spec *v1alpha1.RunSpec) {
	if f.node != "" {
		spec.Node, spec.Nodes = f.node, nil
	}
	if !f.changed("nodes") {
		return
	}
	spec.Node, spec.Nodes = "", &v1alpha1.AtNodes{Selector: f.selector}
	if f.maxConcurrent != "" {
		spec.Nodes.MaxConcurrent = ptr.To(intstr.Parse(f.maxConcurrent))
	}
	if f.changed("max-failed") {
		spec.Nodes.MaxFailed = ptr.To(f.maxFailed)
	}
}

// placeOf describes where an At runs; "" means on any node.
func placeOf(spec *v1alpha1.RunSpec) string {
	switch {
	case spec.Node != "":
		return "node " + spec.Node
	case spec.Nodes == nil:
		return ""
	}
	place := "all nodes"
	if selector := metav1.FormatLabelSelector(&spec.Nodes.Selector); selector != "<none>" {
		place = "nodes with " + selector
	}
	if limit := spec.Nodes.MaxConcurrent; limit != nil {
		place += fmt.Sprintf(", %s at the same time", limit)
	}
	if limit := spec.Nodes.MaxFailed; limit != nil {
		place += fmt.Sprintf(", until more than %d have failed", *limit)
	}
	return place
}

// announceOmitted prints which of the nodes that a new object selects it would leave out now.
func (c *cli) announceOmitted(of object) {
	at := asAt(of)
	if at.Spec.Nodes == nil {
		return
	}
	nodes, err := listOf[*corev1.Node](c, "nodes", "")
	if err != nil { // Few users may list nodes, and the object has been created.
		return
	}
	chosen, omitted, _ := plan.ChooseNodes(at, nodes) // The preflight reports an error.
	var reasons []string
	number := 0
	for _, why := range slices.Sorted(maps.Keys(omitted)) {
		reasons = append(reasons, fmt.Sprintf("%d %s", omitted[why], why))
		number += omitted[why]
	}
	if number > 0 {
		c.say("leaves out %d of %d nodes: %s", number, number+len(chosen), strings.Join(reasons, ", "))
	}
}

// countsOf describes the progress of a run on nodes.
func countsOf(nodes *v1alpha1.AtNodesStatus) string {
	if nodes == nil {
		return ""
	}
	counts := fmt.Sprintf("%d of %d succeeded", nodes.Succeeded, nodes.Desired)
	for _, other := range []struct {
		number int32
		what   string
	}{{nodes.Failed, "failed"}, {nodes.Active, "active"}, {nodes.Waiting, "waiting"}} {
		if other.number > 0 {
			counts += fmt.Sprintf(", %d %s", other.number, other.what)
		}
	}
	return counts
}

// ofNodes selects the Ats of the nodes of an At.
func ofNodes(at *v1alpha1.At) string { return v1alpha1.LabelAtUID + "=" + string(at.UID) }

// nodeAts returns the Ats of the nodes of an At, sorted by node.
func (c *cli) nodeAts(at *v1alpha1.At) ([]*v1alpha1.At, error) {
	ats, err := c.listAts(ofNodes(at))
	slices.SortFunc(ats, func(a, b *v1alpha1.At) int { return strings.Compare(a.Spec.Node, b.Spec.Node) })
	return ats, err
}

// printNodes prints the Ats of the nodes of an At, if it has any.
func (c *cli) printNodes(at *v1alpha1.At) error {
	if at.Spec.Nodes == nil {
		return nil
	}
	ats, err := c.nodeAts(at)
	if err != nil {
		c.say("Cannot list the Ats of its nodes: %v", err)
	}
	table := newTable("Node", "Name", "Phase", "Reason", "Exit")
	for _, at := range ats {
		table.add(at, at.Spec.Node, at.Name, string(at.Status.Phase), c.reasonOf(at), exitCodeOf(at.Status.ExitCode))
	}
	return table.print(c, "Nodes", printers.PrintOptions{})
}

// ofNode returns a writer for the output of an At of a node.
func ofNode(at *v1alpha1.At, out io.Writer, lock *sync.Mutex) io.Writer {
	return &prefixed{out: out, lock: lock, prefix: "[" + at.Spec.Node + "] "}
}

// prefixed writes whole lines with a prefix.
type prefixed struct {
	out    io.Writer
	lock   *sync.Mutex // of out
	prefix string
	rest   []byte
}

func (p *prefixed) Write(data []byte) (int, error) {
	p.rest = append(p.rest, data...)
	end := bytes.LastIndexByte(p.rest, '\n') + 1
	var lines []byte
	for line := range bytes.Lines(p.rest[:end]) {
		lines = append(append(lines, p.prefix...), line...)
	}
	p.rest = slices.Clone(p.rest[end:])
	p.lock.Lock()
	defer p.lock.Unlock()
	_, err := p.out.Write(lines)
	return len(data), err
}

// end writes the last line, if it has no end.
func (p *prefixed) end() {
	if len(p.rest) > 0 {
		_, _ = p.Write([]byte("\n"))
	}
}
