// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"encoding/json"
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// infoOf returns what the verbose status of a container has as JSON.
func infoOf[T any](c *container) T {
	c.pod.e.Helper()
	r, err := c.pod.e.daemon.Runtime.ContainerStatus(c.pod.e.ctx,
		&runtimeapi.ContainerStatusRequest{ContainerId: c.id, Verbose: true})
	c.pod.e.must(err, "verbose status of a container")
	var info T
	c.pod.e.must(json.Unmarshal([]byte(r.GetInfo()["info"]), &info), "decode the verbose status of a container")
	return info
}

// info is the part of a pod's verbose status that the tests look at.
type info struct {
	Pid       int            `json:"pid"`
	Overhead  *infoResources `json:"overhead"`
	Resources *infoResources `json:"resources"`
}

type infoResources struct {
	Linux *runtimeapi.LinuxContainerResources `json:"linux"`
}

// info returns what the verbose status of the pod has as JSON.
func (p *pod) info() info {
	p.e.Helper()
	r, err := p.e.daemon.Runtime.PodSandboxStatus(p.e.ctx,
		&runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.ID, Verbose: true})
	p.e.must(err, "verbose status of the pod")
	var i info
	p.e.must(json.Unmarshal([]byte(r.GetInfo()["info"]), &i), "decode the verbose status of the pod")
	return i
}

// A kubelet that changes the size of a pod tells of it once.
func TestUpdate_OfAPodStaysWhenContainerdStartsAgain(t *testing.T) {
	eachWayAlone(t, func(e *env) {
		p := e.pod("p")
		check := func(when string, overhead, resources *runtimeapi.LinuxContainerResources) {
			e.Helper()
			got := p.info()
			if got.Overhead == nil || !proto.Equal(got.Overhead.Linux, overhead) || got.Resources == nil ||
				!proto.Equal(got.Resources.Linux, resources) {
				e.Errorf("%s: overhead and resources = %v, %v, want %v, %v", when, got.Overhead, got.Resources,
					overhead, resources)
			}
		}
		for _, quota := range []int64{20000, 30000} { // the last one counts
			overhead := &runtimeapi.LinuxContainerResources{CpuShares: 7, MemoryLimitInBytes: 1 << 20}
			resources := &runtimeapi.LinuxContainerResources{
				CpuPeriod: 100000, CpuQuota: quota, MemoryLimitInBytes: 64 << 20,
				Unified:        map[string]string{"memory.high": "1"},
				HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 1}},
			}
			_, err := e.daemon.Runtime.UpdatePodSandboxResources(e.ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{
				PodSandboxId: p.ID, Overhead: overhead, Resources: resources,
			})
			e.must(err, "update")
			check("after the update", overhead, resources)
			e.must(e.daemon.Stop(), "stop containerd")
			e.must(e.daemon.Start(e.ctx), "start containerd again")
			check("after containerd started again", overhead, resources)
		}
		p.remove()
	})
}
