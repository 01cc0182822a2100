// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset

import (
	"testing"

	"github.com/containerd/cgroups/v3"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
)

func TestHook_DoesNotFollowWithACPUSetOfItsOwn(t *testing.T) {
	cpu := func(c specs.LinuxCPU) *specs.LinuxResources { return &specs.LinuxResources{CPU: &c} }
	unified := func(file, list string) *specs.LinuxResources {
		return &specs.LinuxResources{Unified: map[string]string{file: list}}
	}
	for _, tc := range []struct {
		name      string
		mems      bool // memory nodes are copied
		resources *specs.LinuxResources
		own       bool
	}{
		{"no resources", true, nil, false},
		{"other resources", true, cpu(specs.LinuxCPU{Shares: new(uint64(2))}), false},
		{"CPUs", true, cpu(specs.LinuxCPU{Cpus: "1"}), true},
		{"CPUs, unified", true, unified("cpuset.cpus", "1"), true},
		{"memory nodes", true, cpu(specs.LinuxCPU{Mems: "0"}), true},
		{"memory nodes, unified", true, unified("cpuset.mems", "0"), true},
		{"memory nodes, which are not copied", false, cpu(specs.LinuxCPU{Mems: "0"}), false},
	} {
		h := NewHook(nil, cgroups.Unified, settings.Value{Text: "/all"}, nil, tc.mems)
		spec := &specs.Spec{Linux: &specs.Linux{Resources: tc.resources}}
		if err := h.Prepare(t.Context(), &process.Config{ID: "c1", Spec: spec}); err != nil || h.pinned != tc.own {
			t.Errorf("%s: has its own = %t, %v, want %t", tc.name, h.pinned, err, tc.own)
		}
	}
}
