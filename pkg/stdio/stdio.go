// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package stdio carries the standard streams of one process, a container's init or an exec, between the process and
// what containerd named for it: fifos, files or a logging binary. The process gets pipes or a terminal.
//
// A [Streams] has one goroutine for each stream that is copied. It ends with its source, or in [Streams.Close]. While
// idle it waits in the runtime's poller and holds no buffer. Streams.mu is not held across anything that blocks. A
// process can keep the lock of its pipe, by a write from memory that never becomes available (userfaultfd(2), FUSE;
// fs/pipe.c). Every read, FIONREAD and close of the pipe then waits uninterruptibly until the process is killed. Such
// calls run in goroutines that are waited for within a bound, and may be left behind until then.
//
//   - What the process wrote before its exit is delivered as long as somebody reads. Readers may go and come: both ends
//     of an output fifo are held open here, and what is written meanwhile waits in the fifo.
//   - The reader of an output sees its end when the last process that holds the pipe has closed it, before Close, as
//     containerd's client expects (client/task.go, Delete). A terminal, which can be opened again, ends at Drain.
//   - A process neither dies nor blocks because its logging binary did, or because Config.KeepUnread has passed without
//     a reader. What it writes then is lost.
package stdio

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/unixfile"
)

// Config names the streams as containerd's CreateTaskRequest and ExecProcessRequest do. Without a name the process has
// /dev/null.
type Config struct {
	Stdin    string
	Stdout   string
	Stderr   string
	Terminal bool // the process gets one terminal instead of three pipes; Stderr is ignored, as with the runc shim

	KeepUnread time.Duration // for which output waits for an absent reader, from Drain on. 0: until Close
	MaxOutput  int64         // bytes of each output that are passed on; what follows is dropped. 0: all
	ID         string        // CONTAINER_ID of a logging binary: of the container or the exec, as with the runc shim
	Host       *Host         `json:"-"` // serves logging binaries; without it these are errdefs.ErrNotImplemented

	Input func() `json:"-"` // is called before stdin is passed on; nil for nothing

	readersLater bool // for tests whose readers come after Open, which does not wait for them
}

// Host is shared by the streams of all processes of a shim.
type Host struct {
	Namespace string   // containerd's
	Children  Children // with which logging binaries are registered
	Umask     int      // for log files, beside that of the shim
	bounds    bounds   // of logging binaries
}

// NewHost returns a Host with the shim's umask. CRI gives a Delete 10 s, less than the runc shim's wait of 12 s after
// SIGTERM (process/io.go, binaryIO).
func NewHost(namespace string, children Children) *Host {
	return &Host{
		Namespace: namespace, Children: children,
		bounds: bounds{ready: 10 * time.Second, leave: 2 * time.Second, term: 2 * time.Second},
	}
}

// Children is a reaper.Reaper.
type Children interface {
	Suspend() (resume func())
	Register(pid int) bool
	Unregister(pid int)
	Reap(reap func())
}

// Streams are the standard streams of one process. Its methods may be called concurrently.
type Streams struct {
	logger     *log.Entry
	kept       context.Context //nolint:containedctx // unread output is kept until then; Close and giveUpUnread end it
	release    context.CancelCauseFunc
	copying    sync.WaitGroup
	closing    sync.Once
	resizing   sync.Mutex // held while the kernel is asked to set the size of the terminal
	keepUnread time.Duration
	beforeIn   func() // +checklocksignore: Config.Input, or nil; it never changes
	pause      *pause

	// These are set by Open. What is nil does not exist.
	child    [3]*os.File
	terminal *terminal
	input    *input
	inPipe   *pipeEnd // our end of the process's stdin
	outputs  [2]*copier
	binary   *logger // what both outputs lead to

	mu sync.Mutex
	// +checklocks:mu
	started bool
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	master *pipeEnd // of the terminal
	// +checklocks:mu
	copiers []*copier // outputs that are copied
	// +checklocks:mu
	stdin *copier // nil before OpenStdin
}

var outputNames = [...]string{"stdout", "stderr"}

// Open opens every stream of c, or none. It waits a second at most for the reader of an output fifo, and ten for a
// logging binary, but not after ctx ends. The pipes of the process belong to o, so that it may open /proc/self/fd/1
// again in a user namespace. A wrong name is errdefs.ErrInvalidArgument; an absent or unsuitable fifo or program is
// errdefs.ErrFailedPrecondition.
func Open(ctx context.Context, c Config, o idmap.Owner) (_ *Streams, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := newStreams(log.G(ctx), c)
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
	for i, uri := range [...]string{c.Stdout, c.Stderr} {
		if uri == "" || s.binary != nil || c.Terminal && i > 0 {
			continue
		}
		if err := s.openOutput(ctx, c, i, uri); err != nil {
			return nil, fmt.Errorf("%s %q: %w", outputNames[i], uri, err)
		}
	}
	if !c.Terminal {
		return s, s.openChild(o)
	}
	if s.outputs[0] == nil { // somebody must read, or the process would block on a full terminal
		null, err := c.openFileOutput(os.DevNull)
		if err != nil {
			return nil, err
		}
		s.addOutput(0, null, c.MaxOutput)
	}
	s.terminal, err = newTerminal()
	return s, err
}

func newStreams(logger *log.Entry, c Config) *Streams {
	s := &Streams{logger: logger, keepUnread: c.KeepUnread, beforeIn: c.Input, pause: newPause()}
	s.kept, s.release = context.WithCancelCause(context.Background())
	return s
}

// openBinary starts a logging binary for both outputs, whatever stderr names, as the runc shim does (process/io.go,
// createIO).
func (s *Streams) openBinary(ctx context.Context, l location, c Config) (err error) {
	if s.binary, err = startLogger(ctx, l, c); err != nil {
		return err
	}
	s.addOutput(0, s.binary.inputs[0], c.MaxOutput)
	if c.Terminal {
		return s.binary.inputs[1].Close() // the binary sees the end of a stderr that does not exist
	}
	s.addOutput(1, s.binary.inputs[1], c.MaxOutput)
	return nil
}

func (s *Streams) addOutput(i int, to sink, maxOutput int64) {
	s.outputs[i] = &copier{name: outputNames[i], to: to, output: true, maxOutput: maxOutput}
}

func (s *Streams) openChild(o idmap.Owner) (err error) {
	if s.input == nil {
		s.child[0], err = openNull(unix.O_RDONLY)
	} else {
		s.child[0], s.inPipe, err = newPipe(o, 0)
	}
	if err != nil {
		return err
	}
	for i, out := range s.outputs {
		if out == nil {
			s.child[1+i], err = openNull(unix.O_WRONLY)
		} else {
			s.child[1+i], out.from, err = newPipe(o, 1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Child returns descriptors 0, 1 and 2 of the process, nil with a terminal. They are open until Started or Close.
func (s *Streams) Child() (stdin, stdout, stderr *os.File) {
	return s.child[0], s.child[1], s.child[2]
}

// ConsoleSocket returns the socket to which the OCI runtime sends the terminal's master (runc docs/terminals.md,
// detached mode), or nil without a terminal. It is open until Started or Close.
func (s *Streams) ConsoleSocket() *os.File {
	if s.terminal == nil {
		return nil
	}
	return s.terminal.peer
}

// Started is called once, after the process was created. It closes the process's ends, receives the master of a
// terminal, and starts the copying of the outputs. After an error Close is still due.
func (s *Streams) Started() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started || s.closed {
		return fmt.Errorf("start copying the streams: already started or closed: %w", errdefs.ErrFailedPrecondition)
	}
	s.started = true
	// With these copies open the pipes would never end. A process that has locked its pipe delays the close.
	s.copying.Go(func() {
		for _, f := range s.child {
			_ = f.Close() // fails if it is nil or a Close was faster
		}
	})
	if s.terminal != nil {
		if s.master, err = s.terminal.receive(); err != nil {
			return err
		}
	}
	for _, c := range s.outputs {
		if c == nil {
			continue
		}
		if s.master != nil {
			c.from, c.terminal = s.master, true
		}
		c.source = c.from
		s.copiers = append(s.copiers, c)
		s.copy(c)
	}
	return nil
}

// OpenStdin starts the copying of stdin. It is called once, after Started, when State finds the process: nerdctl sends
// no CloseIO if there is no task at the end of its input (pkg/taskutil, StdinCloser). After an error a process without
// a terminal sees the end of its stdin.
func (s *Streams) OpenStdin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.input == nil || s.closed {
		return nil
	}
	if err := s.input.open(); err != nil {
		return errors.Join(fmt.Errorf("stdin: %w", err), s.inPipe.Close())
	}
	var to sink = s.inPipe
	if s.terminal != nil {
		to = &terminalInput{master: s.master}
	}
	s.stdin = &copier{name: "stdin", from: s.input.pipeEnd, source: s.input, to: to, before: s.beforeIn}
	s.copy(s.stdin)
	return nil
}

// copy starts a copier. It is called with mu held and closed not set, so that Close waits for every goroutine.
func (s *Streams) copy(c *copier) {
	s.prepare(c)
	c.mark.Store(unknown)
	s.copying.Go(c.run) // ends with its source or what it leads to, or in Close, which joins it
}

func (s *Streams) prepare(c *copier) {
	c.logger, c.kept, c.ended, c.pause = s.logger.WithField("stream", c.name), s.kept, make(chan struct{}), s.pause
	if to := endOf(c.to); to != nil {
		to.pause = s.pause
	}
}

// CloseStdin ends the stdin of the process when every client has closed the fifo, as with the runc shim
// (process/init.go, openStdin). A terminal in line mode gets its end-of-file character. Before OpenStdin, the end is
// kept until then. It may be called again, or without stdin.
func (s *Streams) CloseStdin() error {
	if s.input == nil {
		return nil
	}
	s.mu.Lock()
	s.input.ended = true
	hold := s.input.hold
	s.mu.Unlock()
	_ = hold.Close() // nil before OpenStdin; nothing was written
	return nil
}

// closeTimeout bounds Close's wait for a pipe that a process keeps locked.
const closeTimeout = time.Second

// Close stops the copying and releases everything. Output that was not delivered is lost: call Drain first.
func (s *Streams) Close() (err error) {
	s.closing.Do(func() { err = s.close() })
	return err
}

func (s *Streams) close() error {
	if s.closeFiles(); s.binary == nil {
		return nil
	}
	return s.binary.stop()
}

func (s *Streams) closeFiles() {
	s.pause.enter()
	defer s.pause.leave()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.release(fmt.Errorf("the streams are closed: %w", errdefs.ErrAborted))
	files := []io.Closer{s.terminal, s.input, s.inPipe, s.child[0], s.child[1], s.child[2]}
	for _, c := range s.outputs {
		if c != nil {
			files = append(files, c.to, c.from)
		}
	}
	for _, f := range files {
		// Close wakes the goroutines that wait on the file, and waits for those inside a call.
		s.copying.Go(func() { _ = f.Close() }) // whatever is nil or closed; a late write error has no one to go to
	}
	if unixfile.Within(closeTimeout, func() error { s.copying.Wait(); return nil }) != nil {
		s.logger.Warn("standard streams are not released: a process keeps a pipe locked, or a file does not answer")
	}
}
