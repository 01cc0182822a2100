// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
)

// place is where the worker has one container at a time. Two operations at once lock Env.mu for its fields.
type place struct {
	number  int
	id      string         // of the container, also after its end
	process *specs.Process // what an exec begins with
	pid     int
	streams *streams
	execs   [maxExecs]execPlace
}

type execPlace struct {
	pid     int // 0: not started
	streams *streams
}

// streamsOf are those of init or of an exec; nil for none.
func (e *Env) streamsOf(p *place, exec int) *streams {
	e.mu.Lock()
	defer e.mu.Unlock()
	if exec == noExec {
		return p.streams
	}
	return p.execs[exec].streams
}

// pidOf is that of init or of an exec; 0 if nobody knows it.
func (e *Env) pidOf(p *place, exec int) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if exec == noExec {
		return p.pid
	}
	return p.execs[exec].pid
}

// closeStreams ends the streams of init and all execs, of a container that is gone.
func (p *place) closeStreams() {
	p.streams.close()
	p.streams = nil
	for i := range p.execs {
		p.execs[i].streams.close()
		p.execs[i] = execPlace{}
	}
}

// execID is the id of an exec. It is used again after a delete.
func execID(exec int) string {
	if exec == noExec {
		return ""
	}
	return fmt.Sprintf("x%d", exec)
}

// group is the annotation by which containers share a shim, and groupName what it says in the places that do. With
// harness.PodsPerShim they share one by that option.
const (
	group     = "io.containerd.runc.v2.group"
	groupName = "together"
)

// options are those of the container that a step creates.
func (p *place) options(s Step) []oci.SpecOpts {
	opts := []oci.SpecOpts{oci.WithProcessArgs(s.Program.argv(s.HostPID)...)}
	if s.HostPID {
		opts = append(opts, oci.WithHostNamespace(specs.PIDNamespace))
	}
	if s.Plain {
		opts = append(opts, harness.ExecByLibcontainer)
	}
	if s.Program == terminal {
		opts = append(opts, oci.WithTTY)
	}
	if s.Idle {
		opts = append(opts, oci.WithAnnotations(map[string]string{"io.containerd.sandbox.v1/idle": "after=1s"}))
	}
	b := behaviours[s.Program]
	if b.memory > 0 {
		opts = append(opts, oci.WithMemoryLimit(b.memory), oci.WithMemorySwap(int64(b.memory)))
	}
	if b.pids > 0 {
		opts = append(opts, oci.WithPidsLimit(b.pids))
	}
	if p.number >= firstGrouped && harness.PodsPerShim() == "" {
		opts = append(opts, oci.WithAnnotations(map[string]string{group: groupName}))
	}
	return opts
}

// record has containerd know a container, of which there is no task yet; pod is "" for one in none. It returns the
// container's process.
func (e *Env) record(ctx context.Context, id, pod string, opts ...oci.SpecOpts) (*specs.Process, error) {
	var process specs.Process
	keep := func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		process = *s.Process
		return nil
	}
	opts = append([]oci.SpecOpts{oci.WithEnv([]string{"PATH=/bin"})}, opts...)
	var options any
	if text := harness.PodsPerShim(); text != "" && grouped(id) {
		options = &runtimeoptions.Options{TypeUrl: "sandbox", ConfigBody: []byte(text)}
	}
	_, err := e.client.NewContainer(ctx, id, client.WithRuntime(e.daemon.Env.Runtime, options), client.WithSandbox(pod),
		client.WithNewSpec(append(opts, keep)...))
	return &process, err
}

// forgetRecord undoes record. There may be none.
func (e *Env) forgetRecord(ctx context.Context, id string) error {
	err := e.client.ContainerService().Delete(ctx, id)
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}
