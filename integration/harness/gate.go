// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Gate stops an operation of a shim: it is a hook of the container that reports that it runs, and then waits until the
// test opens the gate. The end of the test opens it in any case.
type Gate struct {
	tb      testing.TB
	reached string
	fifo    string
	fd      int // holds the fifo open, so that the hook waits for a line and not for a writer
}

// NewGate makes a closed gate, whose files are in dir.
func NewGate(tb testing.TB, dir string) *Gate {
	tb.Helper()
	g := &Gate{tb: tb, reached: filepath.Join(dir, "gate.reached"), fifo: filepath.Join(dir, "gate.fifo")}
	err := unix.Mkfifo(g.fifo, 0o600)
	if err == nil {
		g.fd, err = unix.Open(g.fifo, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		tb.Fatalf("gate %s: %v", g.fifo, err)
	}
	tb.Cleanup(func() {
		g.Open()
		_ = unix.Close(g.fd)
	})
	return g
}

// Hook is the hook that waits.
func (g *Gate) Hook() specs.Hook {
	return specs.Hook{
		Path: "/bin/sh",
		Args: []string{"sh", "-c", `: >"$0"; read -r line <"$1"`, g.reached, g.fifo},
	}
}

// InCreate is a change of a spec that puts the gate into Create.
func (g *Gate) InCreate(s *specs.Spec) {
	s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{g.Hook()}}
}

// WaitReached waits until the operation stands at the gate.
func (g *Gate) WaitReached() {
	g.tb.Helper()
	Eventually(g.tb, "the gate is reached", func() error {
		_, err := os.Stat(g.reached)
		return err
	})
}

// Open lets everything pass, now and later.
func (g *Gate) Open() {
	g.tb.Helper()
	if _, err := unix.Write(g.fd, []byte("\n\n\n\n")); err != nil && !errors.Is(err, unix.EAGAIN) {
		g.tb.Errorf("open the gate: %v", err)
	}
}
