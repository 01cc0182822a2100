// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// Gate stops an operation of a shim: it is a hook of the container that reports that it runs, and then waits until the
// test opens the gate. The end of the test opens it in any case.
type Gate struct {
	fake    *Fake
	reached string
	fifo    string
	fd      int // holds the fifo open, so that the hook waits for a line and not for a writer
}

// NewGate makes a closed gate.
func (f *Fake) NewGate(name string) *Gate {
	f.Helper()
	g := &Gate{fake: f, reached: filepath.Join(f.Dir, name+".reached"), fifo: filepath.Join(f.Dir, name+".fifo")}
	f.Must(unix.Mkfifo(g.fifo, 0o600), "gate")
	fd, err := unix.Open(g.fifo, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	f.Must(err, "gate")
	g.fd = fd
	f.Cleanup(func() {
		g.Open()
		_ = unix.Close(fd)
	})
	return g
}

// Hook is the hook that waits.
func (g *Gate) Hook() specs.Hook {
	return specs.Hook{
		Path: g.fake.Env.Busybox,
		Args: []string{"sh", "-c", `: >"$0"; read -r line <"$1"`, g.reached, g.fifo},
	}
}

// InCreate is a change of a spec that puts the gate into Create.
func (g *Gate) InCreate(s *specs.Spec) {
	s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{g.Hook()}}
}

// WaitReached waits until the operation stands at the gate.
func (g *Gate) WaitReached() {
	g.fake.Helper()
	harness.Eventually(g.fake, "the gate is reached", func() error {
		_, err := os.Stat(g.reached)
		return err
	})
}

// Open lets everything pass, now and later.
func (g *Gate) Open() {
	g.fake.Helper()
	if _, err := unix.Write(g.fd, []byte("\n\n\n\n")); err != nil && !errors.Is(err, unix.EAGAIN) {
		g.fake.Errorf("open the gate: %v", err)
	}
}
