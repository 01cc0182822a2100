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
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
)

const mib = 1 << 20

func TestUpdate_ReachesTheCgroup(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{opts: []oci.SpecOpts{oci.WithMemoryLimit(64 * mib)}}, "sleep", "1000")
	const whatever = "*"
	want := func(v1, v2, value1, value2 string) {
		t.Helper()
		got, err := harness.CgroupFile("/"+e.namespace+"/c1", v1, v2)
		if err != nil {
			t.Error(err)
		} else if got != value1 && got != value2 && value2 != whatever {
			t.Errorf("%s or %s = %q, want %q on v1 or %q on v2", v1, v2, got, value1, value2)
		}
	}
	want("memory.limit_in_bytes", "memory.max", "67108864", "67108864")
	limit, pids, quota, period, shares := int64(96*mib), int64(33), int64(50000), uint64(100000), uint64(512)
	e.must(c.Update(e.ctx, client.WithResources(&specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &limit},
		Pids:   &specs.LinuxPids{Limit: &pids},
		CPU:    &specs.LinuxCPU{Quota: &quota, Period: &period, Shares: &shares},
	})), "update")
	want("memory.limit_in_bytes", "memory.max", "100663296", "100663296")
	want("pids.max", "pids.max", "33", "33")
	want("cpu.cfs_quota_us", "cpu.max", "50000", "50000 100000")
	want("cpu.shares", "cpu.weight", "512", whatever) // shares become a weight by a formula that changed once
	c.kill()
}

func TestStats_CountWhatTheContainerUses(t *testing.T) { testStatistics(newEnv(t)) }

func testStatistics(e *env) {
	c := e.run("c1", config{opts: with(oci.WithMemoryLimit(64 * mib))}, "sh", "-c",
		"i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 1000 & echo ready; wait")
	c.out.WaitFor(e, "ready")
	f := c.figures()
	if f.cpu < time.Millisecond || f.memory < 4096 || f.memory > 64*mib || f.limit != 64*mib || f.pids != 2 {
		e.Errorf("statistics %+v, want a millisecond, memory within its limit of 64 MiB, the shell and sleep", f)
	}
	c.kill()
}

// metrics are a container's, as containerd's consumers decode them.
func (t *task) metrics() any {
	t.e.Helper()
	metric, err := t.Metrics(t.e.ctx)
	t.e.must(err, "metrics")
	m, err := typeurl.UnmarshalAny(metric.Data)
	t.e.must(err, "metrics")
	return m
}

// wantOOMKills compares how many processes the metrics say were killed for lack of memory: CRI takes an exit with 137
// for such a kill when there is one (internal/cri/server/events.go).
func (t *task) wantOOMKills(want uint64) {
	t.e.Helper()
	if got := t.figures().oomKills; got != want {
		t.e.Errorf("metrics say %d OOM kills, want %d", got, want)
	}
}

// The kill of a child is counted and told while the container goes on, that of init until Delete.
func TestStats_CountTheKillThatAnEventReported(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{opts: little}, "sh", "-c", glutton+" 2>/dev/null; echo child $?; exec "+glutton)
	c.out.WaitFor(t, "child 137")
	e.waitEvents("c1", "oom c1")
	if got := c.exit(); got != 137 {
		t.Errorf("exit status = %d, want 137", got)
	}
	c.wantOOMKills(2)
	c.delete()
	if harness.Runtime() == harness.Ours {
		e.wantEvents("c1", "create c1 | start c1 | oom c1 | oom c1 | exit c1 137 | delete c1")
	}
}

// little is memory enough for a shell and not for glutton.
var little = with(oci.WithMemoryLimit(24*mib), oci.WithMemorySwap(24*mib))

// glutton asks for more memory than little has, and uses it.
const glutton = "dd if=/dev/zero of=/dev/null bs=128M count=1"

// containerd#8180, containerd#8893: the event came after the exit, or not at all, when the container was killed soon
// after its start. A shim that does not look on purpose misses some.
func TestOOM_IsReportedBeforeTheExitOfItsContainer(t *testing.T) {
	newEnv(t).manyRunOutOfMemory(harness.Fewer(30), func(string) oci.SpecOpts { return oci.Compose() })
}

// systemd removes the scope, and the counter with it, as soon as the last process has ended: a shim that relies on that
// counter missed one in eight.
func TestSystemd_OOMIsReportedBeforeTheExitOfItsContainer(t *testing.T) {
	e := newSystemdEnv(t)
	e.manyRunOutOfMemory(30, e.scoped)
}

// manyRunOutOfMemory checks that an OOM is reported before the exit of each container.
func (e *env) manyRunOutOfMemory(rounds int, where func(id string) oci.SpecOpts) {
	e.Helper()
	e.manyToTheirEnds(rounds, 137, func(id string) []oci.SpecOpts {
		return append(with(oci.WithProcessArgs(strings.Fields(glutton)...), where(id)), little...)
	})
	for i := range rounds {
		id := fmt.Sprintf("c%d", i)
		e.waitEvents(id, "exit "+id+" 137")
		text := e.events.Text(id)
		before, _, found := strings.Cut(text, "exit "+id)
		if harness.Runtime() == harness.Ours && found && !strings.Contains(before, "oom "+id) {
			e.Errorf("events = %q, want oom %s before the exit", text, id)
		}
	}
}

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
		c.runExec("e1", "true")
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
		c.runExec("e1", "true")
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
