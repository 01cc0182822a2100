// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/extension"
	"sandbox.internal/shim/pkg/handover"
	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
)

const (
	// defaultTimeout is systemd's (systemd-system.conf(5), DefaultTimeoutStartSec).
	defaultTimeout = 90 * time.Second

	// hookDir is the socket's directory in the bundle, and hookMount in the container, where runc has it.
	hookDir   = "notify"
	hookMount = "/run/notify"

	// killTimeout bounds how long awaitReady waits until an init that it killed has exited.
	killTimeout = 10 * time.Second
)

// Extension returns the extension notify.
func Extension() extension.Extension {
	return extension.Extension{
		Name: "notify",
		Settings: []settings.Setting{
			{Name: "notify", Option: "Notify", Bool: true, Default: "false"},
			{Name: "notify-timeout", Option: "NotifyTimeout", Default: defaultTimeout.String()},
		},
		New: newPart,
	}
}

func newPart(values settings.Values) (*extension.Part, error) {
	set, timeout := values.Of("notify"), values.Of("notify-timeout")
	on, err := set.Bool()
	if err != nil {
		return nil, err
	}
	h := &hook{timeout: defaultTimeout}
	if timeout.IsSet() {
		h.timeout, err = time.ParseDuration(timeout.Text)
		switch {
		case err != nil || h.timeout <= 0 || h.timeout > settings.MaxTimeout:
			return nil, timeout.Refuse("a time such as 500ms, 90s or 1m30s, more than 0 and at most 24h")
		case !on && (timeout.ByAnnotation || !set.ByAnnotation): // else an annotation switches off the option
			return nil, timeout.Needs("notify", "Notify")
		}
	}
	if !on {
		return nil, nil //nolint:nilnil // nothing was asked for
	}
	return &extension.Part{
		Hook: h, State: h, AwaitReady: h.awaitReady,
		Inspect: func(c *inspect.ContainerInfo) { c.Notify = new(h.receiver.State()) },
	}, nil
}

type hook struct {
	process.NoHook
	timeout  time.Duration
	receiver *Receiver // from Prepare on
}

// Prepare implements [process.Hook]: it adds the socket's mount and environment variable.
func (h *hook) Prepare(_ context.Context, c *process.Config) (err error) {
	dir := filepath.Join(c.Bundle, hookDir)
	owner := idmap.Root(c.Spec.Linux.UIDMappings, c.Spec.Linux.GIDMappings)
	if h.receiver, err = Listen(dir, owner, log.L.WithField("container", c.ID)); err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	c.Spec.Mounts = append(c.Spec.Mounts, specs.Mount{
		Destination: hookMount, Type: "bind", Source: dir, Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"},
	})
	c.SetEnv("NOTIFY_SOCKET", path.Join(hookMount, Name))
	return nil
}

// saved is what a successor gets.
type saved struct {
	Socket handover.FD
	State  State
	Until  time.Time `json:",omitzero"` // that EXTEND_TIMEOUT_USEC asked for
}

// Save implements [extension.State].
//
// +checklocksignore: thaw unlocks
func (h *hook) Save(s *handover.Saver) (state any, thaw func()) {
	r := h.receiver
	r.reading.Lock()
	r.mu.Lock()
	defer r.mu.Unlock()
	return saved{Socket: s.Keep(r.conn), State: r.state, Until: r.extension}, func() { r.reading.Unlock() }
}

// Restore implements [extension.State].
//
// +checklocksignore: nobody else has the receiver yet
func (h *hook) Restore(l *handover.Loader, state json.RawMessage, c *process.Config) error {
	var s saved
	if err := json.Unmarshal(state, &s); err != nil {
		return err
	}
	file, err := l.File(s.Socket, Name)
	if err != nil {
		return err
	}
	var socket *net.UnixConn // nil after a Close; another hook may have failed since
	if file != nil {
		l.CloseLater(file)
		conn, err := net.FilePacketConn(file) // a duplicate
		if err != nil {
			return err
		}
		socket, _ = conn.(*net.UnixConn) // it is one
	}
	h.receiver = newReceiver(filepath.Join(c.Bundle, hookDir), socket, log.L.WithField("container", c.ID))
	h.receiver.state, h.receiver.extension = s.State, s.Until
	if s.State.Ready {
		close(h.receiver.ready)
	}
	if socket == nil {
		h.receiver.once.Do(func() { close(h.receiver.closed) })
	}
	return nil
}

// Resumed implements [process.Resumer].
func (h *hook) Resumed(process.RuntimeContainer) { h.receiver.begin() }

// Removed implements [process.Hook].
func (h *hook) Removed() error {
	if h.receiver == nil {
		return nil
	}
	return h.receiver.Close()
}

func (h *hook) awaitReady(init *process.Process) error {
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
	state := h.receiver.State()
	last := fmt.Sprintf("last STATUS %q, ERRNO %d", state.Status, state.Errno)
	if errors.Is(err, ErrTimeout) {
		err = fmt.Errorf("%w (notify-timeout %v); the container was killed; %s: %w",
			err, h.timeout, last, context.DeadlineExceeded)
	} else {
		err = fmt.Errorf("%w, with status %d; %s: %w", err, exit.Status, last, errdefs.ErrAborted)
	}
	return errors.Join(err, waitErr)
}
