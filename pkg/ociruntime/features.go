// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"os/exec"

	"github.com/opencontainers/cgroups/systemd"
	"github.com/opencontainers/runc/libcontainer/capabilities"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/seccomp"
	"github.com/opencontainers/runc/libcontainer/specconv"
	runcfeatures "github.com/opencontainers/runc/types/features"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"

	"sandbox.internal/shim/pkg/launcher/native"
	"sandbox.internal/shim/pkg/ociruntime/criu"
)

// Features describes what this build supports of the OCI runtime specification (features.md). Only the flags of seccomp
// are those of this kernel. CRI uses it to decide about user namespaces and recursively read-only mounts.
func Features() *features.Features {
	yes, no := true, false
	f := &features.Features{
		OCIVersionMin: "1.0.0",
		OCIVersionMax: specs.Version,
		Hooks:         configs.KnownHookNames(),
		MountOptions:  specconv.KnownMountOptions(),
		Annotations:   map[string]string{runcfeatures.AnnotationRuncCheckpointEnabled: "true"},
		Linux: &features.Linux{
			Namespaces:   specconv.KnownNamespaces(),
			Capabilities: capabilities.KnownCapabilities(),
			// No systemd of a user: pkg/ociruntime/systemd asks only that of the machine.
			Cgroup:          &features.Cgroup{V1: &yes, V2: &yes, Systemd: &yes, SystemdUser: &no, Rdma: &yes},
			Seccomp:         &features.Seccomp{Enabled: &no},
			Apparmor:        &features.Apparmor{Enabled: &yes},
			Selinux:         &features.Selinux{Enabled: &yes},
			IntelRdt:        &features.IntelRdt{Enabled: &yes, Schemata: &yes, Monitoring: &yes},
			MountExtensions: &features.MountExtensions{IDMap: &features.IDMap{Enabled: &yes}},
			NetDevices:      &features.NetDevices{Enabled: &yes},
			MemoryPolicy: &features.MemoryPolicy{
				Modes: specconv.KnownMemoryPolicyModes(), Flags: specconv.KnownMemoryPolicyFlags(),
			},
		},
		PotentiallyUnsafeConfigAnnotations: []string{"bundle", "org.systemd.property.", "org.criu.config"},
	}
	if seccomp.Enabled {
		f.Linux.Seccomp = &features.Seccomp{
			Enabled: &yes, Actions: seccomp.KnownActions(), Operators: seccomp.KnownOperators(), Archs: seccomp.KnownArchs(),
			KnownFlags: seccomp.KnownFlags(), SupportedFlags: seccomp.SupportedFlags(),
		}
		f.Annotations[runcfeatures.AnnotationLibseccompVersion] = SeccompVersion()
	}
	return f
}

// HasLauncher reports whether inits and execs can be started without libcontainer.
func HasLauncher() bool {
	_, err := native.New("containerd-shim-sandbox-v1", "launcher")
	return err == nil
}

// CRIUPath returns the criu that checkpoint and restore would run, or empty.
func CRIUPath() string {
	path, _ := exec.LookPath(criu.Program) // not found is the answer
	return path
}

// Drivers returns the cgroup drivers that work on this machine.
func Drivers() []string {
	if systemd.IsRunningSystemd() {
		return []string{"cgroupfs", "systemd"}
	}
	return []string{"cgroupfs"}
}

// SeccompVersion returns the version of the linked libseccomp, or "" in a build without it.
func SeccompVersion() string {
	if !seccomp.Enabled {
		return ""
	}
	major, minor, patch := seccomp.Version()
	return fmt.Sprintf("%d.%d.%d", major, minor, patch)
}
