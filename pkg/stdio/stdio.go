// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package stdio carries the standard streams of one process, a container's init or an exec, between the process and
// what containerd named for it: fifos, files or a logging binary. The process gets pipes or a terminal. Fifos that
// containerd names are waited for with github.com/containerd/fifo; bounded draining, and waiting that costs no thread,
// are done here.
//
// # Goroutines
//
// A [Streams] owns one goroutine per stream that is copied. They start in [Streams.Started]. Each ends with its source,
// or in [Streams.Close], which joins them all within a bound. A reader that does not read blocks the goroutine of its
// own stream and nothing else. An idle stream costs neither CPU nor a buffer: its goroutine waits in the runtime's
// poller. An output that has ended with bytes that nobody has read blocks a thread, in package fifo. A logging binary
// has three more goroutines, one of them os/exec's, which end with it; Close waits for them.
//
// The kernel copies from the memory of the process that writes to a pipe, and into that of the one that reads, with the
// pipe's lock held (fs/pipe.c). If that memory is not available, as with userfaultfd or a mapped file of FUSE or of an
// NFS server that hangs, every read, write and FIONREAD of the pipe waits uninterruptibly, until that process is killed
// or gets its memory. So each call that may wait for a pipe runs in a goroutine that may be left behind until then: the
// copier, a count of what is in the pipe (copier.produced), of which one at a time is in the kernel, and Close. Mark,
// Drain, Written and Close do not wait for these beyond a bound.
//
// # Locks
//
// Streams.mu guards the fields of a Streams, and copier.mu the counters of one copier. Neither is held across anything
// that blocks, and the two are not held together. copier.reading is held during calls that may wait for a pipe, only by
// goroutines that may be left behind; copier.mu is taken with it held.
//
// # Promises
//
//   - What the process wrote before it exited is delivered as long as somebody reads. A reader may go away and another
//     come: both ends of an output fifo are held open here, so what is written meanwhile waits in the fifo.
//
//   - The reader of an output sees its end as soon as the last process that holds the other end of the pipe has closed
//     it, not only at Close. containerd's client waits for that end before it calls Delete (containerd client/task.go,
//     Delete). A terminal can be opened again as long as the process lives, so its end shows once Drain was called,
//     whoever else has it open then.
//
//   - If Config.KeepUnread sets a bound, output without a reader is abandoned then; what processes that were left
//     behind write afterwards is dropped, and they neither block nor die because of that.
//
//   - A process neither dies nor blocks because its logging binary did. What it writes then is lost, which is logged
//     once.
//
//   - No child inherits a descriptor made here, except for the files that the caller passes to it.
//
//   - With a terminal, stderr is not opened unless Config.SplitStderr is set and Stderr names something of its own.
//
// # Not in this package
//
// Attaching the terminal to the process's descriptors is the runtime's task. The launcher can give it a separate
// stderr; libcontainer puts the terminal on 0, 1 and 2 (libcontainer/console_linux.go, dupStdio), and Started then
// closes what was opened for stderr.
package stdio

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/osthread"
)

// Config names the streams as containerd's CreateTaskRequest and ExecProcessRequest do. An empty name stands for no
// stream: the process reads and writes /dev/null.
type Config struct {
	Stdin    string
	Stdout   string
	Stderr   string
	Terminal bool // the process gets one terminal instead of three pipes
	// SplitStderr lets a process with a terminal have a stderr of its own, if Stderr names one: a fifo that exists, or
	// anything other than what Stdout names. containerd's client names a stderr for every terminal, and makes no fifo
	// for it (pkg/cio, openFifos).
	SplitStderr bool
	// KeepUnread is how long after the call of Drain output waits for an absent reader. 0: until Close.
	KeepUnread time.Duration
	// MaxOutput is how many bytes of each output are passed on; what follows is dropped. 0: all.
	MaxOutput int64

	// ID is CONTAINER_ID of a logging binary: the id of the container or of the exec, as with the runc shim.
	ID string
	// Host serves logging binaries. Without it these are errdefs.ErrNotImplemented.
	Host *Host

	readersLater bool // for tests whose readers come after Open, which does not wait for them
}

// Host is what the streams of all processes of a shim share. It does not change after NewHost.
type Host struct {
	Namespace string   // containerd's
	Children  Children // with which logging binaries are registered
	Umask     int      // for logs: log files, and what logging binaries make
	bounds    bounds   // of logging binaries
}

// NewHost returns a Host with the usual umask.
func NewHost(namespace string, children Children) *Host {
	return &Host{
		Namespace: namespace, Children: children, Umask: usualUmask,
		// The runc shim (containerd-shim-runc-v2/process/io.go, binaryIO) waits for the ready sign without a bound. At
		// Delete it sends SIGTERM immediately, which cuts off a binary that is still reading, and SIGKILL 12 s later,
		// more than the 10 s that CRI gives a whole Delete. Here a binary has more time to read and less to exit.
		bounds: bounds{ready: 10 * time.Second, leave: 2 * time.Second, term: 2 * time.Second},
	}
}

const usualUmask = 0o022 // pkg/bootstrap gives it to the shim

// withUmask calls f with the umask for logs, which may be a stricter one than the shim's. h may be nil.
func (h *Host) withUmask(f func() error) error {
	if h == nil || h.Umask == usualUmask {
		return f()
	}
	return osthread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		unix.Umask(h.Umask)
		return f()
	})
}

// Children keeps the reaper of orphans away from a child that has a waiter. reaper.Reaper implements and documents it.
type Children interface {
	Suspend() (resume func())
	Register(pid int) bool
	Unregister(pid int)
}

// Streams are the standard streams of one process. Its methods may be called concurrently.
type Streams struct {
	logger  *log.Entry
	kept    context.Context //nolint:containedctx // unread output is kept until then; Close and giveUpUnread end it
	release context.CancelCauseFunc
	copying sync.WaitGroup

	// These are set by Open and not changed afterwards, except for the terminal's master. What is nil does not exist.
	child    [3]*os.File
	terminal *terminal
	input    *input      // what containerd calls stdin
	inPipe   *pipeEnd    // our end of the process's stdin
	outputs  [2]sink     // what containerd calls stdout and stderr
	binary   *logger     // what both outputs lead to
	outPipes [2]*pipeEnd // our ends of the process's stdout and stderr; the first may be a master, which Started sets

	keepUnread time.Duration
	maxOutput  int64

	mu sync.Mutex
	// +checklocks:mu
	started bool
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	copiers []*copier // of the outputs

	resizing chan struct{} // holds one while the kernel is asked to set the size of the terminal

	joined chan struct{} // set by Close; closed once, when all copying and closing has ended
}

var outputNames = [...]string{"stdout", "stderr"}

// Open opens every stream of c, or none. It waits for the reader of an output fifo for a second at most, for a logging
// binary to be ready for ten seconds at most, and for neither after ctx ends.
//
// The pipes that the process gets belong to o (containerd.runc.v1.Options, io_uid and io_gid), so that it may open
// /proc/self/fd/1 again in a user namespace.
//
// The error is errdefs.ErrInvalidArgument for a name that is not understood, and errdefs.ErrFailedPrecondition for a
// fifo or a program that does not exist or is of the wrong kind.
func Open(ctx context.Context, c Config, o idmap.Owner) (_ *Streams, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := &Streams{
		logger: log.G(ctx), keepUnread: c.KeepUnread, maxOutput: c.MaxOutput,
		resizing: make(chan struct{}, 1),
	}
	s.kept, s.release = context.WithCancelCause(context.Background())
	defer func() {
		if err != nil {
			_ = s.Close() // the first error counts
		}
	}()
	if c.Stdin != "" {
		if s.input, err = openInput(c.Stdin); err != nil {
			return nil, fmt.Errorf("stdin %q: %w", c.Stdin, err)
		}
	}
	if err = s.openOutputs(ctx, c); err != nil {
		return nil, err
	}
	if !c.Terminal {
		return s, s.openChild(o)
	}
	if s.outputs[1] != nil {
		if s.child[2], s.outPipes[1], err = newPipe(o, 1); err != nil {
			return nil, err
		}
	}
	s.terminal, err = newTerminal()
	return s, err
}

func (s *Streams) openOutputs(ctx context.Context, c Config) error {
	for i, uri := range [...]string{c.Stdout, c.Stderr} {
		if uri == "" || s.binary != nil || c.Terminal && i > 0 && (!c.SplitStderr || c.Stderr == c.Stdout) {
			continue
		}
		if err := s.openOutput(ctx, c, i, uri); err != nil {
			return fmt.Errorf("%s %q: %w", outputNames[i], uri, err)
		}
	}
	return nil
}

// openBinary starts a logging binary. It takes both outputs, whatever stderr names, as with the runc shim
// (process/io.go, createIO).
func (s *Streams) openBinary(ctx context.Context, l location, c Config) error {
	binary, err := startLogger(ctx, l, c, s.kept.Done())
	if err != nil {
		return err
	}
	s.binary, s.outputs[0] = binary, &binary.inputs[0]
	if c.Terminal {
		return binary.inputs[1].Close() // the binary sees the end of a stderr that does not exist
	}
	s.outputs[1] = &binary.inputs[1]
	return nil
}

func (s *Streams) openChild(o idmap.Owner) (err error) {
	if s.input == nil {
		s.child[0], err = null.open(unix.O_RDONLY)
	} else {
		s.child[0], s.inPipe, err = newPipe(o, 0)
	}
	if err != nil {
		return err
	}
	for i, out := range s.outputs {
		if out == nil {
			s.child[1+i], err = null.open(unix.O_WRONLY)
		} else {
			s.child[1+i], s.outPipes[i], err = newPipe(o, 1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Child returns what the process gets as descriptors 0, 1 and 2. Without a terminal none is nil; with one all are,
// except a separate stderr. They belong to the Streams, and are open until Started or Close.
func (s *Streams) Child() (stdin, stdout, stderr *os.File) {
	return s.child[0], s.child[1], s.child[2]
}

// ConsoleSocket returns the socket over which the OCI runtime sends the master of the terminal that it made (runc
// docs/terminals.md, detached mode), or nil without a terminal. It is open until Started or Close.
func (s *Streams) ConsoleSocket() *os.File {
	if s.terminal == nil {
		return nil
	}
	return s.terminal.peer
}

// closeTimeout bounds how long Close waits for a pipe whose lock somebody keeps.
const closeTimeout = time.Second

// Close stops the copying and releases everything. Output that was not delivered is lost: call Drain first. Each Close
// returns after the goroutines and the logging binary have ended, except for goroutines that wait for a pipe whose lock
// somebody keeps: they are left behind after closeTimeout, and release what they have when they can. The binary gets
// SIGTERM two seconds after Close, or immediately if it did not read what there was while Drain waited, and SIGKILL two
// seconds after that. A binary that does not exit even then is left behind, too.
func (s *Streams) Close() error {
	s.mu.Lock()
	var errs [4]error
	first := !s.closed
	if first {
		s.closed = true
		s.release(fmt.Errorf("the streams are closed: %w", errdefs.ErrAborted))
		// This wakes every goroutine that waits on one of the files, and waits for each that is inside a call.
		for i, stream := range [...][]io.Closer{
			{s.terminal},
			{s.child[0], s.input, s.inPipe},
			{s.child[1], s.outputs[0], s.outPipes[0]},
			{s.child[2], s.outputs[1], s.outPipes[1]},
		} {
			s.copying.Go(func() { errs[i] = closeAll(stream...) })
		}
		s.joined = make(chan struct{})
		go func() { // ends with those that it joins
			s.copying.Wait()
			close(s.joined)
		}()
	}
	s.mu.Unlock()
	var err error
	select {
	case <-s.joined:
		if first {
			err = errors.Join(errs[:]...)
		}
	case <-time.After(closeTimeout):
		s.logger.Warnf("standard streams are not released after %v: a process at the other end keeps a pipe locked, "+
			"or a file does not answer", closeTimeout)
	}
	if s.binary != nil {
		if ended := s.binary.await(); first {
			err = errors.Join(err, ended)
		}
	}
	return err
}

// closeAll closes what is still open of c. A file or a stream that is nil was never opened.
func closeAll(c ...io.Closer) error {
	var errs []error
	for _, c := range c {
		if c == nil {
			continue
		}
		err := c.Close()
		if err != nil && !errors.Is(err, os.ErrClosed) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrInvalid) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
