// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandboxctl

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/integration/harness"
)

// A pod may have a megabyte of environment and a quarter of annotations, and containerd sends no answer of more than 16.
// No tenant can make the others invisible by that, or keep a node from being cleaned.
func TestLarge_ContainersAndPodsAreListed(t *testing.T) {
	e := newPatient(t, nil)
	c, ctx := e.client, e.ctx
	spec := &anypb.Any{
		TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/Spec",
		Value:   fmt.Appendf(nil, `{"process": {"env": ["A=%s"]}}`, bytes.Repeat([]byte("a"), 1440<<10)),
	}
	const many = 12
	for i := range many {
		id := fmt.Sprintf("large%d", i)
		_, err := c.ContainerService().Create(ctx, containers.Container{
			ID: id, Runtime: containers.RuntimeInfo{Name: harness.Ours}, Spec: spec,
		})
		e.must(err)
		defer func() { e.must(c.ContainerService().Delete(ctx, id)) }()
	}
	annotations := &anypb.Any{TypeUrl: "t", Value: bytes.Repeat([]byte(" "), 250<<10)}
	const sandboxesMade = 80
	for i := range sandboxesMade {
		id := fmt.Sprintf("%x%x", i%16, i) // as evenly as ids of CRI
		_, err := c.SandboxStore().Create(ctx, sandbox.Sandbox{
			ID: id, Runtime: sandbox.RuntimeOpts{Name: harness.Ours}, Sandboxer: "podsandbox",
			Extensions: map[string]typeurl.Any{"metadata": annotations},
		})
		e.must(err)
		defer func() { e.must(c.SandboxStore().Delete(ctx, id)) }()
	}
	pods, _ := e.ps("--timeout", "1m") // a busy machine takes seconds for it
	var found, sandboxes int
	for _, one := range pods {
		found += len(one.Containers)
		if one.Sandbox {
			sandboxes++
		}
	}
	if found != many || sandboxes != sandboxesMade {
		t.Errorf("ps shows %d containers and %d sandboxes, want %d and %d", found, sandboxes, many, sandboxesMade)
	}
	r := e.examine(-1)
	for _, check := range []string{"leftover-states", "leftover-mounts", "leftover-shims"} {
		e.want(r, check, "ok", "none")
	}
}
