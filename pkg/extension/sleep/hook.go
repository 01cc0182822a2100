// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package sleep freezes containers that nobody uses, gives their memory back, and thaws them before anything that
// concerns them (docs/idle.md). Each container, or those of a pod together, has a group with a lock and a timer.
package sleep

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/extension"
	"sandbox.internal/shim/pkg/handover"
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
)

// Annotations of CRI.
const (
	podAnnotation  = "io.kubernetes.cri.sandbox-id"
	kindAnnotation = "io.kubernetes.cri.container-type"
	kindOfPause    = "sandbox"
)

// Extension returns the extension idle. It stands before listen, whose sockets it watches.
func Extension() extension.Extension {
	p := &pods{groups: map[string]*group{}, joined: map[string]int{}}
	return extension.Extension{
		Name:     "idle",
		Settings: []settings.Setting{{Name: "idle", Option: "Idle"}},
		New: func(values settings.Values) (*extension.Part, error) {
			v := values.Of("idle")
			if !v.IsSet() || v.Text == none {
				return nil, nil //nolint:nilnil // nothing was asked for
			}
			c, err := parse(v)
			if err != nil {
				return nil, err
			}
			h := &hook{setting: v, config: c, pods: p}
			return &extension.Part{Hook: h, Sleeper: h, State: h, Inspect: h.inspect}, nil
		},
	}
}

// pods has the groups of pods.
type pods struct {
	mu sync.Mutex
	// +checklocks:mu
	groups map[string]*group
	// +checklocks:mu
	joined map[string]int // containers of each, also those that are being created
}

func (p *pods) of(id string, c config) *group {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.groups[id]
	if g == nil {
		g = newGroup(c)
		p.groups[id] = g
	}
	p.joined[id]++
	return g
}

func (p *pods) leave(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.joined[id]--; p.joined[id] == 0 {
		delete(p.joined, id)
		delete(p.groups, id)
	}
}

// hook is a container that sleeps.
type hook struct {
	setting settings.Value
	config  config
	pods    *pods
	id, pod string
	create  *process.Config // from Prepare to Created
	group   *group          // nil: it never sleeps
	runtime process.RuntimeContainer
	sockets []*os.File // that it listens on
	state   savedState // of a former program, until Resumed

	// Guarded by the lock of the group.
	uses      int
	unwatch   []func()
	signalled time.Time // the last time; zero: never
}

// Prepare implements [process.Hook].
func (h *hook) Prepare(_ context.Context, c *process.Config) error {
	h.id, h.create = c.ID, c
	annotations := c.Spec.Annotations
	if annotations[kindAnnotation] == kindOfPause { // it does nothing
		return nil
	}
	if h.config.pod {
		h.pod = annotations[podAnnotation]
	}
	if kind := shared(c.Spec.Linux, h.pod != ""); kind != "" {
		if !h.setting.ByAnnotation {
			return nil // the option is for those that can
		}
		return fmt.Errorf("%s %q: the container shares its %s namespace with others, which would wait for it: "+
			"must have a namespace of its own, or, in a pod of CRI, the item pod: %w",
			h.setting.Key, h.setting.Text, kind, errdefs.ErrInvalidArgument)
	}
	h.join()
	return nil
}

func (h *hook) join() {
	if h.pod != "" {
		h.group = h.pods.of(h.pod, h.config)
	} else {
		h.group = newGroup(h.config)
	}
}

// shared returns the kind of a namespace that a container shares with processes that do not sleep with it.
func shared(l *specs.Linux, inPod bool) string {
	for _, kind := range []specs.LinuxNamespaceType{specs.PIDNamespace, specs.IPCNamespace} {
		own, joined := false, false
		for _, n := range l.Namespaces {
			if n.Type == kind {
				own, joined = n.Path == "", n.Path != ""
			}
		}
		if !own && (!joined || !inPod) {
			return string(kind)
		}
	}
	return ""
}

// Created implements [process.Hook].
func (h *hook) Created(_ context.Context, c process.RuntimeContainer, _ process.Handle) error {
	if h.group == nil {
		return nil
	}
	h.runtime = c
	for _, f := range h.create.Files {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("%s: watch a socket: %w", h.setting.Key, err)
		}
		h.sockets = append(h.sockets, os.NewFile(uintptr(fd), "socket"))
	}
	h.create = nil
	h.group.add(h)
	return nil
}

// Removed implements [process.Hook].
func (h *hook) Removed() error {
	if h.group != nil {
		h.group.remove(h)
		if h.pod != "" {
			h.pods.leave(h.pod)
			h.pod = "" // it may be called again
		}
		closeAll(h.sockets)
		h.sockets = nil
	}
	return nil
}

// Use implements [process.Sleeper].
func (h *hook) Use(reason string) (done func()) {
	if h.group == nil {
		return func() {}
	}
	return h.group.use(h, reason)
}

// Sleep implements [process.Sleeper].
func (h *hook) Sleep() error {
	if h.group == nil {
		return fmt.Errorf("sleep: a container of this kind does not: %w", errdefs.ErrFailedPrecondition)
	}
	return h.group.sleep()
}

// Await implements [process.Sleeper].
func (h *hook) Await(ctx context.Context, changes uint64) (*inspect.Idle, error) {
	if h.group == nil {
		return nil, fmt.Errorf("await sleep: a container of this kind does not: %w", errdefs.ErrFailedPrecondition)
	}
	return h.group.await(ctx, h, changes)
}

// AsleepSince implements [process.Sleeper].
func (h *hook) AsleepSince() (since time.Time) {
	if h.group != nil {
		since = h.group.asleepSince()
	}
	return since
}

func (h *hook) inspect(c *inspect.ContainerInfo) {
	if h.group != nil {
		c.Idle = h.group.inspect()
	}
}

// savedState is the state for a successor.
type savedState struct {
	ID, Pod string
	Sleeps  bool // ever
	Signal  time.Time
	Told    told
	Sockets []handover.FD
}

// Save implements [extension.State].
func (h *hook) Save(s *handover.Saver) (state any, thaw func()) {
	if h.group == nil {
		return savedState{}, func() {}
	}
	saved := savedState{ID: h.id, Pod: h.pod, Sleeps: true}
	for _, f := range h.sockets {
		saved.Sockets = append(saved.Sockets, s.KeepFD(int(f.Fd())))
	}
	g := h.group
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held++
	saved.Told, saved.Signal = g.told, h.signalled
	return saved, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.held--; g.held == 0 && g.asleep {
			g.watchLocked() // a connection that came meanwhile woke nobody
		}
	}
}

// Restore implements [extension.State].
func (h *hook) Restore(l *handover.Loader, state json.RawMessage, _ *process.Config) error {
	if err := json.Unmarshal(state, &h.state); err != nil || !h.state.Sleeps {
		return err
	}
	h.id, h.pod = h.state.ID, h.state.Pod
	for _, saved := range h.state.Sockets {
		fd, err := l.Take(saved)
		if err != nil {
			return err
		}
		h.sockets = append(h.sockets, os.NewFile(uintptr(fd), "socket"))
	}
	h.join()
	return nil
}

// Resumed implements [process.Resumer]. A container that slept goes on with it.
func (h *hook) Resumed(c process.RuntimeContainer) {
	if h.group == nil {
		return
	}
	h.runtime = c
	g := h.group
	g.mu.Lock()
	defer g.mu.Unlock()
	g.members[h] = struct{}{}
	g.told, h.signalled = h.state.Told, h.state.Signal
	if g.told.Woken == nil {
		g.told.Woken = map[string]uint64{}
	}
	g.asleep, g.since = g.told.Asleep, g.told.Since
	if g.asleep {
		_, g.stopReclaim = context.WithCancel(context.Background())
		g.watchLocked()
	}
	if g.timer == nil {
		g.armLocked(g.config.after)
	}
}
