// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"unsafe"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// agent is the other end of a filter's listenerPath: it is sent a descriptor for each process with the filter and
// answers each system call with the same error. Its goroutines end, and are joined, by stop.
type agent struct {
	path   string
	answer unix.Errno
	listen *net.UnixListener
	ended  chan struct{} // closed by stop: what asks after that is not answered
	all    sync.WaitGroup

	mu     sync.Mutex
	states []specs.ContainerProcessState
	errs   []error
}

func newAgent(t *testing.T, answer unix.Errno) *agent {
	t.Helper()
	a := &agent{path: filepath.Join(t.TempDir(), "agent.sock"), answer: answer, ended: make(chan struct{})}
	var err error
	if a.listen, err = net.ListenUnix("unix", &net.UnixAddr{Name: a.path, Net: "unix"}); err != nil {
		t.Fatal(err)
	}
	a.all.Go(a.accept)
	t.Cleanup(func() {
		a.stop()
		for _, err := range a.errs {
			t.Errorf("agent: %v", err)
		}
	})
	return a
}

// stop ends the agent and returns the states that it got, in order.
func (a *agent) stop() []specs.ContainerProcessState {
	select {
	case <-a.ended:
	default:
		close(a.ended)
	}
	_ = a.listen.Close() // a second time it is closed already
	a.all.Wait()
	return a.states
}

func (a *agent) failed(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.errs = append(a.errs, err)
}

func (a *agent) accept() {
	for {
		conn, err := a.listen.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			a.failed(err)
			return
		}
		fd, err := a.receive(conn)
		_ = conn.Close() // it was only read from
		if err != nil {
			a.failed(err)
			continue
		}
		a.all.Go(func() {
			defer func() { _ = unix.Close(fd) }()
			if err := a.serve(fd); err != nil {
				a.failed(err)
			}
		})
	}
}

// receive reads one message: the state as JSON, with the descriptor beside it.
func (a *agent) receive(conn *net.UnixConn) (int, error) {
	text, side := make([]byte, 1<<16), make([]byte, unix.CmsgSpace(4))
	n, sideN, _, _, err := conn.ReadMsgUnix(text, side)
	if err != nil {
		return -1, err
	}
	messages, err := unix.ParseSocketControlMessage(side[:sideN])
	if err != nil || len(messages) != 1 {
		return -1, fmt.Errorf("%d control messages, want one: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, fmt.Errorf("%d descriptors, want one: %w", len(fds), err)
	}
	unix.CloseOnExec(fds[0])
	var state specs.ContainerProcessState
	if err := json.Unmarshal(text[:n], &state); err != nil {
		return fds[0], errors.Join(fmt.Errorf("state %q: %w", text[:n], err), unix.Close(fds[0]))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.states = append(a.states, state)
	return fds[0], nil
}

// notification and answer are struct seccomp_notif and struct seccomp_notif_resp of linux/seccomp.h.
type (
	notification struct {
		id         uint64
		pid, flags uint32
		nr         int32
		arch       uint32
		ip         uint64
		args       [6]uint64
	}
	response struct {
		id    uint64
		value int64
		errno int32
		flags uint32
	}
)

// serve answers until no process has the filter any more, or stop.
func (a *agent) serve(fd int) error {
	const lookAtEnd = 100 // ms
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, lookAtEnd); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-a.ended:
			return nil
		default:
		}
		if fds[0].Revents&unix.POLLIN == 0 {
			if fds[0].Revents&unix.POLLHUP != 0 {
				return nil
			}
			continue
		}
		var asked notification
		if err := ioctl(fd, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&asked)); err != nil {
			if errors.Is(err, unix.ENOENT) { // who asked is dead
				continue
			}
			return fmt.Errorf("receive notification: %w", err)
		}
		answer := response{id: asked.id, errno: -int32(a.answer)}
		if err := ioctl(fd, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&answer)); err != nil &&
			!errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("answer notification: %w", err)
		}
	}
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}
