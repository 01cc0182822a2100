// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
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

// startInit implements starter.
func (l libcontainerStarter) startInit(
	ctx context.Context, c *container, p *libcontainer.Process, s *stdio.Streams,
) (*handle, gate, error) {
	init, err := l.setUp(ctx, c.lc, p, s)
	if err != nil {
		_, unborn := p.Pid()
		c.unforked = unborn != nil
		return nil, nil, err
	}
	g := &fifo{container: c, pid: init.pid}
	// Nothing waits for init yet, so the pid is still init's.
	if g.stage, err = statExe(init.pid); err == nil {
		err = c.useCgroupOfState() // without root libcontainer leaves out hierarchies
	}
	if err != nil {
		init.kill()
		return nil, nil, err
	}
	if config := c.lc.Config(); config.RootlessCgroups && !c.cgroup.Exists() {
		// On v2 libcontainer names even a cgroup that it was not allowed to make.
		c.cgroup = cgroup.New(nil)
		c.execGroups = &execGroups{parent: c.cgroup, limits: c.config.ExecLimits}
	}
	return init, g, nil
}

// startExec implements starter. It starts one exec at a time in a container: when ctx ends, the stages that it kills
// must be those of this exec.
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
	// libcontainer lets Go make the process in the cgroup, on v2. Until that has run a program, Go's runtime waits with
	// all that it could run, and no deadline counts.
	if err := c.cgroup.AwaitThaw(ctx); err != nil {
		return nil, err
	}
	h, err := l.setUp(ctx, lc, p, s)
	if err != nil || group == nil {
		return h, err
	}
	if err := group.limitProcesses(); err != nil { // not before: libcontainer has threads
		h.kill()
		return nil, err
	}
	return h, nil
}

// setUp starts p in lc, and passes p its streams. If ctx ends before p is set up, it kills p, or for init all in the
// container's cgroup, so that libcontainer gives up. If it fails, p has exited and been reaped.
func (l libcontainerStarter) setUp(
	ctx context.Context, lc *libcontainer.Container, p *libcontainer.Process, s *stdio.Streams,
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
	match := l.isStage
	if p.Init {
		match = anyProcess
	}
	kill := func() { killMembers(lc.ID(), config.Cgroups, match) }
	p.Rlimits = translate.Rlimits(p.Rlimits, config.Rlimits)
	return l.begin(ctx, p, s, kill, func() error { return lc.Start(p) })
}

// begin calls start, which starts p, and passes p its streams. From the end of ctx until start returns, it keeps
// calling kill. If the streams cannot be passed, p is killed and reaped. The caller must have suspended the reaper.
func (l libcontainerStarter) begin(
	ctx context.Context, p *libcontainer.Process, s *stdio.Streams, kill func(), start func() error,
) (*handle, error) {
	stop := interrupt(ctx, kill)
	err := start()
	stop()
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

// interrupt calls kill every few milliseconds from the end of ctx until stop is called, so that libcontainer gives up
// on setting a process up. It repeats, since a process may join the cgroup late. A hook in the runtime's namespaces is
// not in the cgroup; its own timeout bounds it (OCI runtime specification, config.md, POSIX-platform Hooks).
func interrupt(ctx context.Context, kill func()) (stop func()) {
	const interval = 5 * time.Millisecond
	stopped, done := make(chan struct{}), make(chan struct{})
	cancel := context.AfterFunc(ctx, func() { // ends when stop is called, which joins it
		defer close(done)
		for {
			kill()
			select {
			case <-time.After(interval):
			case <-stopped:
				return
			}
		}
	})
	return func() {
		close(stopped)
		if !cancel() {
			<-done
		}
	}
}

// killMembers kills the processes of a container's cgroup that match. It reads the cgroup, since libcontainer's lock is
// held by the call that is to be interrupted.
func killMembers(containerID string, config *cgroups.Cgroup, match func(pid int) bool) {
	m, err := manager.New(config)
	if err != nil {
		log.L.WithError(err).WithField("container", containerID).Warn("interrupt start")
		return
	}
	pids, _ := m.GetAllPids() // no cgroup yet: nothing to kill
	for _, pid := range pids {
		if match(pid) {
			_ = unix.Kill(pid, unix.SIGKILL) // it may be dead already
		}
	}
}

// anyProcess is for killMembers. Create has found no process in the cgroup.
func anyProcess(int) bool { return true }

// isStage reports whether a process is a stage of libcontainer that is about to become an exec's program: a child of
// this process that nobody waits for yet, with the name that nsenter/nsexec.c gives it. An adopted child has another
// name, unless it chose this one.
func (l libcontainerStarter) isStage(pid int) bool {
	name, parent, err := processName(pid)
	return err == nil && strings.Contains(name, "(runc:[") && parent == os.Getpid() && !l.reaper.Registered(pid)
}

// processName returns the name of a process and the id of its parent (proc_pid_stat(5)).
func processName(pid int) (name string, parent int, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0, err
	}
	end := bytes.LastIndexByte(stat, ')') + 1
	var state string
	_, err = fmt.Sscan(string(stat[end:]), &state, &parent)
	return string(stat[:end]), parent, err
}

// fifo is the gate of an init that libcontainer has started. It opens when init is about to run its program.
type fifo struct {
	container *container
	pid       int
	stage     exeFile     // what init runs until it runs the container's program
	opened    atomic.Bool // and nobody has seen init run its program yet
}

// open opens the fifo at which init waits. libcontainer's Exec does the same, but its goroutine and thread never end if
// init is dead. Init writes one byte just before it runs the program (runc libcontainer/standard_init_linux.go).
func (f *fifo) open() error {
	path := f.container.fifo()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	f.opened.Store(true)
	return awaitByte(fd, int(f.container.initFD.Fd()))
}

func (*fifo) close() {}

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

// How long a signal or an exec waits for init to run the container's program, and how often it looks. Usually init runs
// it immediately. StartContainer hooks run before it and may take any time, so with them the wait is short, and the
// signal goes to libcontainer's stage.
const (
	programTimeout     = time.Second
	programHookTimeout = 50 * time.Millisecond
	programPoll        = 200 * time.Microsecond
)

func (f *fifo) awaitProgram() {
	if !f.opened.Load() {
		return
	}
	timeout := programTimeout
	if h := f.container.config.Spec.Hooks; h != nil && len(h.StartContainer) > 0 {
		timeout = programHookTimeout
	}
	for end := time.Now().Add(timeout); time.Now().Before(end); <-time.After(programPoll) {
		if exe, err := statExe(f.pid); err != nil || exe != f.stage {
			f.opened.Store(false)
			return
		}
	}
}

// statExe identifies the file that a process runs. A container can give its program any name, but cannot run the sealed
// copy of this program that is the first stage of its init. The file system is not asked: it may be a FUSE file system
// that the container serves, or fails to serve.
func statExe(pid int) (exeFile, error) {
	var s unix.Statx_t
	path := fmt.Sprintf("/proc/%d/exe", pid)
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &s); err != nil {
		return exeFile{}, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	return exeFile{unix.Mkdev(s.Dev_major, s.Dev_minor), s.Ino}, nil
}

// exeFile identifies a file.
type exeFile struct{ dev, ino uint64 }
