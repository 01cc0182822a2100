// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"os"
	"syscall"
	"testing"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
)

// goneManager is the manager of a cgroup that systemd removes at any moment.
type goneManager struct{ cgroups.Manager }

func (goneManager) Exists() bool { return true }

func (goneManager) Freeze(cgroups.FreezerState) error {
	return &os.PathError{Op: "write", Path: "cgroup.freeze", Err: unix.ENODEV}
}

func TestDestroy_OfACgroupThatGoesMeanwhile(t *testing.T) {
	for name, destroy := range map[string]func(*box) error{
		"Destroy": func(b *box) error { return b.Destroy() },
		"Discard": func(b *box) error { return b.Discard() },
	} {
		t.Run(name, func(t *testing.T) {
			b := create(t, newConfig(t, "true"))
			c := b.RuntimeContainer.(*container)
			must(t, b.Init().Signal(syscall.SIGKILL))
			b.wait()
			c.manager = goneManager{c.manager}
			if err := destroy(b); err != nil {
				t.Errorf("%s = %v, want success", name, err)
			}
		})
	}
}
