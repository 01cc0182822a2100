// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package poll waits for many descriptors with one goroutine. Go's own poller needs a goroutine for each that waits,
// which has a stack, and an os.File, which owns the descriptor.
package poll

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// poller is an epoll instance, which Go's poller waits for. Its goroutine and descriptor last as long as the process.
type poller struct {
	conn syscall.RawConn

	mu sync.Mutex // held over watch.f, so none begins after its end
	// +checklocks:mu
	last int64
	// +checklocks:mu
	watches map[int64]watch
}

type watch struct {
	f    func()
	fd   int
	once bool
}

var shared = sync.OnceValues(func() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // for Go's poller
		return nil, errors.Join(os.NewSyscallError("fcntl", err), unix.Close(fd))
	}
	file := os.NewFile(uintptr(fd), "epoll")
	p := &poller{watches: map[int64]watch{}}
	if p.conn, err = file.SyscallConn(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	go p.run() // for good
	return p, nil
})

// Once calls f on a goroutine of its own as soon as fd can be read, unless stop comes before. Until then fd must stay
// open.
func Once(fd int, f func()) (stop func(), err error) {
	return add(fd, unix.EPOLLIN, watch{func() { go f() }, fd, true})
}

// OnDeath calls f on a goroutine of its own once p has exited. f must wait for p, which nobody does before; it has to
// wait longer if p cannot be watched.
func OnDeath(p *os.Process, f func()) {
	var failed error
	err := p.WithHandle(func(fd uintptr) { _, failed = Once(int(fd), f) })
	if err != nil || failed != nil {
		go f() // of which the owner of p knows
	}
}

// Each calls f for each of the events of fd (epoll(7), EPOLLET) until stop, which must come before fd is closed. None
// begins after stop has returned. f must return at once, and must not call this package.
func Each(fd int, events uint32, f func()) (stop func(), err error) {
	return add(fd, events, watch{f, fd, false})
}

func add(fd int, events uint32, w watch) (stop func(), err error) {
	p, err := shared()
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	id := p.last
	e := unix.EpollEvent{Events: events | unix.EPOLLET, Fd: int32(id), Pad: int32(id >> 32)}
	var failed error
	err = p.conn.Control(func(poller uintptr) {
		failed = os.NewSyscallError("epoll_ctl", unix.EpollCtl(int(poller), unix.EPOLL_CTL_ADD, fd, &e))
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, fmt.Errorf("watch descriptor %d: %w", fd, err)
	}
	p.watches[id] = w
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.endLocked(id)
	}, nil
}

// endLocked ends a watch, if it has not ended, so that its descriptor can have another one.
//
// +checklocks:p.mu
func (p *poller) endLocked(id int64) {
	w, ok := p.watches[id]
	if !ok {
		return
	}
	delete(p.watches, id)
	_ = p.conn.Control(func(poller uintptr) {
		_ = unix.EpollCtl(int(poller), unix.EPOLL_CTL_DEL, w.fd, nil) // it fails only for a descriptor that is closed
	})
}

func (p *poller) run() {
	events := make([]unix.EpollEvent, 16)
	_ = p.conn.Read(func(fd uintptr) bool { // nobody closes the file
		for {
			n, err := unix.EpollWait(int(fd), events, 0)
			if n <= 0 && !errors.Is(err, unix.EINTR) {
				return false
			}
			for i := range max(n, 0) {
				p.handle(int64(uint32(events[i].Fd)) | int64(events[i].Pad)<<32)
			}
		}
	})
}

func (p *poller) handle(id int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, ok := p.watches[id]
	if !ok {
		return
	}
	if w.once {
		p.endLocked(id)
	}
	w.f()
}
