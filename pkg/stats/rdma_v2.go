// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import v2 "github.com/containerd/cgroups/v3/cgroup2/stats"

func rdmaV2() []source[*v2.Metrics] {
	rdma := func(m *v2.Metrics) *v2.RdmaStat {
		if m.Rdma == nil {
			m.Rdma = &v2.RdmaStat{}
		}
		return m.Rdma
	}
	return []source[*v2.Metrics]{
		{name: "rdma.current", parse: func(text []byte, m *v2.Metrics) (err error) {
			rdma(m).Current, err = parseRDMA(text, rdmaEntryV2)
			return err
		}},
		{name: "rdma.max", parse: func(text []byte, m *v2.Metrics) (err error) {
			rdma(m).Limit, err = parseRDMA(text, rdmaEntryV2)
			return err
		}},
	}
}

func rdmaEntryV2(l rdmaLine) *v2.RdmaEntry {
	return &v2.RdmaEntry{Device: l.device, HcaHandles: l.handles, HcaObjects: l.objects}
}
