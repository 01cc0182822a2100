// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

// It is killed with the process whose namespace it is in.
func TestStopContainers_StopsMembersOfAPIDNamespaceFirst(t *testing.T) {
	in := func(path string, pairs ...string) *specs.Spec {
		spec := annotated(pairs...)
		spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.PIDNamespace, Path: path}}
		return spec
	}
	pause := newBundle(t, in("", "stop-signal", "QUIT"))
	member := newBundle(t, in("/proc/4321/ns/pid", "stop-timeout", "5s"))
	synctest.Test(t, func(t *testing.T) {
		s := newManager(t, &fakeEngine{deaf: func(sig syscall.Signal) bool { return sig == unix.SIGTERM }})
		began := time.Now()
		var inits []*process.Process
		for id, bundle := range map[string]string{"pause": pause, "member": member} {
			c, err := s.Create(t.Context(), CreateRequest{ID: id, Bundle: bundle})
			must(t, err)
			must(t, c.Init().Start(t.Context()))
			inits = append(inits, c.Init())
		}
		must(t, s.StopContainers(t.Context()))
		for _, init := range inits {
			if took := init.Status().Exit.At.Sub(began); took != 5*time.Second {
				t.Errorf("an init of the two ended after %v, want both after the 5 s of the member", took)
			}
		}
	})
}
