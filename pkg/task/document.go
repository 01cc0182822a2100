// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"encoding/json"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// document is a configuration as config.json has it. encoding/json makes itself ready for each type that a type has below it, be it there or
// not, which for [specs.Spec] is 230 kB in each shim, and 0.4 ms. So what has many types below it and is seldom there has a place
// of its own, in front of that of the specification's type, and what is for other platforms is skipped.
type document struct {
	specs.Spec
	Hooks   seldom[*specs.Hooks] `json:"hooks"`
	Linux   *linuxDocument       `json:"linux"`
	FreeBSD skipped              `json:"freebsd"`
	Solaris skipped              `json:"solaris"`
	VM      skipped              `json:"vm"`
	Windows skipped              `json:"windows"`
	ZOS     skipped              `json:"zos"`
}

type linuxDocument struct {
	specs.Linux
	Resources *resourcesDocument           `json:"resources"`
	Seccomp   seldom[*specs.LinuxSeccomp]  `json:"seccomp"`
	IntelRdt  seldom[*specs.LinuxIntelRdt] `json:"intelRdt"`
}

type resourcesDocument struct {
	specs.LinuxResources
	Memory  seldom[*specs.LinuxMemory]  `json:"memory"`
	CPU     seldom[*specs.LinuxCPU]     `json:"cpu"`
	BlockIO seldom[*specs.LinuxBlockIO] `json:"blockIO"`
	Network seldom[*specs.LinuxNetwork] `json:"network"`
}

// seldom is a T that encoding/json looks at once there is one.
type seldom[T any] struct{ value T }

// UnmarshalJSON is called for what is there, null included.
func (s *seldom[T]) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &s.value) }

// skipped is an object that nobody reads.
type skipped struct{}

// spec puts what the document says in the places of the specification.
func (d *document) spec() *specs.Spec {
	d.Spec.Hooks = d.Hooks.value
	l := d.Linux
	if l == nil {
		return &d.Spec
	}
	d.Spec.Linux = &l.Linux
	l.Linux.Seccomp, l.Linux.IntelRdt = l.Seccomp.value, l.IntelRdt.value
	if r := l.Resources; r != nil {
		l.Linux.Resources = &r.LinuxResources
		r.LinuxResources.Memory, r.LinuxResources.CPU = r.Memory.value, r.CPU.value
		r.LinuxResources.BlockIO, r.LinuxResources.Network = r.BlockIO.value, r.Network.value
	}
	return &d.Spec
}
