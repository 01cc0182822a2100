// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/notify"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
)

const (
	// notifyDir is the socket's place in the bundle, and notifyMount in the
	// container; it is that of runc.
	notifyDir   = "notify"
	notifyMount = "/run/notify"

	// stopTimeout bounds how long a Start that failed waits for init to be dead.
	stopTimeout = 10 * time.Second
)

// readiness is how a container tells that it is ready.
type readiness struct {
	receiver *notify.Receiver
	timeout  time.Duration
	started  chan struct{} // closed when err is known: what Start answers
	err      error
}

// prepareNotify gives init a socket to tell its state by, if config.Spec asks
// for it, and changes config.Spec. The socket is removed by undo.
func prepareNotify(config process.Config, timeout time.Duration, undo *undoList) (*readiness, error) {
	if timeout == 0 {
		return nil, nil //nolint:nilnil // nobody waits
	}
	dir := filepath.Join(config.Bundle, notifyDir)
	logger := log.L.WithField("container", config.ID)
	linux := config.Spec.Linux
	owner := idmap.Root(linux.UIDMappings, linux.GIDMappings)
	receiver, err := notify.Listen(dir, owner, func(text string, fields map[string]any) {
		logger.WithFields(fields).Info(text)
	})
	if err != nil {
		return nil, fmt.Errorf("notify: %w", err)
	}
	undo.add("notify socket", receiver.Close)
	config.Spec.Mounts = append(config.Spec.Mounts, specs.Mount{
		Destination: notifyMount, Type: "bind", Source: dir, Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"},
	})
	setEnv(config.Spec.Process, "NOTIFY_SOCKET", path.Join(notifyMount, notify.Name))
	return &readiness{receiver: receiver, timeout: timeout, started: make(chan struct{})}, nil
}

// setEnv sets a variable, whatever the configuration made of it.
func setEnv(p *specs.Process, name, value string) {
	env := make([]string, 0, len(p.Env)+1)
	for _, e := range p.Env {
		if !strings.HasPrefix(e, name+"=") {
			env = append(env, e)
		}
	}
	p.Env = append(env, name+"="+value)
}

// receive begins to listen to what c tells.
func (r *readiness) receive(c *process.Container) {
	r.receiver.Receive(func(s notify.Sender) error { return c.Cgroup().Contains(s.PID, s.PIDFD) })
}

// Start runs the program of init, or an exec. If init tells when it is ready,
// Start returns then. One that is not ready in time, or exits before, makes it
// fail; init is dead then and its exit is told.
func (m *Manager) Start(ctx context.Context, containerID, execID string) (*process.Process, error) {
	c, err := m.Container(containerID)
	if err != nil {
		return nil, err
	}
	p, err := c.Process(execID)
	if err != nil {
		return nil, err
	}
	if execID == "" && c.Restored() {
		if err := m.checkAdmission(containerID); err != nil {
			return nil, err
		}
	}
	if err := p.Start(ctx); err != nil {
		return nil, err
	}
	if execID != "" || c.readiness == nil || c.Restored() { // it was ready before it was checkpointed
		return p, nil
	}
	// Start succeeds once, so this is the only one. It ends with the time-out at
	// the latest. It is not ended with ctx: the container is to be ready in time
	// also if containerd is restarted meanwhile, and it runs already.
	go func() {
		defer close(c.readiness.started)
		c.readiness.err = c.awaitReady()
		if err := c.readiness.err; err != nil && ctx.Err() != nil {
			log.L.WithError(err).Error("a start for which nobody waits any more")
		}
	}()
	select {
	case <-c.readiness.started:
		return p, c.readiness.err
	case <-ctx.Done():
		return nil, fmt.Errorf("container %q: start: not ready yet: %w", c.ID(), ctx.Err())
	}
}

// awaitReady waits for READY=1, and stops a container that does not send it.
func (c *Container) awaitReady() error {
	r := c.readiness
	err := r.receiver.Await(r.timeout, settings.MaxTimeout, c.Init().Exited())
	if err == nil {
		return nil
	}
	if kill := c.Init().Kill(syscall.SIGKILL); kill != nil && !errdefs.IsNotFound(kill) {
		err = errors.Join(err, kill)
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	exit, waited := c.Init().Wait(ctx)
	told := r.receiver.State()
	last := fmt.Sprintf("last STATUS %q", told.Status)
	if told.Errno != 0 {
		last += fmt.Sprintf(", ERRNO %d (%v)", told.Errno, syscall.Errno(told.Errno))
	}
	switch {
	case errors.Is(err, notify.ErrTimeout):
		err = fmt.Errorf("%w, which is %v by notify-timeout, or as long as EXTEND_TIMEOUT_USEC said, at most %v; %s: %w", err, r.timeout, settings.MaxTimeout, last, context.DeadlineExceeded)
	case errors.Is(err, notify.ErrExited):
		err = fmt.Errorf("%w, with status %d; %s: %w", err, exit.Status, last, errdefs.ErrAborted)
	}
	if waited != nil {
		err = errors.Join(err, waited)
	}
	return fmt.Errorf("container %q: start: %w", c.ID(), err)
}

// Notified is what init told by its notify socket, and false if it has none.
func (c *Container) Notified() (notify.State, bool) {
	if c.readiness == nil {
		return notify.State{}, false
	}
	return c.readiness.receiver.State(), true
}
