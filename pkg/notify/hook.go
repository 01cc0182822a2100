// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
)

const (
	// hookDir is the socket's directory in the bundle, and hookMount in the container, where runc has it.
	hookDir   = "notify"
	hookMount = "/run/notify"

	// killTimeout bounds how long AwaitReady waits until an init that it killed is dead.
	killTimeout = 10 * time.Second
)

// Hook is the [process.Hook] of a container that tells when it is ready.
type Hook struct {
	process.NoHook
	timeout  time.Duration
	receiver *Receiver // from Prepare on
}

// NewHook returns the hook for a container that has timeout to be ready.
func NewHook(timeout time.Duration) *Hook { return &Hook{timeout: timeout} }

// Prepare implements [process.Hook]. It makes the socket, a mount of it, and a variable that says where it is.
func (h *Hook) Prepare(_ context.Context, c *process.Config) (err error) {
	dir := filepath.Join(c.Bundle, hookDir)
	entry := log.L.WithField("container", c.ID)
	owner := idmap.Root(c.Spec.Linux.UIDMappings, c.Spec.Linux.GIDMappings)
	h.receiver, err = Listen(dir, owner, func(text string, fields map[string]any) { entry.WithFields(fields).Info(text) })
	if err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	c.Spec.Mounts = append(c.Spec.Mounts, specs.Mount{
		Destination: hookMount, Type: "bind", Source: dir, Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"},
	})
	c.SetEnv("NOTIFY_SOCKET", path.Join(hookMount, Name))
	return nil
}

// Created implements [process.Hook].
func (h *Hook) Created(_ context.Context, c process.RuntimeContainer, _ process.Handle) error {
	h.receiver.Receive(func(s Sender) error { return c.Cgroup().Contains(s.PID, s.PIDFD) })
	return nil
}

// Removed implements [process.Hook].
func (h *Hook) Removed() error {
	if h.receiver == nil {
		return nil
	}
	return h.receiver.Close()
}

// State returns what was received so far.
func (h *Hook) State() State { return h.receiver.State() }

// AwaitReady waits for READY=1 from a container whose init was started, and kills an init that does not send it in
// time.
func (h *Hook) AwaitReady(init *process.Process) error {
	err := h.receiver.Await(h.timeout, settings.MaxTimeout, init.Exited())
	if err == nil {
		return nil
	}
	if kill := init.Kill(syscall.SIGKILL); kill != nil && !errdefs.IsNotFound(kill) {
		err = errors.Join(err, kill)
	}
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	exit, waitErr := init.Wait(ctx)
	state := h.State()
	last := fmt.Sprintf("last STATUS %q", state.Status)
	if state.Errno != 0 {
		last += fmt.Sprintf(", ERRNO %d (%v)", state.Errno, syscall.Errno(state.Errno))
	}
	switch {
	case errors.Is(err, ErrTimeout):
		err = fmt.Errorf("%w, which is %v by notify-timeout, or as long as EXTEND_TIMEOUT_USEC said, at most %v; %s: %w",
			err, h.timeout, settings.MaxTimeout, last, context.DeadlineExceeded)
	case errors.Is(err, ErrExited):
		err = fmt.Errorf("%w, with status %d; %s: %w", err, exit.Status, last, errdefs.ErrAborted)
	}
	if waitErr != nil {
		err = errors.Join(err, waitErr)
	}
	return err
}
