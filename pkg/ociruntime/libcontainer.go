// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/ociruntime/systemd"
	"sandbox.internal/shim/pkg/ociruntime/translate"
	"sandbox.internal/shim/pkg/reaper"
	"sandbox.internal/shim/pkg/stdio"
)

// libcontainerStarter starts processes with libcontainer.
type libcontainerStarter struct{ reaper *reaper.Reaper }

func (l libcontainerStarter) startInit(
	ctx context.Context, c *container, p *libcontainer.Process, s *stdio.Streams,
) (*handle, gate, error) {
	init, err := l.setUp(ctx, c, c.lc, p, s)
	if err != nil {
		return nil, nil, err
	}
	c.cgroup = nil
	if err = c.useCgroupOfState(); err != nil { // without root libcontainer leaves out hierarchies
		init.kill()
		return nil, nil, err
	}
	if config := c.lc.Config(); config.RootlessCgroups && !c.cgroup.Exists() {
		// On v2 libcontainer names even a cgroup that it was not allowed to make.
		c.cgroup = cgroup.New(nil)
	}
	return init, fifo{c}, nil
}

// startExec implements starter. It starts one exec at a time in a container: it kills all stages when ctx ends.
func (l libcontainerStarter) startExec(
	ctx context.Context, c *container, p *libcontainer.Process, s *stdio.Streams, group *execGroup,
) (*handle, error) {
	select {
	case c.libcontainerExec <- struct{}{}:
		defer func() { <-c.libcontainerExec }()
	case <-ctx.Done():
		return nil, fmt.Errorf("interrupted while libcontainer starts another exec: %w", context.Cause(ctx))
	}
	if group != nil {
		p.SubCgroupPaths = group.subPaths
	}
	lc, err := c.load()
	if err != nil {
		return nil, err
	}
	// On v2 libcontainer lets Go make the process in the cgroup. Until that runs a program, Go's runtime runs nothing.
	if err := c.cgroup.AwaitThaw(ctx); err != nil {
		return nil, err
	}
	h, err := l.setUp(ctx, c, lc, p, s)
	if err != nil || group == nil {
		return h, err
	}
	if err := group.limitProcesses(); err != nil { // not before: libcontainer has threads
		h.kill()
		return nil, err
	}
	return h, nil
}

// setUp starts p in lc, which is c, and passes p its streams. If it fails, p has exited and been reaped.
func (l libcontainerStarter) setUp(
	ctx context.Context, c *container, lc *libcontainer.Container, p *libcontainer.Process, s *stdio.Streams,
) (*handle, error) {
	config := lc.Config()
	if !p.Init && config.Cgroups.Systemd {
		defer systemd.Connected()()
		// If the container made cgroups of its own, libcontainer has systemd move p.
		if err := systemd.Await(ctx); err != nil {
			return nil, err
		}
	}
	defer l.reaper.Suspend()()
	p.Rlimits = translate.Rlimits(p.Rlimits, config.Rlimits)
	return l.begin(ctx, p, s, l.interruption(c, p.Init), func() error { return lc.Start(p) })
}

// begin calls start, which starts p, and passes p its streams. If the streams cannot be passed, p is killed and reaped.
// The caller must have suspended the reaper.
//
// From the end of ctx until start returns, begin keeps calling kill, so that libcontainer gives up: a process may join
// the cgroup late. A hook in the runtime's namespaces is not in the cgroup; its own timeout bounds it.
func (l libcontainerStarter) begin(
	ctx context.Context, p *libcontainer.Process, s *stdio.Streams, kill func(), start func() error,
) (*handle, error) {
	const interval = 5 * time.Millisecond
	started := make(chan struct{})
	var killing sync.WaitGroup
	killing.Go(func() {
		for {
			select {
			case <-ctx.Done():
				kill()
				<-time.After(interval)
			case <-started:
				return
			}
		}
	})
	err := start()
	close(started)
	killing.Wait()
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("interrupted: %w: %w", context.Cause(ctx), err)
	case err != nil:
		return nil, startError(err, p.Args)
	}
	pid, err := p.Pid()
	if err != nil {
		return nil, fmt.Errorf("pid of the started process: %w", err)
	}
	h := newHandle(l.reaper, p, pid)
	return h, h.started(ctx, s)
}

// interruption kills what libcontainer sets up in the cgroup of c: for init all that is there, for an exec stages.
func (l libcontainerStarter) interruption(c *container, isInit bool) (kill func()) {
	group, match := c.cgroup, l.isStage
	if isInit {
		match = func(int) bool { return true }
	}
	return func() { _ = group.Signal(unix.SIGKILL, match) } // it is tried again
}

// isStage reports whether a process is a stage of libcontainer that is about to become an exec's program: a child of
// this process that nobody waits for yet, with the name that nsenter/nsexec.c gives it (proc_pid_stat(5)).
func (l libcontainerStarter) isStage(pid int) bool {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	name, rest, _ := strings.Cut(string(stat), ") ")
	var state string
	var parent int
	_, _ = fmt.Sscan(rest, &state, &parent)
	return strings.Contains(name, "(runc:[") && parent == os.Getpid() && !l.reaper.Registered(pid)
}

// fifo is the gate of an init that libcontainer has started. It opens when init is about to run its program.
type fifo struct{ container *container }

// open opens the fifo at which init waits. libcontainer's Exec does the same, but its goroutine and thread never end if
// init is dead. Init writes one byte just before it runs the program (runc libcontainer/standard_init_linux.go).
func (f fifo) open() error {
	init, err := f.container.init.pidfd() // before the gate opens: its program may end at once, and be reaped
	if err != nil {
		return err
	}
	defer init.Close() //nolint:errcheck // nothing was written
	path := f.container.fifo()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	return awaitByte(fd, int(init.Fd()))
}

func (fifo) close() {}

// awaitByte waits until fifo has a byte to read, or the process of pidfd has died without writing one.
func awaitByte(fifo, pidfd int) error {
	for {
		fds := []unix.PollFd{{Fd: int32(fifo), Events: unix.POLLIN}, {Fd: int32(pidfd), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && err != unix.EINTR {
			return os.NewSyscallError("poll", err)
		}
		if fds[1].Revents != 0 {
			_, _ = unix.Poll(fds[:1], 0) // it may have written and died after poll checked the fifo
		}
		switch {
		case fds[0].Revents&unix.POLLIN != 0:
			return nil
		case fds[1].Revents != 0:
			return fmt.Errorf("init is dead: %w", errdefs.ErrFailedPrecondition)
		}
	}
}
