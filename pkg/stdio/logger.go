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
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// bounds limit how long a logging binary is waited for.
type bounds struct {
	ready time.Duration // until it says that it is ready
	leave time.Duration // from Close until SIGTERM
	term  time.Duration // from SIGTERM until SIGKILL
}

// logger is the logging binary of one process (containerd docs and core/runtime/v2/logging). It reads stdout as
// descriptor 3 and stderr as 4, and signals on 5 that it is ready.
//
// It does not get the process's own pipes, but others into which the output is copied. So the process neither dies nor
// blocks when the binary has exited or closed one of the two, and a terminal works in the same way.
//
// It owns two goroutines, in work: one waits for the binary, one makes it exit. Both inputs must be closed for that.
type logger struct {
	cmd      *exec.Cmd
	children Children
	log      *log.Entry
	bounds   bounds
	inputs   [2]loggerInput  // of stdout and stderr
	open     atomic.Int32    // inputs that are not closed yet
	ending   chan struct{}   // closed once, when the last input is
	kept     <-chan struct{} // closed when nobody waits any longer for what the binary still has to read or write
	expired  <-chan struct{}
	expire   func()        // the binary has used up its time to read: it gets SIGTERM as soon as its input ends
	end      func()        // sends SIGTERM, and SIGKILL after bounds.term
	exited   chan struct{} // closed once, when the binary has been waited for
	work     sync.WaitGroup
}

// loggerInput is the sink of one stream.
type loggerInput struct {
	*pipeEnd
	logger *logger
	closed sync.Once
}

// startLogger runs the binary and waits until it is ready. After an error nothing is left of it, unless SIGKILL fails
// to end it. kept is for [logger.kept].
func startLogger(ctx context.Context, l location, c Config, kept <-chan struct{}) (_ *logger, err error) {
	if c.Host == nil {
		return nil, fmt.Errorf("scheme %q is not served here: %w", l.scheme, errdefs.ErrNotImplemented)
	}
	g := &logger{
		children: c.Host.Children, log: log.G(ctx).WithField("logger", l.path), bounds: c.Host.bounds,
		kept: kept, ending: make(chan struct{}), exited: make(chan struct{}),
	}
	expired, expire := context.WithCancel(context.Background())
	g.expired, g.expire = expired.Done(), expire
	life, end := context.WithCancel(context.Background())
	g.end = end
	g.cmd = exec.CommandContext(life, l.path, l.args...)
	g.cmd.Cancel = func() error { return g.cmd.Process.Signal(unix.SIGTERM) }
	g.cmd.WaitDelay = g.bounds.term
	// Its environment has nothing else, as with the runc shim (process/io_util.go, NewBinaryCmd).
	g.cmd.Env = []string{"CONTAINER_ID=" + c.ID, "CONTAINER_NAMESPACE=" + c.Host.Namespace}
	var ours [3]*pipeEnd
	defer func() {
		for _, f := range g.cmd.ExtraFiles {
			_ = f.Close() // the child has its own
		}
		_ = ours[2].Close() // nothing more is expected from it
		if err != nil {
			_ = closeAll(ours[0], ours[1]) // nothing was written to them
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
		g.inputs[i].pipeEnd, g.inputs[i].logger = ours[i], g
	}
	if err := g.start(c.Host); err != nil {
		return nil, err
	}
	_ = g.cmd.ExtraFiles[2].Close() // if ours stayed open, the end of the pipe would not show
	if err := g.awaitReady(ctx, ours[2], l.scheme == "binary-v2"); err != nil {
		return nil, fmt.Errorf("logging binary %q: %w", l.path, errors.Join(err, g.kill()))
	}
	g.work.Go(g.supervise) // ends with the binary
	return g, nil
}

// start starts the binary. The reaper is suspended until it knows that the child has a waiter. cmd.Start itself waits
// for a child that finds no program to run.
func (g *logger) start(host *Host) error {
	defer g.children.Suspend()()
	if err := host.withUmask(g.cmd.Start); err != nil {
		return fmt.Errorf("start logging binary: %w", unusable(err))
	}
	g.children.Register(g.cmd.Process.Pid)
	g.open.Store(2)
	g.work.Go(g.wait) // ends with the binary
	return nil
}

func (g *logger) wait() {
	defer close(g.exited)
	_ = g.cmd.Wait() // what matters is in ProcessState
	g.end()
	g.children.Unregister(g.cmd.Process.Pid)
}

// awaitReady waits for a byte or for the end of the pipe. With confirm the end does not count as ready.
func (g *logger) awaitReady(ctx context.Context, ready *pipeEnd, confirm bool) error {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, g.bounds.ready)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = ready.file.SetReadDeadline(time.Unix(1, 0)) })() // ends the read below
	_, err := ready.file.Read(make([]byte, 1))
	switch {
	case err == nil, errors.Is(err, io.EOF) && !confirm:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("not ready after %v: no sign on descriptor 5: %w",
			time.Since(start).Round(time.Millisecond), context.Cause(ctx))
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

// Close ends this stream for the binary, which gets its signals even if the closing hangs.
func (i *loggerInput) Close() error {
	i.closed.Do(func() {
		if i.logger.open.Add(-1) == 0 {
			close(i.logger.ending)
		}
	})
	return i.pipeEnd.Close()
}

// end closes the stream. The last of the two waits for the binary, which is still reading.
func (i *loggerInput) end(ctx context.Context) error {
	_ = i.Close() // a pipe has no late errors
	if i.logger.open.Load() > 0 {
		return nil
	}
	select {
	case <-i.logger.exited:
	case <-ctx.Done():
	}
	return nil
}

// supervise waits until the binary has no more input, and then makes it exit.
func (g *logger) supervise() {
	select {
	case <-g.ending:
	case <-g.exited:
		g.log.Errorf("logging binary ended before its input: %v; what the process writes from now on is lost",
			g.cmd.ProcessState)
		return
	}
	select {
	case <-g.exited:
		return
	case <-g.expired:
	case <-g.kept:
		select {
		case <-g.exited:
			return
		case <-g.expired:
		case <-time.After(g.bounds.leave):
		}
	}
	g.log.Warnf("logging binary goes on after the end of its input: sending SIGTERM, and SIGKILL after %v; "+
		"output that it has not read by then is lost", g.bounds.term)
	g.end()
}

// kill kills a binary that is not supervised yet. It returns an error if SIGKILL does not end the binary in time, for
// example because that waits for a file system that does not answer.
func (g *logger) kill() error {
	_ = g.cmd.Process.Kill() // it may be dead already
	return g.awaitExit(closeTimeout)
}

// await returns when the binary has exited. It is called after Close, which bounds the binary's time. An error means
// that what the process wrote may be lost.
func (g *logger) await() error {
	timeout := g.bounds.leave + g.bounds.term + closeTimeout
	select {
	case <-g.expired:
		timeout -= g.bounds.leave
	default:
	}
	if err := g.awaitExit(timeout); err != nil {
		return err
	}
	if status, ok := g.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return fmt.Errorf("logging binary %q was ended by %v: what it had not written is lost: %w",
			g.cmd.Path, status.Signal(), errdefs.ErrDataLoss)
	}
	return nil
}

// awaitExit returns when the binary and the goroutines have ended. After an error the goroutines continue until the
// kernel ends the binary.
func (g *logger) awaitExit(timeout time.Duration) error {
	select {
	case <-g.exited:
		g.work.Wait()
		return nil
	case <-time.After(timeout):
		return fmt.Errorf("logging binary %q (process %d) does not end by SIGKILL, and is left behind: %w",
			g.cmd.Path, g.cmd.Process.Pid, errdefs.ErrAborted)
	}
}
