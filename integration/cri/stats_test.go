// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// stats returns what CRI counts of a pod.
func (e *env) stats(p *pod) *runtimeapi.PodSandboxStats {
	e.Helper()
	r, err := e.daemon.Runtime.PodSandboxStats(e.ctx, &runtimeapi.PodSandboxStatsRequest{PodSandboxId: p.ID})
	e.must(err, "stats of the pod")
	return r.GetStats()
}
