// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"math"

	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
)

func pidsV2() []source[*v2.Metrics] {
	pids := func(m *v2.Metrics) *v2.PidsStat {
		if m.Pids == nil {
			m.Pids = &v2.PidsStat{}
		}
		return m.Pids
	}
	return []source[*v2.Metrics]{
		single("pids.current", math.MaxUint64, func(m *v2.Metrics) *uint64 { return &pids(m).Current }),
		single("pids.max", math.MaxUint64, func(m *v2.Metrics) *uint64 { return &pids(m).Limit }),
	}
}
