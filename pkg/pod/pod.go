// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package pod makes what the containers of a pod share, without a container of its own: the network, IPC and UTS
// namespaces, the files of /etc that Kubernetes manages, and /dev/shm. What Create or Start did is undone when they
// fail, and by Close.
//
// The shim's main thread holds the namespaces, so the shim's pid is the pod's: containerd's CRI plugin gives each
// container /proc/PID/ns/net, ipc and uts of that pid (internal/cri/opts, WithPodNamespaces). No other thread runs
// anything else after it was in one of them. A pod whose containers share a PID namespace, or have a user namespace,
// or that shares the shim, has a process for that, its holder, whose pid is the pod's then (docs/decisions/0005).
//
// Goroutines: one waits for the pod's process. There is no lock: Create, Start and Close are not called at the same
// time, and what the other methods read does not change after Start.
package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/opencontainers/selinux/go-selinux/label"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/osthread"
	"sandbox.internal/shim/pkg/reaper"
)

// Request asks for a pod.
type Request struct {
	ID         string // one path element
	Bundle     string // absolute path of a directory; the pod's files are made there
	Config     Config
	MaxShmSize int64          // the most that ShmSizeAnnotation may ask for, in bytes; 0 for the default
	Reaper     *reaper.Reaper // leaves the pod's process to the pod
	Shared     bool           // the main thread of the shim is not for this pod alone
}

// Pod is what the containers of a pod share.
type Pod struct {
	Request
	cgroupPath   string
	mountLabel   string // the SELinux context of its files; "" for none
	thread       *osthread.Thread
	network      *os.File // the namespace at Config.NetNS, which Start joins; nil for none
	onMainThread bool     // the main thread holds the namespaces
	holder       *holder  // or this process does; nil otherwise, and before Start

	saved []*os.File // namespaces of the main thread, from Save to Saved
}

// closeTimeout bounds the wait until the pod's process, and what is left in its PID namespace, has died of SIGKILL.
const closeTimeout = 4 * time.Second

// Create checks r and makes the pod's files. When it fails, nothing is left of it.
func Create(ctx context.Context, r Request, t *osthread.Thread) (_ *Pod, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	p := &Pod{Request: r, thread: t}
	if p.cgroupPath, err = parentPath(r.Config.CgroupParent); err != nil {
		return nil, err
	}
	shmSize, err := r.shmSize()
	if err != nil {
		return nil, err
	}
	if p.mountLabel, err = r.Config.mountLabel(label.InitLabels); err != nil {
		return nil, err
	}
	if r.Config.NetNS != "" {
		if p.network, err = os.Open(r.Config.NetNS); err != nil {
			return nil, invalidf("network namespace: %w", err)
		}
	}
	if err := makeFiles(r.Bundle, r.Config, shmSize, p.mountLabel); err != nil {
		_ = p.network.Close() // nothing was written; nil is none
		return nil, fmt.Errorf("files of the pod: %w", err)
	}
	return p, nil
}

// Start makes the pod's namespaces. When it fails, nothing is left of them, and it can be tried again.
func (p *Pod) Start(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			undone := p.removeNamespaces()
			if undone == nil {
				p.holder = nil
			}
			err = errors.Join(fmt.Errorf("namespaces of the pod: %w", err), undone)
		}
	}()
	if p.Shared || p.Config.PID == ModePod || p.Config.User != nil {
		err = p.startProcess(ctx)
	} else {
		p.onMainThread = true // even if it fails halfway
		err = p.thread.Do(func() error { return enterNamespaces(p.network, p.cloneFlags(), p.Config.Hostname) })
	}
	if err != nil {
		return err
	}
	return p.configureNamespaces()
}

// cloneFlags returns the CLONE_NEW… bits of the namespaces to be made for the pod, except user and PID namespaces.
func (p *Pod) cloneFlags() (flags int) {
	if p.Config.Network == ModePod {
		flags |= unix.CLONE_NEWUTS
		if p.network == nil {
			flags |= unix.CLONE_NEWNET
		}
	}
	if p.Config.IPC == ModePod {
		flags |= unix.CLONE_NEWIPC
	}
	return flags
}

// startProcess lets a process of its own hold the namespaces.
func (p *Pod) startProcess(ctx context.Context) (err error) {
	c := holderConfig{
		Net: p.network, Make: p.cloneFlags(), PID: p.Config.PID == ModePod,
		Hostname: p.Config.Hostname, UID: pauseID, GID: pauseID,
	}
	if user := p.Config.User; user != nil {
		c.UID, c.GID = lastID(user.UIDs), lastID(user.GIDs)
		if c.User, err = ownerOf(p.network); err != nil {
			return err
		}
		if c.User != nil {
			defer c.User.Close() //nolint:errcheck // the process has joined it by then
		} else {
			c.Map = user
		}
	}
	p.holder, err = startHolder(ctx, c, p.thread, p.Reaper)
	return err
}

// configureNamespaces sets the loopback interface up and writes the sysctls.
func (p *Pod) configureNamespaces() error {
	kinds := p.cloneFlags()
	loopback := kinds&unix.CLONE_NEWNET != 0
	if len(p.Config.Sysctls) == 0 && !loopback {
		return nil
	}
	if p.network != nil {
		kinds |= unix.CLONE_NEWNET
	}
	return inNamespaces(p.Pid(), kinds, func() error {
		if loopback {
			if err := netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo"}}); err != nil {
				return fmt.Errorf("set interface lo up: %w", err)
			}
		}
		return writeSysctls(p.Config.Sysctls, p.Config.root().UID)
	})
}

// removeNamespaces undoes Start, whichever part was done.
func (p *Pod) removeNamespaces() error {
	if p.holder != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if err := p.holder.Kill(ctx); err != nil {
			return err
		}
	}
	if !p.onMainThread {
		return nil
	}
	err := enterHostNamespaces(p.thread)
	p.onMainThread = err != nil
	return err
}

// Pid returns the pid of the process that holds the namespaces, once the pod is started: the shim or a child of it.
func (p *Pod) Pid() int {
	if p.holder != nil {
		return p.holder.Pid()
	}
	return os.Getpid()
}

// Wait waits until the process that holds the namespaces, if it is not the shim, has died, and returns how: its exit
// code, or 128 and the signal.
func (p *Pod) Wait() (status int, at time.Time) { return p.holder.Wait() }

// CgroupPath returns the cgroup of the pod: the path from the root of a hierarchy, or "".
func (p *Pod) CgroupPath() string { return p.cgroupPath }

// Close undoes Start and Create. Namespaces that containers still use exist as long as those. Close can be called
// again.
func (p *Pod) Close() error {
	err := errors.Join(p.removeNamespaces(), Remove(p.Bundle))
	_ = p.network.Close() // nothing was written; it may be closed already, or nil
	return err
}
