// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package listen opens sockets for a container's first process (socket activation, sd_listen_fds(3)). [Open] makes
// them before the container, in its network namespace, since init can get descriptors only at its start. [Bind] binds
// them among the mounts of the container that is set up, before its program runs. Their files are removed with the
// container. If the shim is killed they stay, until somebody binds the path again.
//
// The wait for volumes is bounded. A goroutine that is left then ends when the volumes answer. There are no locks.
package listen

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/extension"
	"sandbox.internal/shim/pkg/handover"
	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
	"sandbox.internal/shim/pkg/unixfile"
)

const none = "none"

// Extension returns the extension listen.
func Extension() extension.Extension {
	return extension.Extension{
		Name: "listen",
		// Root binds the sockets: ports in the host's network, paths on volumes.
		Settings: []settings.Setting{{Name: "listen", Option: "Listen", Unsafe: true, SafeValue: none}},
		New:      newPart,
	}
}

func newPart(values settings.Values) (_ *extension.Part, err error) {
	h := &hook{setting: values.Of("listen")}
	if !h.setting.IsSet() || h.setting.Text == none {
		return nil, nil //nolint:nilnil // nothing was asked for
	}
	if values.Of("init").Text == "true" {
		return nil, h.refuse("not possible with an init: the sockets are for the first process of the container")
	}
	if h.list, err = Parse(h.setting.Text); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", h.setting.Key, err, errdefs.ErrInvalidArgument)
	}
	return &extension.Part{Hook: h, State: h}, nil
}

// bindTimeout bounds the wait for volumes, which may hang.
const bindTimeout = 5 * time.Second

type hook struct {
	process.NoHook
	setting settings.Value
	list    []Address
	config  *process.Config // from Prepare on
	sockets Sockets         // from Prepare until init has them
	files   Files           // from Created on

	namespace *os.File // the network namespace that was made for the container, as long as sockets; or nil
}

func (h *hook) refuse(why string) error {
	return fmt.Errorf("%s %q: %s: %w", h.setting.Key, h.setting.Text, why, errdefs.ErrInvalidArgument)
}

// Prepare implements [process.Hook].
func (h *hook) Prepare(_ context.Context, c *process.Config) error {
	h.config = c
	network, made, err := h.network()
	if err != nil {
		return err
	}
	if h.sockets, h.namespace, err = Open(h.list, network); err != nil {
		return h.failed(err)
	}
	if made != nil {
		// Not through /proc/self: the container's first stage opens it.
		made.Path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), h.namespace.Fd())
	}
	env(h.list, c.SetEnv)
	c.Files = h.sockets
	return nil
}

// network returns the network namespace of the sockets. made is the namespace in the configuration that Open makes.
func (h *hook) network() (n Network, made *specs.LinuxNamespace, err error) {
	if h.config.Checkpoint != "" {
		return n, nil, h.refuse("a container that is restored has its sockets already")
	}
	namespaces := map[specs.LinuxNamespaceType]*specs.LinuxNamespace{}
	for i, n := range h.config.Spec.Linux.Namespaces {
		namespaces[n.Type] = &h.config.Spec.Linux.Namespaces[i]
	}
	if pids := namespaces[specs.PIDNamespace]; pids == nil || pids.Path != "" {
		return n, nil, h.refuse("needs a PID namespace of the container's own, as LISTEN_PID is 1")
	}
	own := namespaces[specs.NetworkNamespace]
	switch {
	case own == nil:
		return n, nil, nil
	case own.Path != "":
		return Network{Path: own.Path}, nil, nil
	case !Inet(h.list):
		return Network{Own: true}, nil, nil
	case namespaces[specs.UserNamespace] != nil:
		// The network namespace is made before the user namespace, and would belong to the host's.
		return n, nil, h.refuse("TCP and UDP sockets are not possible if the container has both a user namespace and a " +
			"network namespace of its own: use unix sockets, or let it join a network namespace by path")
	}
	return Network{Own: true}, own, nil
}

// Created implements [process.Hook].
func (h *hook) Created(_ context.Context, _ process.RuntimeContainer, init process.Handle) error {
	defer h.closeSockets() // init has its own
	// Once the wait was given up, the pid may be another's.
	root, err := os.OpenFile(fmt.Sprintf("/proc/%d/root", init.Pid()), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return h.failed(err)
	}
	linux := h.config.Spec.Linux
	list, sockets, owner := h.list, h.sockets, idmap.Root(linux.UIDMappings, linux.GIDMappings)
	bound := make(chan Files, 1)
	err = unixfile.Within(bindTimeout, func() error {
		defer root.Close() //nolint:errcheck // opened for its name only
		files, err := Bind(list, sockets, fmt.Sprintf("/proc/self/fd/%d", root.Fd()), owner)
		bound <- files
		return err
	})
	if err != nil {
		return h.failed(err)
	}
	h.files = <-bound
	return nil
}

// savedFile is a file in the state for a successor.
type savedFile struct {
	Dir      handover.FD
	Name     string
	Dev, Ino uint64
}

// Save implements [extension.State].
func (h *hook) Save(s *handover.Saver) (state any, thaw func()) {
	var files []savedFile
	for _, f := range h.files {
		files = append(files, savedFile{s.KeepFD(f.dir), f.name, f.made.Dev, f.made.Ino})
	}
	return files, func() {}
}

// Restore implements [extension.State].
func (h *hook) Restore(l *handover.Loader, state json.RawMessage, _ *process.Config) error {
	var files []savedFile
	if err := json.Unmarshal(state, &files); err != nil {
		return err
	}
	for _, f := range files {
		dir, err := l.Take(f.Dir)
		if err != nil {
			return err
		}
		h.files = append(h.files, file{dir: dir, name: f.Name, made: unix.Stat_t{Dev: f.Dev, Ino: f.Ino}})
	}
	return nil
}

func (h *hook) failed(err error) error {
	return fmt.Errorf("%s: %w: %w", h.setting.Key, err, errdefs.ErrFailedPrecondition)
}

func (h *hook) closeSockets() {
	if h.sockets != nil {
		h.sockets.Close()
		_ = h.namespace.Close() // nothing was written; nil is harmless
		h.sockets, h.namespace, h.config.Files = nil, nil, nil
	}
}

// Removed implements [process.Hook]. On a volume that does not answer the files stay.
func (h *hook) Removed() error {
	h.closeSockets()
	files := h.files
	h.files = nil
	_ = unixfile.Within(bindTimeout, func() error {
		files.Remove()
		return nil
	})
	return nil
}
