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
)

// bounds limit how long a logging binary is waited for.
type bounds struct {
	ready time.Duration // until it says that it is ready
	leave time.Duration // from Close until SIGTERM
	term  time.Duration // from SIGTERM until SIGKILL
}

// logger is the logging binary of one process (containerd docs and core/runtime/v2/logging). It reads stdout as
// descriptor 3 and stderr as 4, and signals on 5 that it is ready. The output is copied into these: the process neither
// dies nor blocks when the binary has exited or closed one of the two, and a terminal works in the same way.
type logger struct {
	cmd    *exec.Cmd
	bounds bounds
	inputs [2]*loggerInput // of stdout and stderr
	late   atomic.Bool     // it has used up its time to read
	exited chan struct{}   // closed once, when the binary has been waited for
}

// loggerInput is the sink of one stream.
type loggerInput struct {
	*pipeEnd
	exited <-chan struct{} // of the logger
}

// end closes the stream and waits for the binary, which is still reading.
func (i *loggerInput) end(ctx context.Context) error {
	_ = i.Close() // a pipe has no late errors
	select {
	case <-i.exited:
	case <-ctx.Done():
	}
	return nil
}

// startLogger runs the binary and waits until it is ready. After an error nothing is left of it, unless SIGKILL fails
// to end it.
func startLogger(ctx context.Context, l location, c Config) (_ *logger, err error) {
	if c.Host == nil {
		return nil, fmt.Errorf("scheme %q is not served here: %w", l.scheme, errdefs.ErrNotImplemented)
	}
	g := &logger{cmd: exec.Command(l.path, l.args...), bounds: c.Host.bounds, exited: make(chan struct{})}
	// Its environment has nothing else, as with the runc shim (process/io_util.go, NewBinaryCmd).
	g.cmd.Env = []string{"CONTAINER_ID=" + c.ID, "CONTAINER_NAMESPACE=" + c.Host.Namespace}
	var ours [3]*pipeEnd
	defer func() {
		for _, f := range g.cmd.ExtraFiles {
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
		g.cmd.ExtraFiles = append(g.cmd.ExtraFiles, theirs)
	}
	for i, name := range outputNames {
		ours[i].name = fmt.Sprintf("%s of logging binary %q", name, l.path)
		g.inputs[i] = &loggerInput{ours[i], g.exited}
	}
	if err := g.start(c.Host.Children); err != nil {
		return nil, err
	}
	_ = g.cmd.ExtraFiles[2].Close() // if ours stayed open, the end of the pipe would not show
	if err := g.awaitReady(ctx, ours[2], l.scheme == "binary-v2"); err != nil {
		return nil, fmt.Errorf("logging binary %q: %w", l.path, errors.Join(err, g.kill()))
	}
	return g, nil
}

// start starts the binary. The reaper is suspended until it knows that the child has a waiter. cmd.Start itself waits
// for a child that finds no program to run.
func (g *logger) start(children Children) error {
	defer children.Suspend()()
	if err := g.cmd.Start(); err != nil {
		return fmt.Errorf("start logging binary: %w", unusable(err))
	}
	children.Register(g.cmd.Process.Pid)
	go func() { // ends with the binary, for which stop and kill wait
		defer close(g.exited)
		_ = g.cmd.Wait() // what matters is in ProcessState
		children.Unregister(g.cmd.Process.Pid)
	}()
	return nil
}

// awaitReady waits for a byte or for the end of the pipe. With confirm the end does not count as ready.
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
	// If the process has ended, its status was set before its files were closed, so this does not change it.
	if err := g.kill(); err != nil {
		return err
	}
	return fmt.Errorf("closed descriptor 5 without the byte that says it is ready (%v): %w",
		g.cmd.ProcessState, errdefs.ErrFailedPrecondition)
}

// stop makes the binary, whose inputs are closed, exit: by SIGTERM after bounds.leave, or immediately if it did not
// read what there was while Drain waited, and by SIGKILL after bounds.term. The error says what may be lost.
func (g *logger) stop() error {
	leave := g.bounds.leave
	if g.late.Load() {
		leave = 0
	}
	if !g.hasExited(leave) {
		_ = g.cmd.Process.Signal(unix.SIGTERM) // it may be dead already
		if !g.hasExited(g.bounds.term) {
			if err := g.kill(); err != nil {
				return err
			}
		}
	}
	if status, ok := g.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return fmt.Errorf("logging binary %q was ended by %v: what it had not written is lost: %w",
			g.cmd.Path, status.Signal(), errdefs.ErrDataLoss)
	}
	return nil
}

// kill returns an error if SIGKILL does not end the binary in time, for example because the binary waits for a file
// system that does not answer.
func (g *logger) kill() error {
	_ = g.cmd.Process.Kill() // it may be dead already
	if !g.hasExited(closeTimeout) {
		return fmt.Errorf("logging binary %q (process %d) does not end by SIGKILL, and is left behind: %w",
			g.cmd.Path, g.cmd.Process.Pid, errdefs.ErrAborted)
	}
	return nil
}

// hasExited waits for the exit of the binary.
func (g *logger) hasExited(timeout time.Duration) bool {
	select {
	case <-g.exited:
		return true
	case <-time.After(timeout):
		return false
	}
}
