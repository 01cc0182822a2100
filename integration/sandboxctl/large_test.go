// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandboxctl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"testing"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/integration/harness"
)

// A pod may have a megabyte of environment and a quarter of annotations, and containerd sends no answer of more than 16.
// No tenant can make the others invisible by that, or keep a node from being cleaned.
func TestLarge_ContainersAndPodsAreListed(t *testing.T) {
	p := newPatient(t, nil)
	c, err := p.Client()
	p.must(err)
	defer c.Close()
	ctx := namespaces.WithNamespace(t.Context(), p.namespace)
	spec := &anypb.Any{
		TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/Spec",
		Value:   fmt.Appendf(nil, `{"process": {"env": ["A=%s"]}}`, bytes.Repeat([]byte("a"), 1440<<10)),
	}
	const many = 12
	for i := range many {
		_, err := c.ContainerService().Create(ctx, containers.Container{
			ID: fmt.Sprintf("large%d", i), Runtime: containers.RuntimeInfo{Name: harness.Ours}, Spec: spec,
		})
		p.must(err)
	}
	annotations := &anypb.Any{TypeUrl: "t", Value: bytes.Repeat([]byte(" "), 250<<10)}
	const pods = 80
	for i := range pods {
		id := fmt.Sprintf("%x%x", i%16, i) // as evenly as ids of CRI
		_, err := c.SandboxStore().Create(ctx, sandbox.Sandbox{
			ID: id, Runtime: sandbox.RuntimeOpts{Name: harness.Ours}, Sandboxer: "podsandbox",
			Extensions: map[string]typeurl.Any{"metadata": annotations},
		})
		p.must(err)
		defer func() { p.must(c.SandboxStore().Delete(ctx, id)) }()
	}
	var s struct {
		Pods []pod
	}
	cmd := exec.CommandContext(t.Context(), binary, "--address", p.Address, "--state", p.State, "--namespace", p.namespace,
		"--timeout", "1m", "ps", "-o", "json") // a busy machine takes seconds for it
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &said)
	}
	p.must(json.Unmarshal(out, &s))
	var found, sandboxes int
	for _, one := range s.Pods {
		found += len(one.Containers)
		if one.Sandbox {
			sandboxes++
		}
	}
	if found != many || sandboxes != pods {
		t.Errorf("ps shows %d containers and %d sandboxes, want %d and %d", found, sandboxes, many, pods)
	}
	r := p.examine(-1)
	for _, check := range []string{"leftover-states", "leftover-mounts", "leftover-shims"} {
		p.want(r, check, "ok", "none")
	}
}
