// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/fifo"
	"golang.org/x/sys/unix"
)

type location struct {
	scheme, path string
	args         []string // of a logging binary: each key, in their order, and its first value
}

// parse parses a name. A name without a scheme is a literal path.
func parse(uri string) (l location, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
		}
	}()
	u := &url.URL{Scheme: "fifo", Path: uri}
	if strings.Contains(uri, "://") {
		if u, err = url.Parse(uri); err != nil {
			return l, err
		}
	}
	l = location{scheme: u.Scheme, path: u.Path}
	switch u.Scheme {
	case "fifo", "file":
	case "binary", "binary-v2":
		values, err := url.ParseQuery(u.RawQuery)
		if err != nil {
			return l, err
		}
		for _, key := range slices.Sorted(maps.Keys(values)) {
			l.args = append(l.args, key, values.Get(key))
		}
	default:
		return l, fmt.Errorf("unknown scheme %q, want fifo, file, binary or binary-v2", u.Scheme)
	}
	if !filepath.IsAbs(u.Host + u.Path) {
		return l, errors.New("path is not absolute")
	}
	return l, nil
}

func (l location) binary() bool { return l.scheme == "binary" || l.scheme == "binary-v2" }

// openOutput opens stdout or stderr, by its index.
func (s *Streams) openOutput(ctx context.Context, c Config, i int, uri string) error {
	l, err := parse(uri)
	if err != nil {
		return err
	}
	var to sink
	switch {
	case l.binary() && i == 0:
		return s.openBinary(ctx, l, c)
	case l.binary():
		return fmt.Errorf("a logging binary always takes both outputs: name it as stdout (stderr is then ignored): %w",
			errdefs.ErrInvalidArgument)
	case l.scheme == "file":
		to, err = c.openFileOutput(l.path)
	default:
		to, err = c.openFifoOutput(ctx, l.path)
	}
	if err != nil {
		return unusable(err)
	}
	s.addOutput(i, to, c.MaxOutput)
	return nil
}

// openFileOutput opens a log file, and creates it and its directory with the modes of the runc shim (process/io.go,
// createIO). Appends are atomic, so stdout and stderr may name the same file. It does not wait for the reader of a
// fifo.
func (c Config) openFileOutput(path string) (sink, error) {
	umask := 0
	if c.Host != nil {
		umask = c.Host.Umask
	}
	if err := os.MkdirAll(filepath.Dir(path), fs.FileMode(0o755&^umask)); err != nil {
		return nil, err
	}
	fd, err := openFD(path, unix.O_CREAT|unix.O_WRONLY|unix.O_APPEND|unix.O_NONBLOCK, uint32(0o644&^umask))
	if err != nil {
		return nil, err
	}
	return newPipeEnd(fd, path), nil
}

// input is the fifo of stdin, which containerd's client makes before it sends Create (pkg/cio, openFifos).
type input struct {
	path     string
	*pipeEnd          // nil before open
	hold     *os.File // writing end: clients may come and go until it is closed; nil before open
	ended    bool     // CloseStdin was called before open
}

func openInput(uri string) (*input, error) {
	l, err := parse(uri)
	if err != nil {
		return nil, err
	}
	if l.scheme != "fifo" {
		return nil, fmt.Errorf("scheme %q is for output, want fifo: %w", l.scheme, errdefs.ErrInvalidArgument)
	}
	info, err := os.Stat(l.path)
	if err == nil && info.Mode()&fs.ModeNamedPipe == 0 {
		err = errors.New("not a fifo")
	}
	if err != nil {
		return nil, unusable(err)
	}
	return &input{path: l.path}, nil
}

func (i *input) open() error {
	r, err := openFD(i.path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	i.pipeEnd = newPipeEnd(r, i.path)
	if !i.ended {
		i.hold, err = openHold(i.path, unix.O_WRONLY)
	}
	return err
}

func (i *input) Close() error {
	if i == nil {
		return nil
	}
	return errors.Join(i.pipeEnd.Close(), i.hold.Close())
}

// fifoOutput is a fifo of stdout or stderr. Where it has no reader when something is written, hold, a reading end of
// its own, keeps that for the next one. One descriptor for both ends would wake the poller for every byte written, and
// could not tell whether there is another reader.
type fifoOutput struct {
	*pipeEnd

	mu sync.Mutex
	// +checklocks:mu
	hold *os.File // nil before it is needed
	// +checklocks:mu
	given bool // nothing is kept any more
}

// readerPatience bounds the wait for the reader of an output, which opens the fifo while its request is sent. The runc
// shim waits without a bound.
const readerPatience = time.Second

// openFifoOutput opens a fifo, and waits for its reader. Like the runc shim (process/io.go, copyPipes) it appends to a
// file or a device at a path without a scheme.
func (c Config) openFifoOutput(ctx context.Context, path string) (sink, error) {
	const flags = unix.O_WRONLY | unix.O_APPEND | unix.O_NONBLOCK
	ctx, cancel := context.WithTimeout(ctx, readerPatience)
	defer cancel()
	w, err := openFD(path, flags, 0)
	wait := 50 * time.Microsecond
	for ; errors.Is(err, unix.ENXIO) && ctx.Err() == nil && !c.readersLater; wait = min(2*wait, 10*time.Millisecond) {
		select { // ENXIO: no reader, fifo(7)
		case <-time.After(wait):
		case <-ctx.Done():
		}
		w, err = openFD(path, flags, 0)
	}
	if errors.Is(err, unix.ENXIO) {
		var r int
		if r, err = openFD(path, unix.O_RDONLY|unix.O_NONBLOCK, 0); err != nil {
			return nil, err
		}
		defer unix.Close(r) //nolint:errcheck // nothing was read
		w, err = openFD(path, flags, 0)
	}
	if err != nil {
		return nil, err
	}
	out := &fifoOutput{pipeEnd: newPipeEnd(w, path)}
	if info, err := out.file.Stat(); err == nil && info.Mode()&fs.ModeNamedPipe == 0 {
		return out.pipeEnd, nil
	}
	return out, nil
}

// Write implements sink. Without a reader it writes for the next one.
func (o *fifoOutput) Write(b []byte) (int, error) {
	n, err := o.pipeEnd.Write(b)
	if !errors.Is(err, unix.EPIPE) || !o.keep() {
		return n, err
	}
	more, err := o.pipeEnd.Write(b[n:])
	return n + more, err
}

// keep opens hold, if it may.
func (o *fifoOutput) keep() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.given || o.hold != nil {
		return false
	}
	var hold *os.File
	_ = o.conn.Control(func(own uintptr) { // which fails if it is closed; the file at its path may be another one by now
		hold, _ = openHold(fmt.Sprintf("/proc/self/fd/%d", own), unix.O_RDONLY) // it may fail for lack of descriptors
	})
	o.hold = hold
	return hold != nil
}

// giveUp keeps nothing any more: without a reader, writes fail.
func (o *fifoOutput) giveUp() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.given = true
	_ = o.hold.Close() // nil, or nothing was read
}

// openHold opens the other end of an open fifo, so that it does not wait. The file is blocking, and so not in the
// poller, which would wake for every byte.
func openHold(path string, flags int) (*os.File, error) {
	fd, err := openFD(path, flags, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

func (o *fifoOutput) Close() error {
	err := o.pipeEnd.Close() // first: a write under way is to see this, and not that nobody reads
	o.giveUp()
	return err
}

// end leaves the content to the reader and closes the fifo. A fifo that nobody has open loses its content, so it stays
// open until a reader comes or ctx ends.
func (o *fifoOutput) end(ctx context.Context) error {
	defer o.Close() //nolint:errcheck // closing a fifo reports nothing of use
	o.giveUp()      // from now on every reader is somebody else
	for n := o.unread(); n > 0; n = o.unread() {
		o.pause.leave()
		err := o.awaitReader(ctx)
		o.pause.enter()
		if err != nil {
			return fmt.Errorf("the last %d bytes are not read: %w", n, err)
		}
	}
	return nil
}

// awaitReader waits for a reader. The kernel shows one to a writer only by an open(2) that blocks.
func (o *fifoOutput) awaitReader(ctx context.Context) error {
	_ = o.conn.Control(func(fd uintptr) { // Close ends ctx before it waits for this
		w, err := fifo.OpenFifo(ctx, fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_WRONLY, 0)
		if err == nil {
			_ = w.Close() // nothing was written to it
			return
		}
		<-ctx.Done() // if that was not the reason, descriptors are scarce: a reader can still come, unnoticed
	})
	return context.Cause(ctx)
}

// unread returns how many bytes are in a fifo without a reader, after hold was closed.
func (o *fifoOutput) unread() (n int) {
	_ = o.conn.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		if _, err := unix.Poll(p, 0); err == nil && p[0].Revents&unix.POLLERR != 0 { // POLLERR: no reader
			n, _ = unix.IoctlGetInt(int(fd), fionread) // every fifo answers it
		}
	})
	return n
}

// unusable adds a class other than ErrNotFound, which containerd takes for a missing task.
func unusable(err error) error {
	if errors.Is(err, unix.ENOSPC) { // pkg/service adds the class
		return err
	}
	return fmt.Errorf("%w: %w", err, errdefs.ErrFailedPrecondition)
}
