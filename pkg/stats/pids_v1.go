// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import v1 "github.com/containerd/cgroups/v3/cgroup1/stats"

// pidsV1 lists the files of the pids controller. No limit is 0 in the v1 message.
func pidsV1(string) []source[*v1.Metrics] {
	pids := func(m *v1.Metrics) *v1.PidsStat {
		if m.Pids == nil {
			m.Pids = &v1.PidsStat{}
		}
		return m.Pids
	}
	return []source[*v1.Metrics]{
		single("pids.current", 0, func(m *v1.Metrics) *uint64 { return &pids(m).Current }),
		single("pids.max", 0, func(m *v1.Metrics) *uint64 { return &pids(m).Limit }),
	}
}
