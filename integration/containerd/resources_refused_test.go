// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
)

func withResources(change func(*specs.LinuxResources)) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		if s.Linux.Resources == nil {
			s.Linux.Resources = &specs.LinuxResources{}
		}
		change(s.Linux.Resources)
		return nil
	}
}

func TestResources_OutOfRangeAreRefused(t *testing.T) {
	harness.OursOnly(t, "that it names field, value and range")
	e := newEnv(t)
	c := e.run("c1", config{opts: with(oci.WithMemoryLimit(64 * mib))}, "sleep", "1000")
	for i, tt := range []struct {
		name string
		r    specs.LinuxResources
		word string
	}{
		{"period", specs.LinuxResources{CPU: &specs.LinuxCPU{Period: new(uint64(5))}}, "linux.resources.cpu.period 5: must be 0 (unset) or from 1000 to 1000000"},
		{"quota", specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: new(int64(999))}}, "linux.resources.cpu.quota 999: must be at least 1000 µs"},
		{"memory", specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64(-2))}}, "linux.resources.memory.limit -2: must be at least 0, or -1"},
		{"weight", specs.LinuxResources{BlockIO: &specs.LinuxBlockIO{Weight: new(uint16(5))}}, "linux.resources.blockIO.weight 5: must be 0 (unset) or from 10 to 1000"},
		{"CPUs", specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: "0,8000"}}, `linux.resources.cpu.cpus "0,8000": 8000 does not exist here`},
		{"a list of CPUs", specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: "3-"}}, `linux.resources.cpu.cpus "3-": must be numbers and ranges`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := e.tryCreate(fmt.Sprintf("refused-%d", i),
				config{opts: with(withResources(func(r *specs.LinuxResources) {
					devices := r.Devices
					*r = tt.r
					r.Devices = devices
				}))}, "true")
			wantError(t, err, errdefs.ErrInvalidArgument, tt.word)
			wantError(t, c.Update(e.ctx, client.WithResources(&tt.r)), errdefs.ErrInvalidArgument, tt.word)
		})
	}
	c.kill()
}

func TestUpdate_ThatFailsChangesNothing(t *testing.T) {
	harness.OursOnly(t, "that an update is all or nothing")
	e := newEnv(t)
	c := e.run("c1", config{opts: with(oci.WithMemoryLimit(64*mib), oci.WithPidsLimit(20))}, "sleep", "1000")
	// Major 240 is for local use (Linux, admin-guide/devices.txt).
	noDevice := specs.LinuxBlockIODevice{Major: 240, Minor: 77}
	r := &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: new(int64(96 * mib))},
		Pids:   &specs.LinuxPids{Limit: new(int64(33))},
		BlockIO: &specs.LinuxBlockIO{ThrottleReadBpsDevice: []specs.LinuxThrottleDevice{{
			LinuxBlockIODevice: noDevice,
			Rate:               mib,
		}}},
	}
	wantError(t, c.Update(e.ctx, client.WithResources(r)), errdefs.ErrInvalidArgument,
		"linux.resources.blockIO.throttleReadBpsDevice: ")
	for _, want := range []struct{ v1, v2, value string }{
		{"memory.limit_in_bytes", "memory.max", "67108864"},
		{"pids.max", "pids.max", "20"},
	} {
		if got, err := harness.CgroupFile("/"+e.namespace+"/c1", want.v1, want.v2); err != nil || got != want.value {
			t.Errorf("%s or %s = %q, %v, want %q", want.v1, want.v2, got, err, want.value)
		}
	}
	c.kill()
}
