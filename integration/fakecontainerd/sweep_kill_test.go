// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

const deleteCommand = "delete command"

// The shim dies at the first system call of a kind, at the second, and so on, or the delete command does. The next
// delete command removes everything, and nobody else is harmed. The variables of TestSweep choose.
func TestSweep_KillLeavesNothing(t *testing.T) {
	harness.OursOnly(t, "what is left after a kill")
	all := []string{deleteCommand}
	for _, o := range sweepOps() {
		all = append(all, o.name)
	}
	ops := chosen(t, "SHIM_SWEEP_OPS", all, []string{"create", "delete", "pod", deleteCommand})
	calls := chosen(t, "SHIM_SWEEP_CALLS", sweepCalls, []string{"mkdirat", "mount", "renameat", "unlinkat", "umount2", "clone"})
	killed := map[string]int{} // by each operation
	for _, name := range ops {
		for _, call := range calls {
			hit := true
			for n := 1; hit && n <= sweepLimit; n++ {
				t.Run(fmt.Sprintf("%s/%s/%d", name, call, n), func(t *testing.T) {
					hit = killAt(t, name, harness.Fault{Call: call, Err: harness.Killed, When: fmt.Sprint(n)})
				})
				if hit {
					killed[name]++
				}
			}
			if hit {
				t.Errorf("%s: the call %d of %s still kills", name, sweepLimit, call)
			}
		}
		if killed[name] == 0 {
			t.Errorf("nothing was killed in %s", name)
		}
	}
	t.Logf("kills: %v", killed)
}

// killAt has a call of an operation kill the process that makes it, and reports whether there was such a call.
func killAt(t *testing.T, name string, fault harness.Fault) (hit bool) {
	t.Helper()
	w := newWorld(newFake(t))
	faults := harness.Inject(t, fault)
	operation := func(name string) sweepOp {
		return sweepOps()[slices.IndexFunc(sweepOps(), func(o sweepOp) bool { return o.name == name })]
	}
	if name == deleteCommand {
		w.begin(operation("exec")) // with a container that runs
		w.Must(unix.Kill(w.shim.Pid, unix.SIGKILL), "kill the shim")
		w.Faults = faults
		_, err := w.DeleteCommand(w.bundle)
		w.Faults = nil
		if err != nil && !strings.Contains(err.Error(), "signal: killed") {
			t.Error(err)
		}
		removeDead(w)
		return err != nil
	}
	o := operation(name)
	w.begin(o)
	detach := faults.Into(w.target().Pid)
	err := o.do(w)
	died := err != nil && lost(err)
	if died {
		harness.Eventually(t, "death of the shim", func() error {
			if harness.Alive(w.target().Pid) {
				return fmt.Errorf("it lives after %w", err)
			}
			return nil
		})
	}
	detach()
	if died {
		removeDead(w)
		return true
	}
	w.Must(w.finish(), "finish")
	w.Must(w.bystanders(), "bystanders")
	w.end()
	return err != nil // a child of the shim was killed
}
