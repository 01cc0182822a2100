// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package notify receives the datagrams of sd_notify(3): a program is ready, what it is doing, and what went wrong.
// [Extension] gives a container the socket, and keeps its Start waiting.
//
// The goroutine of a [Receiver] reads at most a hundred messages in a second; senders wait. The kernel closes the
// descriptors of a message when it is read, after all before it have taken effect, for sd_notify_barrier(3). Closing
// some takes as long as the sender likes (SO_LINGER, FUSE), so every wait for the reader is bounded.
package notify

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/unixfile"
)

// Name is the file name of the socket in its directory.
const Name = "notify.sock"

const (
	readTimeout = time.Second // bounds waits for the reader
	longest     = 4096        // bytes of a message, as with systemd
	rate        = 100         // messages after which the reader pauses for a second
	mostQueued  = 1024        // messages that are read when the wait is over; more than unix(7), max_dgram_qlen, has
	lastErrno   = 4095        // of a system call (include/linux/err.h, MAX_ERRNO)
)

// State is what was received so far.
type State = inspect.Notify

// Receiver is a socket and what it received.
type Receiver struct {
	dir  string
	conn *net.UnixConn
	// +checklocks:mu
	logger *log.Entry
	reader sync.WaitGroup
	closed chan struct{} // closed by Close, once
	once   sync.Once
	ready  chan struct{} // closed at the first READY=1

	reading sync.Mutex // held while a message is read and takes effect; mu is taken with it held

	mu sync.Mutex
	// +checklocks:mu
	state State
	// +checklocks:mu
	extension time.Time // the deadline that EXTEND_TIMEOUT_USEC asked for
}

// Listen makes the directory dir, which must not exist, and a socket in it, which belongs to owner and to which every
// user may send. The directory stays root's: a container may be able to take the read-only flag off its mount.
func Listen(dir string, owner idmap.Owner, logger *log.Entry) (*Receiver, error) {
	const everyUserEnters, everyUserSends = 0o755, 0o666
	if err := os.Mkdir(dir, everyUserEnters); err != nil {
		return nil, err
	}
	conn, err := bind(dir)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen in %s: %w", dir, err), os.RemoveAll(dir))
	}
	r := newReceiver(dir, conn, logger)
	socket := filepath.Join(dir, Name)
	// The owner first: the mode that the socket has until then lets only its owner send.
	err = errors.Join(os.Lchown(socket, owner.UID, owner.GID), os.Chmod(socket, everyUserSends),
		os.Chmod(dir, everyUserEnters)) // whatever the umask is
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	r.begin()
	return r, nil
}

func newReceiver(dir string, conn *net.UnixConn, logger *log.Entry) *Receiver {
	return &Receiver{dir: dir, conn: conn, logger: logger, closed: make(chan struct{}), ready: make(chan struct{})}
}

// begin starts the reader, which ends with the socket. Close closes that, and joins the reader.
func (r *Receiver) begin() { r.reader.Go(r.receive) }

// bind binds a socket by its descriptor's path, since that of dir may be longer than an address (unix(7)).
func bind(dir string) (*net.UnixConn, error) {
	parent, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer parent.Close() //nolint:errcheck // nothing was written
	return net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: address(parent)})
}

func address(dir *os.File) string { return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), Name) }

// Close stops receiving and removes the directory. It may be called again. After readTimeout it leaves the reader
// behind.
func (r *Receiver) Close() error {
	r.once.Do(func() {
		close(r.closed)
		_ = unixfile.Within(readTimeout, func() error {
			_ = r.conn.Close() // what was not read by now does not matter
			r.reader.Wait()
			return nil
		})
	})
	return os.RemoveAll(r.dir)
}

// State returns what was received so far.
func (r *Receiver) State() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// ErrTimeout and ErrExited are why Await gives up.
var (
	ErrTimeout = errors.New("no READY=1 came in time")
	ErrExited  = errors.New("init exited before READY=1 came")
)

// Await returns once READY=1 came. It gives up when exited is closed, or after the longer of timeout and
// EXTEND_TIMEOUT_USEC, but after most in any case. Messages that were sent before count.
func (r *Receiver) Await(timeout, most time.Duration, exited <-chan struct{}) error {
	began := time.Now()
	left := func() time.Duration {
		r.mu.Lock()
		defer r.mu.Unlock()
		return min(max(timeout, r.extension.Sub(began)), most) - time.Since(began)
	}
	for {
		over := ErrTimeout
		select {
		case <-r.ready:
			return nil
		case <-exited:
			over = ErrExited
		case <-time.After(left()):
		}
		_ = unixfile.Within(readTimeout, r.readQueue)
		if r.State().Ready {
			return nil
		}
		if errors.Is(over, ErrExited) || left() <= 0 {
			return over
		}
	}
}

func (r *Receiver) readQueue() error {
	conn, err := r.conn.SyscallConn()
	if err != nil {
		return err
	}
	return conn.Control(func(fd uintptr) {
		for range mostQueued {
			if !r.read(fd) {
				return
			}
		}
	})
}

func (r *Receiver) receive() {
	conn, err := r.conn.SyscallConn()
	for n := 1; err == nil; n++ {
		err = conn.Read(r.read) // until Close
		if n%rate == 0 {
			select {
			case <-time.After(time.Second):
			case <-r.closed:
			}
		}
	}
}

// read reads a message, and reports whether there was one.
func (r *Receiver) read(fd uintptr) bool {
	r.reading.Lock()
	defer r.reading.Unlock()
	data := make([]byte, longest)
	n, _, flags, _, err := unix.Recvmsg(int(fd), data, nil, unix.MSG_DONTWAIT)
	if err == nil && flags&unix.MSG_TRUNC == 0 {
		r.apply(data[:n])
	}
	return !errors.Is(err, unix.EAGAIN)
}

// apply applies lines of NAME=VALUE. Unknown names and values have no effect. Like systemd it refuses a zero byte
// except at the end.
func (r *Receiver) apply(data []byte) {
	data = bytes.TrimSuffix(data, []byte{0})
	if bytes.IndexByte(data, 0) >= 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s, before, extension := &r.state, r.state, r.extension
	for line := range strings.SplitSeq(string(data), "\n") {
		name, value, _ := strings.Cut(line, "=")
		switch name {
		case "READY":
			s.Ready = s.Ready || value == "1"
		case "STATUS":
			s.Status = strings.ToValidUTF8(value, "\uFFFD")
		case "ERRNO":
			if n, err := strconv.Atoi(value); err == nil && n > 0 && n <= lastErrno {
				s.Errno = n
			}
		case "EXTEND_TIMEOUT_USEC":
			if n, err := strconv.ParseUint(value, 10, 64); err == nil {
				until := time.Now().Add(time.Duration(min(n, math.MaxInt64/1000)) * time.Microsecond)
				if until.After(extension) { // less shortens nothing, as in systemd
					extension = until
				}
			}
		}
	}
	r.extension = extension
	if s.Ready && !before.Ready {
		close(r.ready)
		r.logger.WithField("status", s.Status).Info("notify: ready")
	}
}
