// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/launcher/native"
)

// bounds limit the waits for a logging binary.
type bounds struct {
	ready time.Duration // until it says that it is ready
	leave time.Duration // from Close until SIGTERM
	term  time.Duration // from SIGTERM until SIGKILL
}

// logger is the logging binary of one process (containerd docs and core/runtime/v2/logging). It reads stdout as
// descriptor 3 and stderr as 4, and signals on 5 that it is ready. The output is copied, so that the process neither
// dies nor blocks with the binary, and may have a terminal.
type logger struct {
	path    string
	process *os.Process
	bounds  bounds
	inputs  [2]*loggerInput  // of stdout and stderr
	late    atomic.Bool      // it has used up its time to read
	exited  chan struct{}    // closed once, when the binary has been waited for
	state   *os.ProcessState // how; set before, nil if a former program has waited for it
	reaped  atomic.Bool      // set before
	killed  syscall.Signal   // that ended it, or 0; set before
}

type loggerInput struct {
	*pipeEnd
	exited <-chan struct{} // of the logger
}

// end closes the stream and waits for the binary.
func (i *loggerInput) end(ctx context.Context) error {
	_ = i.Close() // a pipe has no late errors
	i.pause.leave()
	defer i.pause.enter()
	select {
	case <-i.exited:
	case <-ctx.Done():
	}
	return nil
}

// startLogger runs the binary and waits until it is ready. An error leaves nothing, unless SIGKILL fails.
func startLogger(ctx context.Context, l location, c Config) (_ *logger, err error) {
	if c.Host == nil {
		return nil, fmt.Errorf("scheme %q is not served here: %w", l.scheme, errdefs.ErrNotImplemented)
	}
	g := &logger{path: l.path, bounds: c.Host.bounds, exited: make(chan struct{})}
	cmd := exec.Command(l.path, l.args...)
	// The environment is the runc shim's (process/io_util.go, NewBinaryCmd).
	cmd.Env = []string{"CONTAINER_ID=" + c.ID, "CONTAINER_NAMESPACE=" + c.Host.Namespace}
	var ours [3]*pipeEnd
	defer func() {
		for _, f := range cmd.ExtraFiles {
			_ = f.Close() // the child has its own
		}
		_ = ours[2].Close() // nothing more is expected from it
		if err != nil {
			_, _ = ours[0].Close(), ours[1].Close() // nothing was written to them
		}
	}()
	for i, index := range [...]int{0, 0, 1} { // the last one carries the ready sign
		var theirs *os.File
		if theirs, ours[i], err = newPipe(ownOwner(), index); err != nil { // the binary is no process of the container
			return nil, err
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, theirs)
	}
	for i, name := range outputNames {
		ours[i].name = fmt.Sprintf("%s of logging binary %q", name, l.path)
		g.inputs[i] = &loggerInput{ours[i], g.exited}
	}
	if err := g.start(cmd, c.Host.Children); err != nil {
		return nil, err
	}
	_ = cmd.ExtraFiles[2].Close() // if ours stayed open, the end of the pipe would not show
	if err := g.awaitReady(ctx, ours[2], l.scheme == "binary-v2"); err != nil {
		return nil, fmt.Errorf("logging binary %q: %w", l.path, errors.Join(err, g.kill()))
	}
	return g, nil
}

// start starts the binary, with the reaper suspended until the child has a waiter.
func (g *logger) start(cmd *exec.Cmd, children Children) error {
	defer children.Suspend()()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start logging binary: %w", unusable(err))
	}
	g.process = cmd.Process
	children.Register(g.process.Pid)
	go g.await(children) // ends with the binary, for which stop and kill wait
	return nil
}

func (g *logger) await(children Children) {
	defer close(g.exited)
	_ = native.AwaitDeath(context.Background(), g.process.Pid) // without it, Wait takes a thread
	children.Reap(func() {
		g.state, _ = g.process.Wait() // it is a child
		if status, ok := g.state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			g.killed = status.Signal()
		}
		g.reaped.Store(true)
	})
	children.Unregister(g.process.Pid)
}

// awaitReady waits for a byte or, without confirm, for the end of the pipe.
func (g *logger) awaitReady(ctx context.Context, ready *pipeEnd, confirm bool) error {
	ctx, cancel := context.WithTimeout(ctx, g.bounds.ready)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = ready.file.SetReadDeadline(longAgo) })() // ends the read below
	_, err := ready.file.Read(make([]byte, 1))
	switch {
	case err == nil, errors.Is(err, io.EOF) && !confirm:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("not ready: no sign on descriptor 5: %w", context.Cause(ctx))
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("wait for its ready sign: %w", err)
	}
	// The kill does not change the status of a binary that closed its files by its end.
	if err := g.kill(); err != nil {
		return err
	}
	return fmt.Errorf("closed descriptor 5 without the byte that says it is ready (%v): %w",
		g.state, errdefs.ErrFailedPrecondition)
}

// stop ends the binary, whose inputs are closed: by SIGTERM after bounds.leave, or immediately if Drain's time was not
// enough, and by SIGKILL after bounds.term. The error says what may be lost.
func (g *logger) stop() error {
	leave := g.bounds.leave
	if g.late.Load() {
		leave = 0
	}
	if !g.hasExited(leave) {
		_ = g.process.Signal(unix.SIGTERM) // it may be dead already
		if !g.hasExited(g.bounds.term) {
			if err := g.kill(); err != nil {
				return err
			}
		}
	}
	if g.killed != 0 {
		return fmt.Errorf("logging binary %q was ended by %v: what it had not written is lost: %w",
			g.path, g.killed, errdefs.ErrDataLoss)
	}
	return nil
}

// kill returns an error if SIGKILL does not end the binary in time, as in a file system that does not answer.
func (g *logger) kill() error {
	_ = g.process.Kill() // it may be dead already
	if !g.hasExited(closeTimeout) {
		return fmt.Errorf("logging binary %q (process %d) does not end by SIGKILL, and is left behind: %w",
			g.path, g.process.Pid, errdefs.ErrAborted)
	}
	return nil
}

func (g *logger) hasExited(timeout time.Duration) bool {
	select {
	case <-g.exited:
		return true
	case <-time.After(timeout):
		return false
	}
}
