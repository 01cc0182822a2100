// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/fifo"
	"golang.org/x/sys/unix"
)

// containerd's client makes the fifos before it asks for Create (pkg/cio,
// openFifos), so nothing is created here: a missing fifo is an error of the
// caller, and one made here would have nobody to remove it.

// input is the fifo, or the pipe of a streaming client, that stdin comes from.
type input struct {
	*pipeEnd
	hold   io.Closer // writing end: clients may come and go until it is closed
	stream *stream   // nil for a fifo
}

func openFifoInput(path string) (*input, error) {
	r, w, err := openBothEnds(path, -1)
	if err != nil {
		return nil, err
	}
	hold := newHeld(w, path)
	end, err := newPipeEnd(r, path)
	if err != nil {
		return nil, errors.Join(err, hold.Close())
	}
	return &input{pipeEnd: end, hold: hold}, nil
}

func (i *input) Close() error {
	if i.stream != nil {
		i.stream.remove()
	}
	return closeAll(i.pipeEnd, i.hold)
}

// fifoOutput is a fifo that stdout or stderr leads to.
//
// It is open twice. The reading end keeps the fifo alive while no reader is
// there: no EPIPE, and what was written stays. Two descriptors, because with a
// single one for both the poller would wake for every byte written, and whether
// there is another reader could not be asked (see left).
type fifoOutput struct {
	*pipeEnd
	hold *os.File
}

// openFifoOutput opens a fifo. A path without a scheme may also name a file or
// a device, which is then appended to, as the runc shim does
// (containerd-shim-runc-v2/process/io.go, copyPipes).
func (c Config) openFifoOutput(ctx context.Context, path string) (sink, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, unusable(&os.PathError{Op: "stat", Path: path, Err: err})
	}
	if st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return openAppend(path, 0)
	}
	w := -1
	if !c.readersLater {
		w = openForReader(ctx, path)
	}
	r, w, err := openBothEnds(path, w)
	if err != nil {
		return nil, err
	}
	hold := newHeld(r, path)
	end, err := newPipeEnd(w, path)
	if err != nil {
		return nil, errors.Join(err, hold.Close())
	}
	return &fifoOutput{end, hold}, nil
}

func (o *fifoOutput) Close() error { return closeAll(o.pipeEnd, o.hold) }

// end leaves what is in the fifo to its reader and closes it. A fifo that
// nobody has open loses its content, so without a reader it stays open until
// one comes or ctx ends.
func (o *fifoOutput) end(ctx context.Context) error {
	defer func() { _ = o.Close() }() // closing a fifo reports nothing of use
	_ = o.hold.Close()               // now every reader is somebody else
	for n := o.left(); n > 0; n = o.left() {
		if err := o.awaitReader(ctx); err != nil {
			return fmt.Errorf("the last %d bytes are not read: %w", n, err)
		}
	}
	return nil
}

// awaitReader returns when somebody has come to read. There is one way only in
// which the kernel tells a writer so: an open that waits for the first reader,
// in a thread of its own until then (package fifo). No poll shows it.
func (o *fifoOutput) awaitReader(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	// A descriptor of our own, which Close does not take away. Through /proc its
	// path is that of this fifo whatever happens to the other.
	fd, err := -1, error(nil)
	closed := o.conn.Control(func(end uintptr) { fd, err = unix.FcntlInt(end, unix.F_DUPFD_CLOEXEC, 0) })
	if closed == nil && err == nil {
		defer func() { _ = unix.Close(fd) }() // nothing was written to it
		var w io.Closer
		if w, err = fifo.OpenFifo(ctx, fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_WRONLY, 0); err == nil {
			return w.Close()
		}
	}
	<-ctx.Done() // if that was not why, descriptors are scarce: a reader can still come, though nobody is told
	return context.Cause(ctx)
}

// letGo leaves the fifo to its reader. Where there is none, what is written from
// now on is refused, and end does not wait.
func (o *fifoOutput) letGo() { _ = o.hold.Close() } // it may be closed already

// left is how many bytes are in the fifo without anybody there to read them.
// It is asked once hold is closed.
func (o *fifoOutput) left() (n int) {
	// Control fails only when the file is closed; then nothing is left.
	_ = o.conn.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		if _, err := unix.Poll(p, 0); err == nil && p[0].Revents&unix.POLLERR != 0 { // POLLERR: no reader
			n, _ = unix.IoctlGetInt(int(fd), fionread) // every fifo answers it
		}
	})
	return n
}

// readerPatience is for the reader of an output to open the fifo. containerd's
// client opens it beside its request, and drops what it did not get to open in
// time: without this, the output of a process that ends at once could find it
// gone. The runc shim waits without a bound; where nobody reads, nobody comes.
const (
	readerPatience = time.Second
	readerInterval = time.Millisecond
)

// openForReader opens the writing end of a fifo once it has a reader. It
// returns -1 if none comes in time, and leaves errors to the opening without one.
func openForReader(ctx context.Context, path string) int {
	ctx, cancel := context.WithTimeout(ctx, readerPatience)
	defer cancel()
	tick := time.NewTicker(readerInterval)
	defer tick.Stop()
	for {
		w, err := openFD(path, unix.O_WRONLY|unix.O_NONBLOCK, 0)
		if err == nil {
			return w
		}
		if !errors.Is(err, unix.ENXIO) { // ENXIO: no reader, fifo(7)
			return -1
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return -1
		}
	}
}

// openBothEnds opens a fifo for reading and for writing, unless writer, when
// not negative, is the writing end already. Both descriptors are non-blocking, so that neither open
// waits for a peer.
func openBothEnds(path string, writer int) (r, w int, err error) {
	if writer >= 0 {
		r, err = openFD(fmt.Sprintf("/proc/self/fd/%d", writer), unix.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			_ = unix.Close(writer) // nothing was written
			return -1, -1, unusable(err)
		}
		return r, writer, nil
	}
	// The reading end first: without one, a fifo cannot be opened for writing.
	r, err = openFD(path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, -1, unusable(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(r, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		_ = unix.Close(r) // opened for reading: nothing can be lost
		return -1, -1, fmt.Errorf("not a fifo: %w", errdefs.ErrFailedPrecondition)
	}
	// Through /proc, so that both ends are of the same fifo whatever happens to
	// the path.
	w, err = openFD(fmt.Sprintf("/proc/self/fd/%d", r), unix.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		_ = unix.Close(r) // as above
		return -1, -1, fmt.Errorf("open the writing end: %w", err)
	}
	return r, w, nil
}

// unusable classes an error of opening what the caller named. It is not
// ErrNotFound, which containerd takes for a missing task.
func unusable(err error) error {
	return fmt.Errorf("%w: %w", err, errdefs.ErrFailedPrecondition)
}
