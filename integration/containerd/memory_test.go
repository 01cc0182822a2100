// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"sandbox.internal/shim/integration/harness"
)

func TestAnIdleShimGivesItsMemoryBack(t *testing.T) {
	harness.OursOnly(t, "an idle shim that gives memory back")
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	shim := e.shim("c1")
	rest := func() {
		t.Helper()
		busy, err := resident(shim)
		e.must(err, "look")
		harness.Eventually(t, "memory given back", func() error {
			// KiB. It is 3 to 10 MiB: where the page cache has the program in large folios, as the linker leaves it, the
			// kernel maps a folio as a whole.
			const least = 1 << 10
			switch kib, err := resident(shim); {
			case err != nil:
				return err
			case kib > busy-least:
				return fmt.Errorf("%d KiB are resident of %d, want %d less at least", kib, busy, least)
			}
			return nil
		})
	}
	rest()
	for range 100 { // as many as make the runtime collect garbage
		x := c.exec("e1", config{}, nil, "true")
		e.must(x.Start(e.ctx), "start e1")
		x.wantExit(0)
	}
	rest()
	c.kill()
}

func TestAProcessThatRunsTakesNoThreadOfTheShim(t *testing.T) {
	harness.OursOnly(t, "threads that do not grow with the processes")
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	before, err := harness.ReadUsage(e.shim("c1"))
	e.must(err, "look")
	const n = 30
	execs := make([]*process, n)
	for i := range execs {
		execs[i] = c.exec(fmt.Sprintf("e%d", i), config{}, nil, "sleep", "1000")
		e.must(execs[i].Start(e.ctx), "start exec")
	}
	after, err := harness.ReadUsage(e.shim("c1"))
	e.must(err, "look")
	if after.Threads > before.Threads+n/3 {
		t.Errorf("%d threads with %d execs, %d without, want no thread for each", after.Threads, n, before.Threads)
	}
	t.Logf("%d threads with %d execs, %d without", after.Threads, n, before.Threads)
	for _, x := range execs {
		x.kill()
	}
	c.kill()
}

// resident is how much memory a process has, with what it shares, in KiB.
func resident(pid int) (kib int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "Rss:"); ok {
			_, err := fmt.Sscan(value, &kib)
			return kib, err
		}
	}
	return 0, fmt.Errorf("no Rss of process %d", pid)
}
