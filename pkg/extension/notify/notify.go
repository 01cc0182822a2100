// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package notify is the receiving side of sd_notify(3): a program says by a datagram on a socket that it is ready, what
// it is doing, and what went wrong. [Extension] gives a container the socket, and keeps its Start waiting.
//
// # Goroutines and locks
//
// A [Receiver] has one goroutine from Receive on, which reads the socket. Close ends it, and joins it in a goroutine of
// its own, for which it waits within a bound. mu guards what was received so far and is never held over anything that
// blocks.
//
// # Promises
//
//   - Only messages of the container's processes count. The kernel names the sender of a datagram, whose cgroup is
//     checked (pkg/cgroup, Contains). Nothing from others is used; their descriptors are closed.
//   - A sender cannot keep the shim busy. Beyond a hundred messages in a second the rest waits, and the senders with
//     it, since the kernel's queue is short. Nor can it fill the log.
//   - A datagram is read as a whole or not at all, into memory of a fixed size.
//   - A descriptor that comes with a message is closed once that message and all before it have taken effect, which is
//     what sd_notify_barrier(3) waits for.
package notify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/unixfile"
)

// Name is the file name of the socket in its directory.
const Name = "notify.sock"

// closeTimeout bounds the wait for the goroutine, which closes what the container sent. Closing some descriptors takes
// as long as the sender likes: that of a connection with SO_LINGER, or of a FUSE file.
const closeTimeout = time.Second

// Sender is a process that sent a datagram.
type Sender struct {
	PID   int // as this process sees it
	PIDFD int // -1 if the kernel gives none (before Linux 6.5)
}

// State is what was received so far.
type State = inspect.Notify

// Receiver is a socket and what it received.
type Receiver struct {
	dir  string
	conn *net.UnixConn
	log  func(text string, fields map[string]any)

	reader   sync.WaitGroup // the goroutine
	closed   chan struct{}  // closed by Close, once
	once     sync.Once
	ready    chan struct{} // closed at the first READY=1
	extended chan struct{} // has one slot, filled after extension grew

	mu sync.Mutex
	// +checklocks:mu
	state State
	// +checklocks:mu
	extension time.Time // the deadline that EXTEND_TIMEOUT_USEC asked for
}

// Listen makes the directory dir, which must not exist, and a socket in it, which belongs to owner and to which every
// user may send. The directory stays root's: a container may be able to take the read-only flag off its mount, and what
// it wrote then would be on the host's file system. log takes lines for the log, at a bounded rate.
func Listen(dir string, owner idmap.Owner, log func(text string, fields map[string]any)) (_ *Receiver, retErr error) {
	const everyUserEnters, everyUserSends = 0o755, 0o666
	if err := os.Mkdir(dir, everyUserEnters); err != nil {
		return nil, err
	}
	defer func() {
		if retErr != nil {
			retErr = errors.Join(retErr, os.RemoveAll(dir))
		}
	}()
	conn, err := bind(dir)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", filepath.Join(dir, Name), err)
	}
	r := &Receiver{
		dir: dir, conn: conn, log: log,
		closed: make(chan struct{}), ready: make(chan struct{}), extended: make(chan struct{}, 1),
	}
	// The owner first: the mode that the socket has until then lets only its owner send.
	socket := filepath.Join(dir, Name)
	err = errors.Join(os.Lchown(socket, owner.UID, owner.GID), os.Chmod(socket, everyUserSends))
	if err == nil {
		err = os.Chmod(dir, everyUserEnters) // whatever the umask is
	}
	if err != nil {
		_ = conn.Close() // nothing came
		return nil, err
	}
	return r, nil
}

// bind binds a socket in dir, whose path may be longer than an address (unix(7)), and makes the kernel name senders.
func bind(dir string) (*net.UnixConn, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("open", err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		outer := c.Control(func(fd uintptr) {
			err = os.NewSyscallError("setsockopt SO_PASSCRED", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1))
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSPIDFD, 1) // before Linux 6.5 the pid must do
		})
		return errors.Join(outer, err)
	}}
	conn, err := config.ListenPacket(context.Background(), "unixgram", address(fd))
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

func address(dirFD int) string { return fmt.Sprintf("/proc/self/fd/%d/%s", dirFD, Name) }

// Receive starts to read the socket. check refuses senders outside of the container. It is called once, and not
// concurrently with Close.
func (r *Receiver) Receive(check func(Sender) error) {
	r.reader.Go(func() { r.receive(check) }) // ends with the socket, which Close closes; Close joins it
}

// Close stops receiving and removes socket and directory. It may be called again. After closeTimeout it leaves a
// goroutine behind that closes what the container sent.
func (r *Receiver) Close() error {
	r.once.Do(func() {
		close(r.closed)
		closed := unixfile.Within(closeTimeout, func() error {
			_ = r.conn.Close() // what was not read by now does not matter
			r.reader.Wait()
			return nil
		})
		if closed != nil {
			r.log("notify: descriptors that were sent are not closed yet", map[string]any{"waited": closeTimeout})
		}
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

// Await returns once READY=1 came. It gives up after timeout or when the time that the program asked for with
// EXTEND_TIMEOUT_USEC has expired, whichever is later, but after longest in any case. When the time has expired or
// exited is closed, it gives up after all that was sent before has been read.
func (r *Receiver) Await(timeout, longest time.Duration, exited <-chan struct{}) error {
	began := time.Now()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	warned := false
	for {
		select {
		case <-r.ready:
			return nil
		case <-exited:
			r.drainQueue()
			if r.State().Ready {
				return nil
			}
			return ErrExited
		case <-r.extended:
			if asked := r.asked().Sub(began); asked > longest && !warned {
				warned = true
				r.log("notify: EXTEND_TIMEOUT_USEC asks for more than a start may take",
					map[string]any{"asked": asked, "longest": longest})
			}
			timer.Reset(r.left(began, timeout, longest))
		case <-timer.C:
			if r.left(began, timeout, longest) <= 0 {
				r.drainQueue() // otherwise a healthy init that sent it in time would be killed
			}
			if r.State().Ready {
				return nil
			}
			left := r.left(began, timeout, longest)
			if left <= 0 {
				return ErrTimeout
			}
			timer.Reset(left)
		}
	}
}

func (r *Receiver) asked() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.extension
}

// left returns how long a wait that began at began may continue.
func (r *Receiver) left(began time.Time, timeout, longest time.Duration) time.Duration {
	return min(max(timeout, r.asked().Sub(began)), longest) - time.Since(began)
}

// drainTimeout bounds the wait for what is in the socket's queue (unix(7), max_dgram_qlen; receive's limit).
const drainTimeout = 5 * time.Second

// drainQueue waits until everything that was sent before has taken effect, with a barrier, as any sender can.
func (r *Receiver) drainQueue() {
	ours, theirs, err := os.Pipe()
	if err != nil {
		return // what is not read is lost, as it is when the queue is full
	}
	defer ours.Close() //nolint:errcheck // nothing was written
	err = send(r.dir, "BARRIER=1", int(theirs.Fd()))
	_ = theirs.Close() // the other one counts
	if err != nil {
		return
	}
	_ = ours.SetReadDeadline(time.Now().Add(drainTimeout)) // a pipe has deadlines
	var b [1]byte
	_, _ = ours.Read(b[:]) // it waits for the end of the pipe
}

// send sends text and descriptors to the socket in dir. It waits while the queue is full, as any sender does.
func send(dir, text string, fds ...int) error {
	parent, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(parent) //nolint:errcheck // nothing was written
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket) //nolint:errcheck // what was sent is sent
	wait := unix.NsecToTimeval(drainTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait); err != nil {
		return err
	}
	to := &unix.SockaddrUnix{Name: address(parent)}
	for {
		err = unix.Sendmsg(socket, []byte(text), unix.UnixRights(fds...), to, unix.MSG_NOSIGNAL)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
