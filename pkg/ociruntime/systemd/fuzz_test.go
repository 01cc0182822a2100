// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups"

	"sandbox.internal/shim/pkg/cgroup"
)

func FuzzName(f *testing.F) {
	for _, path := range []string{
		"a-b.slice:prefix:name", "::", "system.slice::a@b", "../x.slice:a:b", ":a:b.slice", "/a/b", "-.slice:c:d",
	} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		if err := CheckPath(path); err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("CheckPath(%q) = %v, want an invalid argument", path, err)
			}
			return
		}
		if path == "" {
			return
		}
		parts := strings.Split(path, ":")
		c := &cgroups.Cgroup{Parent: parts[0], ScopePrefix: parts[1], Name: parts[2]}
		if err := checkName(path, c); err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("checkName(%q) = %v, want an invalid argument", path, err)
			}
			return
		}
		// What becomes part of a path in the cgroup file system is one element of it.
		for _, name := range []string{c.Parent, unitName(c)} {
			if strings.ContainsAny(name, "/\x00\n") || name == "." || name == ".." || len(name) > unitLimit {
				t.Errorf("checkName(%q) accepts %q", path, name)
			}
		}
	})
}

func FuzzLegacyProperties(f *testing.F) {
	f.Add("100000", "-1", "9223372036854771712", "max")
	f.Add("0", "9223372036854775807", "x", "5")
	f.Add("1", "50000", "", "")
	f.Fuzz(func(t *testing.T, period, quota, limit, pids string) {
		all, err := legacyProperties(cgroup.Snapshot{
			"/c/cpu.cfs_period_us": period, "/c/cpu.cfs_quota_us": quota,
			"/c/memory.limit_in_bytes": limit, "/c/pids.max": pids,
		})
		if err != nil {
			return
		}
		for _, p := range all {
			n, ok := p.Value.Value().(uint64)
			if !ok {
				t.Errorf("%s is %v, want a number", p.Name, p.Value)
			}
			// A part of a second for each CPU that there can be, and none without a quota.
			q, err := strconv.ParseInt(quota, 10, 64)
			if p.Name == "CPUQuotaPerSecUSec" && (err != nil || (q < 0) != (n == math.MaxUint64)) {
				t.Errorf("quota %q of %q is %s %d", quota, period, p.Name, n)
			}
			if p.Name == "CPUQuotaPerSecUSec" && q > 0 && n == 0 {
				t.Errorf("quota %q of %q is no CPU at all", quota, period)
			}
		}
	})
}
