// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"fmt"

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
	execs   [maxExecs]execPlace
}

type execPlace struct {
	pid     int // 0: not started
	streams *streams
}

// closeStreams ends the streams of all execs, of a container that is gone.
func (p *place) closeStreams() {
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

// argv is the command line of a program.
func (p program) argv(hostPID bool) []string {
	switch p {
	case forever:
		if hostPID { // a process that the kernel does not kill with init
			return []string{"sh", "-c", "sleep 1000000 & exec sleep 1000000"}
		}
		return []string{"sleep", "1000000"}
	case succeeds:
		return []string{"true"}
	case fails:
		return []string{"sh", "-c", "exit 7"}
	case says:
		return []string{"echo", "hello"}
	case copies:
		return []string{"cat"}
	case terminal:
		return []string{"sh", "-c", "test -t 0 && test -t 1 && exit 3"}
	case hungry:
		// A signal, or a freeze, cuts a read short.
		return []string{"dd", "if=/dev/zero", "of=/dev/null", "bs=128M", "count=1", "iflag=fullblock"}
	}
	return nil
}

// group is the annotation by which containers share a shim, and groupName what it says in the places that do.
const (
	group     = "io.containerd.runc.v2.group"
	groupName = "together"
)

// mib is a mebibyte.
const mib = 1 << 20

// options are those of the container that a step creates.
func (p *place) options(s Step) []oci.SpecOpts {
	opts := []oci.SpecOpts{oci.WithProcessArgs(s.Program.argv(s.HostPID)...)}
	if s.HostPID {
		opts = append(opts, oci.WithHostNamespace(specs.PIDNamespace))
	}
	if s.Plain {
		opts = append(opts, harness.ExecByLibcontainer)
	}
	if s.Program == hungry {
		opts = append(opts, oci.WithMemoryLimit(24*mib), oci.WithMemorySwap(24*mib))
	}
	if p.number >= firstGrouped {
		opts = append(opts, oci.WithAnnotations(map[string]string{group: groupName}))
	}
	return opts
}

// record has containerd know a container, of which there is no task yet. It returns the container's process.
func (e *Env) record(ctx context.Context, id string, opts ...oci.SpecOpts) (*specs.Process, error) {
	var process specs.Process
	keep := func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		process = *s.Process
		return nil
	}
	opts = append([]oci.SpecOpts{oci.WithEnv([]string{"PATH=/bin"})}, opts...)
	_, err := e.client.NewContainer(ctx, id, client.WithRuntime(e.daemon.Env.Runtime, nil),
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
