// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"slices"
	"testing"

	"github.com/opencontainers/runc/libcontainer/seccomp"
)

func TestFeatures_ThatClientsDecideBy(t *testing.T) {
	f := Features()
	// containerd internal/cri/server, service.go: the two things CRI looks at.
	if !*f.Linux.MountExtensions.IDMap.Enabled {
		t.Error("no idmapped mounts: CRI would refuse user namespaces")
	}
	if !slices.Contains(f.MountOptions, "rro") {
		t.Error("no recursively read-only mounts")
	}
	if *f.Linux.Cgroup.SystemdUser {
		t.Error("a user's systemd is claimed, which is never asked for cgroups")
	}
	if got := f.Annotations["org.opencontainers.runc.checkpoint.enabled"]; got != "true" {
		t.Errorf("annotation for checkpoints = %q, want true", got)
	}
}

func TestFeatures_OfSeccompAreThoseOfTheBuild(t *testing.T) {
	s := Features().Linux.Seccomp
	if *s.Enabled != seccomp.Enabled {
		t.Errorf("seccomp = %t, want %t", *s.Enabled, seccomp.Enabled)
	}
	if (len(s.Actions) > 0) != seccomp.Enabled || (SeccompVersion() != "") != seccomp.Enabled {
		t.Errorf("seccomp %t has %d actions and version %q", seccomp.Enabled, len(s.Actions), SeccompVersion())
	}
}
