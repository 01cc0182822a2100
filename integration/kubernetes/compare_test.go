// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/section"
)

// kubeCase is what somebody does with pods.
type kubeCase struct {
	name    string
	objects string            // YAML of other objects, made before
	pods    map[string]string // YAML of specs, by name
	script  string
	want    string         // the script's output
	run     func(*session) // is done before the script, when the pods have been created
	ours    func(*session) // is done after it, with this shim alone
	mask    *regexp.Regexp // what may differ, because of reason
	reason  string
	fails   map[string]string // why the case fails in a way
	changes bool              // the status of the pods changes all the time, and is not compared
	alone   bool              // one way after the other, and no other case meanwhile
}

// ways are those in which each case is run, by the name of their runtime class: the runc shim has none.
const (
	runcShim  = "runc"
	withPause = "sandbox"
	pauseless = "sandbox-pauseless"
)

func ways() []string { return []string{runcShim, withPause, pauseless} }

// compare runs cases in each way. When all have ended, nothing may be left of them.
func compare(t *testing.T, cases []kubeCase) {
	t.Helper()
	t.Cleanup(func() { shared.checkLeft(t) })
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if !c.alone {
				t.Parallel()
			}
			accounts, failed := c.play(t)
			c.judge(t, failed)
			for i, way := range ways() {
				if failed[0] == nil && failed[i] == nil && accounts[0] != accounts[i] {
					t.Errorf("the two differ (-%s +%s):\n%s", runcShim, way, cmp.Diff(accounts[0], accounts[i]))
				}
			}
			if t.Failed() {
				t.Log(shared.logs())
			}
			seen.add(c)
		})
	}
}

// play runs the case in each way, and returns what was seen.
func (c kubeCase) play(t *testing.T) (accounts []string, failed []error) {
	t.Helper()
	accounts, failed = make([]string, len(ways())), make([]error, len(ways()))
	var wait sync.WaitGroup
	for i, way := range ways() {
		wait.Go(func() {
			begin := time.Now()
			accounts[i], failed[i] = shared.play(t.Context(), c, way)
			t.Logf("%s: %v", way, time.Since(begin).Round(time.Second/10))
			if c.mask != nil {
				accounts[i] = c.mask.ReplaceAllString(accounts[i], "<"+c.reason+">")
			}
		})
		if c.alone {
			wait.Wait()
		}
	}
	wait.Wait()
	return accounts, failed
}

// judge holds what failed against what the case says of failures.
func (c kubeCase) judge(t *testing.T, failed []error) {
	t.Helper()
	for i, way := range ways() {
		if failed[i] != nil && c.fails[way] == "" {
			t.Errorf("%s: %v", way, failed[i])
		}
		if failed[i] == nil && c.fails[way] != "" {
			t.Errorf("%s: passed, and the table says that it fails: %s", way, c.fails[way])
		}
	}
}

// ofNode are cgroups of all pods. In some hierarchies the first pod makes them.
var ofNode = regexp.MustCompile(`^cgroup \S*/kubepods(/besteffort|/burstable)?$`)

// checkLeft removes what the kubelet keeps of dead pods, and fails the test when there is more.
func (c *cluster) checkLeft(t *testing.T) {
	t.Helper()
	err := c.RemovePods(context.WithoutCancel(t.Context())) // it has ended before this
	left := func() []string {
		return slices.DeleteFunc(c.scope().Leaks(), func(leak string) bool {
			return slices.Contains(c.baseline, leak) || ofNode.MatchString(leak)
		})
	}
	err = errors.Join(err, harness.PollFor(harness.Slow(20*time.Second), func() error {
		if more := left(); len(more) > 0 {
			return fmt.Errorf("left behind:\n\t%s", strings.Join(more, "\n\t"))
		}
		return nil
	}))
	if err != nil {
		t.Errorf("%v\n%s", err, c.logs())
		c.baseline = c.scope().Leaks() // one group fails for it
	}
}

const tableFile = "../../docs/compatibility.md"

// results is the cases that have been run.
type results struct {
	mu   sync.Mutex
	rows []string
}

func (r *results) add(c kubeCase) {
	r.mu.Lock()
	defer r.mu.Unlock()
	row := "| " + c.name
	for _, way := range ways() {
		cell := "passed"
		if c.fails[way] != "" {
			cell = "fails: " + c.fails[way]
		} else if c.mask != nil && way != runcShim {
			cell += ". Differs: " + c.reason
		}
		row += " | " + cell
	}
	r.rows = append(r.rows, row+" |\n")
}

func unified() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err == nil
}

// on is what is true of the machine's version of cgroups.
func on(v1, v2 string) string {
	if unified() {
		return v2
	}
	return v1
}

// table is the cases that have been run, as Markdown.
func (r *results) table(c *cluster) string {
	slices.Sort(r.rows) // cases end in any order
	return fmt.Sprintf("Kubernetes %s, containerd %s, %s:\n\n| case | runc shim | this shim | without a pause container |\n"+
		"| --- | --- | --- | --- |\n%s", c.programs.Version, c.Version, on("cgroup v1", "cgroup v2"), strings.Join(r.rows, ""))
}

// writeFrom writes the table of a virtual machine, which has cgroup v2.
func writeFrom(file string) error {
	table, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return writeSection("kubernetes-v2", string(table))
}

// writeSection replaces a table in docs/compatibility.md.
func writeSection(name, table string) error {
	return section.Rewrite(tableFile, name, func(string) string { return table })
}
