// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	cgroup1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	cgroup2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	task3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/typeurl/v2"

	"sandbox.internal/shim/integration/harness"
)

// A container without a cgroup has the statistics of its processes, those of execs and in sessions of their own included.
func TestRootless_StatisticsAreThoseOfTheProcesses(t *testing.T) {
	harness.OursOnly(t, "statistics without a cgroup")
	f := rootless(t)
	b := rootlessBundle(f, "c1", nil, "sh", "-c", "(setsid sleep 1000 &); "+ // the time of a child that has ended counts
		"sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; (sleep 1000; true) & sleep 1000")
	s := rootlessShim(f, b)
	s.Run(b)
	s.RunExec("c1", "e1", "sleep", "1000")
	const processes = 5 // init, its child with one, the daemon, the exec; one less before the loop has ended
	pids := func() (pids []uint32) {
		r, err := s.Pids(f.Ctx, &task3.PidsRequest{ID: "c1"})
		f.Must(err, "pids")
		for _, p := range r.GetProcesses() {
			pids = append(pids, p.GetPid())
		}
		return pids
	}
	harness.Eventually(t, "the container has worked", func() error {
		if n := len(pids()); n != processes {
			return fmt.Errorf("it has %d processes, want %d", n, processes)
		}
		return nil
	})
	r, err := s.Stats(f.Ctx, &task3.StatsRequest{ID: "c1"})
	f.Must(err, "stats")
	m, err := typeurl.UnmarshalAny(r.GetStats())
	f.Must(err, "decode the metrics")
	var cpu time.Duration
	var number, memory, want uint64
	switch m := m.(type) {
	case *cgroup1.Metrics:
		cpu, number, memory = time.Duration(m.GetCPU().GetUsage().GetTotal()), m.GetPids().GetCurrent(), m.GetMemory().GetUsage().GetUsage()
	case *cgroup2.Metrics:
		cpu, number, memory = time.Duration(m.GetCPU().GetUsageUsec())*time.Microsecond, m.GetPids().GetCurrent(), m.GetMemory().GetUsage()
	}
	for _, pid := range pids() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		f.Must(err, "memory of a process")
		_, pss, _ := strings.Cut(string(text), "\nPss:")
		var kib uint64
		_, err = fmt.Sscan(pss, &kib)
		f.Must(err, "memory of a process")
		want += kib << 10
	}
	// A loop of this length takes longer on every machine, and half a minute on none.
	if number != processes || cpu < 30*time.Millisecond || cpu > 30*time.Second {
		t.Errorf("%d processes, CPU time %v, want %d and that of the loop", number, cpu, processes)
	}
	if memory == 0 || memory > want+want/10 || memory < want-want/10 {
		t.Errorf("memory %d, want %d", memory, want)
	}
	if log := s.Log(); strings.Count(log, "no cgroup: statistics are those of the processes that are alive") != 1 {
		t.Errorf("the log does not say where the statistics come from: %s", log)
	}
	s.KillAndDelete(b)
	f.WantEvents("c1", "create c1 | start c1 | exec-added e1 | exec-start e1 | exit e1 137 | exit c1 137 | delete c1")
	endRootless(f, s, "c1")
}
