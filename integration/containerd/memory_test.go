// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/shim/integration/harness"
)

func TestMemory_IdleShimGivesItBack(t *testing.T) {
	harness.OursOnly(t, "an idle shim that gives memory back")
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	shim := e.shim("c1")
	rest := func() {
		t.Helper()
		busy := memory(e, shim, "Rss")
		harness.Eventually(t, "memory given back", func() error {
			// KiB. It is 3 to 10 MiB: where the page cache has the program in large folios, as the linker leaves it,
			// the kernel maps a folio as a whole.
			const least = 1 << 10
			if kib := memory(e, shim, "Rss"); kib > busy-least {
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

// One touch of a huge page takes 2 MiB. The heap is the first of the large mappings above the program, which lies below
// 4 GiB.
func TestMemory_HeapHasNoHugePages(t *testing.T) {
	harness.OursOnly(t, "a heap without huge pages")
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", e.shim("c1")))
	e.must(err, "memory")
	var mapping string
	for line := range strings.Lines(string(text)) {
		var start, end uint64
		var rights string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &start, &end, &rights); n == 3 {
			if rights == "rw-p" && start >= 1<<32 && end-start >= 2<<20 {
				mapping = line
			}
		}
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && mapping != "" {
			if !slices.Contains(strings.Fields(flags), "nh") {
				t.Errorf("huge pages are allowed (no nh in %q) in %s", flags, mapping)
			}
			break
		}
	}
	if mapping == "" {
		t.Errorf("no mapping of 2 MiB in:\n%s", text)
	}
	c.kill()
}

func TestShim_RunningProcessTakesNoThread(t *testing.T) {
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

// A heap may grow up to where garbage is collected, 4 MiB and its garbage. What each exec left would show in a long
// run, which SHIM_TEST_EXECS asks for.
func TestMemory_ExecsLeaveNoneBehind(t *testing.T) {
	harness.OursOnly(t, "memory that does not grow with the execs")
	const most = 8 << 10 // KiB
	e := newEnv(t)
	n := setting(t, "SHIM_TEST_EXECS", 300/harness.Slowness())
	if n > 10_000 {
		e.ctx = context.WithoutCancel(e.ctx) // go test's own bound is the one
	}
	c := e.run("c1", config{}, "sleep", "86400")
	shim := e.shim("c1")
	seen := []int{memory(e, shim, "Anonymous")}
	for i := range n {
		x := c.exec("e1", config{}, nil, "true")
		e.must(x.Start(e.ctx), "start e1")
		x.wantExit(0)
		if (i+1)%max(n/10, 1) == 0 {
			seen = append(seen, memory(e, shim, "Anonymous"))
		}
	}
	t.Logf("KiB of memory that the shim wrote, from before %d execs to after them: %d", n, seen)
	half, last := seen[len(seen)/2], seen[len(seen)-1]
	if last > seen[0]+most || n >= 10_000 && last > half+half/10 {
		t.Errorf("the shim has %d KiB after %d execs, %d after half of them, and %d before", last, n, half, seen[0])
	}
	c.kill()
}

// memory is a line of smaps_rollup (proc_pid_smaps(5)), in KiB.
func memory(e *env, pid int, name string) (kib int) {
	e.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	e.must(err, "memory")
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			_, err := fmt.Sscan(value, &kib)
			e.must(err, "memory")
			return kib
		}
	}
	e.Fatalf("no %s in the memory of process %d", name, pid)
	return 0
}
