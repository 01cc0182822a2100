// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"testing"

	"sandbox.internal/shim/integration/harness"
)

func TestShim_WithIdleContainersDoesNotWakeUp(t *testing.T) {
	harness.OursOnly(t, "an idle shim that does not wake up")
	e := newEnv(t)
	_, pipe := typed(e)
	_, terminal := typed(e)
	// No run is under way, so nothing looks at its limits.
	limits := execLimits("wall-time=20s,cpu-time=10s,memory=64Mi,pids=20,output=1Ki")
	a := e.create("a", config{opts: with(inOneShim, limits), stdin: pipe}, "cat")
	b := e.create("b", config{opts: with(inOneShim), stdin: terminal, terminal: true}, "cat")
	for _, c := range []*task{a, b} {
		e.must(c.process.Start(e.ctx), "start")
	}
	e.asExec(a, "e1", nil, "sleep 0.1; echo ended").wantExit(0)
	shims := harness.Shims(e.namespace, "")
	if len(shims) != 1 {
		t.Fatalf("shims = %v, want one for both containers", shims)
	}
	harness.CheckAsleep(t, shims[0].Pid)
	a.kill()
	b.kill()
}
