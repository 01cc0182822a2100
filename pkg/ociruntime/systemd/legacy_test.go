// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sandbox.internal/shim/pkg/cgroup"
)

func TestLegacyProperties_AreWhatTheFilesSay(t *testing.T) {
	for _, tc := range []struct {
		name  string
		files cgroup.Snapshot
		want  map[string]any
	}{
		{"nothing", nil, map[string]any{}},
		{
			"files without a property",
			cgroup.Snapshot{"/m/memory.memsw.limit_in_bytes": "4096", "/c/cpuset.cpus": ""},
			map[string]any{},
		},
		{
			"limits",
			cgroup.Snapshot{
				"/m/memory.limit_in_bytes": "67108864", "/p/pids.max": "20", "/c/cpu.shares": "512",
				"/c/cpu.cfs_quota_us": "20000", "/c/cpu.cfs_period_us": "50000", "/b/blkio.bfq.weight": "200",
			},
			map[string]any{
				"MemoryLimit": uint64(64 << 20), "TasksMax": uint64(20), "CPUShares": uint64(512), "BlockIOWeight": uint64(200),
				"CPUQuotaPerSecUSec": uint64(400_000), "CPUQuotaPeriodUSec": uint64(50_000),
			},
		},
		{
			"no limits",
			cgroup.Snapshot{
				"/m/memory.limit_in_bytes": "9223372036854771712", "/p/pids.max": "max",
				"/c/cpu.cfs_quota_us": "-1", "/c/cpu.cfs_period_us": "100000",
			},
			map[string]any{
				"MemoryLimit": uint64(math.MaxUint64), "TasksMax": uint64(math.MaxUint64),
				"CPUQuotaPerSecUSec": uint64(math.MaxUint64), "CPUQuotaPeriodUSec": uint64(100_000),
			},
		},
		{
			"a quota between percents",
			cgroup.Snapshot{"/c/cpu.cfs_quota_us": "12345", "/c/cpu.cfs_period_us": "100000"},
			map[string]any{"CPUQuotaPerSecUSec": uint64(130_000), "CPUQuotaPeriodUSec": uint64(100_000)},
		},
		{
			"a quota alone",
			cgroup.Snapshot{"/c/cpu.cfs_quota_us": "50000"},
			map[string]any{"CPUQuotaPerSecUSec": uint64(500_000)},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			all, err := legacyProperties(tc.files)
			must(t, err)
			got := map[string]any{}
			for _, p := range all {
				got[p.Name] = p.Value.Value()
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("properties of %v (-want +got):\n%s", tc.files, diff)
			}
		})
	}
	for file, text := range map[string]string{"pids.max": "many", "cpu.cfs_quota_us": "much"} {
		if all, err := legacyProperties(cgroup.Snapshot{"/x/" + file: text}); err == nil {
			t.Errorf("properties of %s %q = %v, want an error", file, text, all)
		}
	}
}
