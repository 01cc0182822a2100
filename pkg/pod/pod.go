// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/selinux/go-selinux/label"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/osthread"
	"sandbox.internal/shim/pkg/pod/nsholder"
	"sandbox.internal/shim/pkg/reaper"
)

// Request asks for a pod.
type Request struct {
	ID            string
	Bundle        string // absolute; the pod's files are made there
	NetNS         string // path of the network namespace; "" for the host's, or for one of the pod's own
	Config        Config
	SystemdCgroup bool           // the cgroup driver is systemd's
	MaxShmSize    string         // what the annotation may ask for; "" for the default
	Reaper        *reaper.Reaper // told of the pod's process, so that it leaves it to the pod
}

// Pod is what the containers of a pod share.
type Pod struct {
	id         string
	bundle     string
	config     Config
	cgroupPath string
	mountLabel string // the SELinux context of its files; "" for none
	thread     *osthread.Thread
	reaper     *reaper.Reaper
	netns      string   // path of the network namespace; "" for the host's, or for one of the pod's own
	network    *os.File // that, which Start joins; nil for none

	madeCgroups []string // directories; not those that Close has removed

	onThread bool             // the main thread is the pod
	holder   *nsholder.Holder // or this is; nil otherwise, and before Start
}

// closeTimeout bounds the wait for the pod's process, and for what is left in its PID namespace, to die of SIGKILL.
// containerd gives its delete command 5 s in all.
const closeTimeout = 4 * time.Second

// Create checks r and makes the pod's files. When it fails, nothing is left of it.
func Create(ctx context.Context, r Request, t *osthread.Thread) (p *Pod, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	p = &Pod{id: r.ID, bundle: r.Bundle, config: r.Config, netns: r.netns(), thread: t, reaper: r.Reaper}
	if p.cgroupPath, err = parentPath(r.Config.CgroupParent, r.SystemdCgroup); err != nil {
		return nil, err
	}
	shm, err := r.shmSize(p.cgroupPath)
	if err != nil {
		return nil, err
	}
	if p.mountLabel, err = r.Config.mountLabel(label.InitLabels); err != nil {
		return nil, err
	}
	if p.netns != "" {
		if p.network, err = openNetNS(p.netns); err != nil {
			return nil, err
		}
	}
	if p.madeCgroups, err = makeParent(r.Bundle, r.Config.CgroupParent, p.cgroupPath); err != nil {
		p.closeNetwork()
		return nil, err
	}
	if err := makeFiles(r.Bundle, r.Config, shm, p.mountLabel); err != nil {
		p.closeNetwork()
		_, undone := removeMade(p.bundle, p.madeCgroups)
		return nil, errors.Join(fmt.Errorf("files of the pod: %w", err), undone)
	}
	return p, nil
}

// Start makes the pod's namespaces. When it fails, nothing is left of them, and it can be tried again.
func (p *Pod) Start(ctx context.Context) (err error) {
	if p.onThread || p.holder != nil {
		return fmt.Errorf("start pod %q: it was started: %w", p.id, errdefs.ErrFailedPrecondition)
	}
	defer func() {
		if err != nil {
			undone := p.leave()
			if undone == nil {
				p.holder = nil
			}
			err = errors.Join(fmt.Errorf("namespaces of the pod: %w", err), undone)
		}
	}()
	if p.config.PID == ModePod || p.config.User != nil {
		err = p.startHolder(ctx)
	} else {
		err = p.joinThread(ctx)
	}
	if err != nil {
		return err
	}
	return p.furnish()
}

// makes are the namespaces that are the pod's own, as CLONE_NEW… bits, but for those of users and pids.
func (p *Pod) makes() (flags int) {
	if p.config.Network == ModePod {
		flags |= unix.CLONE_NEWUTS
		if p.network == nil {
			flags |= unix.CLONE_NEWNET
		}
	}
	if p.config.IPC == ModePod {
		flags |= unix.CLONE_NEWIPC
	}
	return flags
}

// joinThread makes the main thread the pod.
func (p *Pod) joinThread(ctx context.Context) error {
	host, err := hostNamespaces()
	if err != nil {
		return err
	}
	defer host.close()
	err = p.thread.Do(ctx, func() error {
		if err := become(p.network, p.makes(), p.config.Hostname); err != nil {
			return errors.Join(err, host.rejoin())
		}
		return nil
	})
	p.onThread = err == nil
	return err
}

// startHolder starts a process that is the pod.
func (p *Pod) startHolder(ctx context.Context) error {
	c := nsholder.Config{
		Net: p.network, Make: p.makes(), PID: p.config.PID == ModePod,
		// Of no account in the pod, as that of the pause container.
		UID: lastID, GID: lastID,
	}
	if c.Make&unix.CLONE_NEWUTS != 0 {
		c.Hostname = p.config.Hostname
	}
	if user := p.config.User; user != nil {
		c.UID, c.GID = last(user.UIDs), last(user.GIDs)
		if p.network != nil {
			owner, err := ownerOf(p.network)
			if err != nil {
				return err
			}
			if owner != nil {
				defer owner.Close() //nolint:errcheck // the process has joined it by then
				c.User = owner
			}
		}
		if c.User == nil {
			c.Map = &nsholder.Mappings{UIDs: user.UIDs, GIDs: user.GIDs}
		}
	}
	var err error
	if p.holder, err = nsholder.Start(ctx, c, p.thread, p.reaper); err != nil {
		return err
	}
	if c.User == nil {
		return nil
	}
	return p.config.User.checkProcess(p.holder.Pid())
}

// furnish sets up what is in the namespaces.
func (p *Pod) furnish() error {
	var names []string
	if p.config.Network == ModePod {
		names = append(names, "net", "uts")
	}
	if p.config.IPC == ModePod {
		names = append(names, "ipc")
	}
	loopback := p.makes()&unix.CLONE_NEWNET != 0
	if len(p.config.Sysctls) == 0 && !loopback {
		return nil
	}
	return inNamespaces(p.Pid(), names, func() error {
		if loopback {
			if err := netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo"}}); err != nil {
				return fmt.Errorf("set interface lo up: %w", err)
			}
		}
		root, _ := p.config.User.root()
		return writeSysctls(p.config.Sysctls, root)
	})
}

// leave undoes Start, whichever part was done.
func (p *Pod) leave() error {
	if p.holder != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if err := p.holder.Kill(ctx); err != nil {
			return err
		}
	}
	if !p.onThread {
		return nil
	}
	host, err := hostNamespaces()
	if err != nil {
		return err
	}
	defer host.close()
	err = p.thread.Do(context.Background(), host.rejoin)
	if errdefs.IsUnavailable(err) {
		err = nil // the process ends, and its namespaces with it
	}
	p.onThread = err != nil
	return err
}

// Pid is that of the process that holds the namespaces, once the pod is started: the shim's, or a child's.
func (p *Pod) Pid() int {
	if p.holder != nil {
		return p.holder.Pid()
	}
	return os.Getpid()
}

// Exited is closed when the process that holds the namespaces has died, which the shim has never. It is asked of a pod
// that was started.
func (p *Pod) Exited() <-chan struct{} {
	if p.holder != nil {
		return p.holder.Exited()
	}
	return nil
}

// Exit is how that process ended: its exit code, or 128 and the signal. It is asked after Exited is closed.
func (p *Pod) Exit() (status int, at time.Time) {
	if p.holder != nil {
		return p.holder.Exit()
	}
	return 0, time.Time{}
}

// CgroupPath is the cgroup of the pod: the path from the root of a hierarchy, or "".
func (p *Pod) CgroupPath() string { return p.cgroupPath }

// Close undoes Start and Create. Namespaces that containers still use live as long as those. It can be called again, and
// has to be for cgroups that containers were still in.
func (p *Pod) Close() error {
	left, err := removeMade(p.bundle, p.madeCgroups)
	p.madeCgroups = left
	err = errors.Join(p.leave(), removeFiles(p.bundle), err)
	p.closeNetwork()
	return err
}

func (p *Pod) closeNetwork() {
	if p.network != nil {
		_ = p.network.Close() // only its namespace counts; closed already is as good
	}
}

// Remove is Close for a pod whose shim is dead, and its namespaces with it, from what is on disk.
func Remove(bundle string) error {
	made, err := readMade(bundle)
	if err == nil {
		_, err = removeMade(bundle, made)
	}
	return errors.Join(removeFiles(bundle), err)
}
