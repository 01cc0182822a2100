// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import v1 "github.com/containerd/cgroups/v3/cgroup1/stats"

func rdmaV1(string) []source[*v1.Metrics] {
	rdma := func(m *v1.Metrics) *v1.RdmaStat {
		if m.Rdma == nil {
			m.Rdma = &v1.RdmaStat{}
		}
		return m.Rdma
	}
	return []source[*v1.Metrics]{
		{name: "rdma.current", parse: func(text []byte, m *v1.Metrics) (err error) {
			rdma(m).Current, err = parseRDMA(text, rdmaEntryV1)
			return err
		}},
		{name: "rdma.max", parse: func(text []byte, m *v1.Metrics) (err error) {
			rdma(m).Limit, err = parseRDMA(text, rdmaEntryV1)
			return err
		}},
	}
}

func rdmaEntryV1(l rdmaLine) *v1.RdmaEntry {
	return &v1.RdmaEntry{Device: l.device, HcaHandles: l.handles, HcaObjects: l.objects}
}
