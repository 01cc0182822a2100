// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"encoding/json"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// infoOf returns what the verbose status of a container has as JSON.
func infoOf[T any](c *container) T {
	c.pod.e.Helper()
	r, err := c.pod.e.daemon.Runtime.ContainerStatus(c.pod.e.ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.id, Verbose: true})
	c.pod.e.must(err, "verbose status of a container")
	var info T
	c.pod.e.must(json.Unmarshal([]byte(r.GetInfo()["info"]), &info), "decode the verbose status of a container")
	return info
}

// info is the part of a pod's verbose status that the tests look at.
type info struct {
	Pid int `json:"pid"`
}

// info returns what the verbose status of the pod has as JSON.
func (p *pod) info() info {
	p.e.Helper()
	r, err := p.e.daemon.Runtime.PodSandboxStatus(p.e.ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.ID, Verbose: true})
	p.e.must(err, "verbose status of the pod")
	var i info
	p.e.must(json.Unmarshal([]byte(r.GetInfo()["info"]), &i), "decode the verbose status of the pod")
	return i
}
