// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"

	"sandbox.internal/shim/integration/harness"
)

func TestDeleteDoesNotWaitWhereNobodyHoldsTheOutput(t *testing.T) {
	e := newEnv(t)
	parent := e.run("c1", config{}, "sleep", "1000")
	var slowest time.Duration
	for i := range 10 {
		for _, terminal := range []bool{false, true} {
			x := parent.exec(fmt.Sprintf("x%d-%t", i, terminal), config{terminal: terminal}, nil, "echo", "hello")
			e.must(x.Start(e.ctx), "start")
			x.exit()
			began := time.Now()
			x.delete()
			slowest = max(slowest, time.Since(began))
		}
	}
	// Half of the grace that children which hold the output are given.
	if slowest > time.Second {
		t.Errorf("the slowest Delete took %v, want less than 1s", slowest)
	}
	parent.kill()
}

// The readers of all outputs share the time that Delete gives them, also those of execs that nobody deleted.
func TestManyReadersThatReadNothingDelayDeleteNoMoreThanOne(t *testing.T) {
	harness.OursOnly(t, "a Delete well below the 10 s that CRI waits")
	e := newEnv(t)
	c := e.logged("c1", e.deaf, nil, "yes")
	wantBlocked(t, c)
	created := c.Process.(client.Task)
	spec, err := created.Spec(e.ctx)
	e.must(err, "spec")
	for i := range 3 {
		p, err := created.Exec(e.ctx, fmt.Sprintf("x%d", i), spec.Process, e.deaf)
		e.must(err, "exec")
		x := &process{Process: p, e: e}
		e.must(p.Start(e.ctx), "start exec")
		wantBlocked(t, x)
		defer x.closeIO()
	}
	e.must(c.Kill(e.ctx, syscall.SIGKILL), "kill")
	if got := c.exit(); got != 137 {
		t.Errorf("exit status = %d, want 137", got)
	}
	began := time.Now()
	c.delete()
	if took := time.Since(began); took > 7*time.Second {
		t.Errorf("Delete took %v, want less than 7s", took)
	} else {
		t.Logf("Delete took %v", took)
	}
}
