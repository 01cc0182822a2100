// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
)

// Notifier reports that something it watches may have changed, but not what.
type Notifier interface {
	// Watch replaces what is watched: writes to files, and what is made, removed or moved in dirs. It ignores what does
	// not exist. It may be called while another goroutine waits, but not after Close.
	Watch(files, dirs []string) error
	// Wait returns true when something has changed since the last call, or after timeout. It returns false once Close was
	// called.
	Wait(timeout time.Duration) bool
	// Close ends Wait and releases everything.
	Close() error
}

type inotify struct {
	file    *os.File            // non-blocking, so that Go's poller waits and Close ends the wait
	conn    syscall.RawConn     // of file; guards the descriptor's number against Close
	watches map[string]int      // the watch descriptor of each path; only Watch uses it
	events  [inotifyBuffer]byte // only Wait uses it
	clock   clock               // by which Wait goes if the file cannot be read
}

// inotifyBuffer holds some hundred events. inotify(7) requires room for one with the longest name, 272 bytes.
const inotifyBuffer = 4096

// Inotify returns a Notifier with an inotify instance of its own.
func Inotify() (Notifier, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("inotify_init1: %w", err)
	}
	n := &inotify{file: os.NewFile(uintptr(fd), "inotify"), clock: newClock()}
	n.conn, _ = n.file.SyscallConn()                            // fails only without a file
	if err := n.file.SetReadDeadline(time.Time{}); err != nil { // fs.epoll.max_user_watches are used up
		return nil, errors.Join(fmt.Errorf("poll inotify: %w", err), n.Close())
	}
	return n, nil
}

// scarce reports whether the inotify instances of a user are few: the kernel allows 128, where nobody has changed that,
// and a node can have 110 pods. Those who need more for themselves, such as a kubelet, have thousands.
func scarce() bool {
	const plenty = 1024
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
	n, parseErr := strconv.Atoi(string(bytes.TrimSpace(text)))
	return err != nil || parseErr != nil || n < plenty
}

// Watch adds every path again, which is cheap and finds those that were made again: another inode has another watch
// descriptor.
func (n *inotify) Watch(files, dirs []string) error {
	watches := make(map[string]int, len(files)+len(dirs))
	var errs []error
	err := n.conn.Control(func(fd uintptr) {
		add := func(mask uint32, paths []string) {
			for _, path := range paths {
				wd, err := unix.InotifyAddWatch(int(fd), path, mask)
				switch {
				case err == nil:
					watches[path] = wd
				case !cgroup.IsGone(err):
					errs = append(errs, fmt.Errorf("watch %s: %w", path, err))
				}
			}
		}
		add(unix.IN_MODIFY, files)
		add(unix.IN_CREATE|unix.IN_DELETE|unix.IN_MOVE|unix.IN_ONLYDIR, dirs)
		kept := slices.Collect(maps.Values(watches))
		for _, wd := range n.watches {
			if !slices.Contains(kept, wd) {
				_, _ = unix.InotifyRmWatch(int(fd), uint32(wd)) // EINVAL: the kernel removed it with the inode
			}
		}
	})
	n.watches = watches
	return errors.Join(append(errs, err)...)
}

// Wait drains the queue. What the events say, or that some were lost, does not matter.
func (n *inotify) Wait(timeout time.Duration) bool {
	err := n.file.SetReadDeadline(time.Now().Add(timeout))
	if err == nil {
		_, err = n.file.Read(n.events[:])
	}
	switch {
	case err == nil, errors.Is(err, os.ErrDeadlineExceeded):
		return true
	case errors.Is(err, os.ErrClosed):
		return false
	}
	return n.clock.Wait(timeout)
}

func (n *inotify) Close() error { return errors.Join(n.clock.Close(), n.file.Close()) }

// clock is a Notifier that reports nothing before the timeout.
type clock struct{ closed chan struct{} }

func newClock() clock { return clock{closed: make(chan struct{})} }

func (clock) Watch(_, _ []string) error { return nil }

func (c clock) Wait(timeout time.Duration) bool {
	select {
	case <-c.closed:
		return false
	case <-time.After(timeout):
		return true
	}
}

func (c clock) Close() error {
	close(c.closed)
	return nil
}
