// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
)

// Notifier reports that something it watches may have changed, but not what.
type Notifier interface {
	// Watch replaces the watches: writes to files, and changes of the entries of dirs. It ignores paths that do not exist.
	// It may be called during Wait, but not after Close.
	Watch(files, dirs []string) error
	// Wait returns true when something has changed since the last call, or after timeout, and false after Close.
	Wait(timeout time.Duration) bool
	// Close ends Wait and releases everything.
	Close()
}

type inotify struct {
	closed  chan struct{}
	err     error               // why there is no instance; every Watch returns it
	file    *os.File            // nil after err; non-blocking, so that Go's poller waits
	fd      int                 // of file
	watches map[string]int      // the watch descriptor of each path; only Watch uses it
	events  [inotifyBuffer]byte // only Wait uses it
}

const inotifyBuffer = 4096

// Inotify returns a Notifier with an inotify instance.
func Inotify() Notifier {
	n := &inotify{closed: make(chan struct{})}
	if n.fd, n.err = unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC); n.err != nil {
		n.err = fmt.Errorf("inotify_init1: %w (is fs.inotify.max_user_instances used up?)", n.err)
		return n
	}
	n.file = os.NewFile(uintptr(n.fd), "inotify")
	if err := n.file.SetReadDeadline(time.Time{}); err != nil { // beyond fs.epoll.max_user_watches
		n.err = errors.Join(fmt.Errorf("poll inotify: %w", err), n.file.Close())
	}
	return n
}

// Watch adds every path again: another inode has another watch descriptor.
func (n *inotify) Watch(files, dirs []string) error {
	watches, err := make(map[string]int, len(files)+len(dirs)), n.err
	if err != nil {
		return err
	}
	add := func(mask uint32, paths []string) {
		for _, path := range paths {
			wd, watchErr := unix.InotifyAddWatch(n.fd, path, mask)
			switch {
			case watchErr == nil:
				watches[path] = wd
			case !cgroup.IsGone(watchErr):
				err = errors.Join(err, fmt.Errorf("watch %s: %w", path, watchErr))
			}
		}
	}
	add(unix.IN_MODIFY, files)
	add(unix.IN_CREATE|unix.IN_DELETE|unix.IN_MOVE|unix.IN_ONLYDIR, dirs)
	kept := slices.Collect(maps.Values(watches))
	for _, wd := range n.watches {
		if !slices.Contains(kept, wd) {
			_, _ = unix.InotifyRmWatch(n.fd, uint32(wd)) // EINVAL: the kernel removed it with the inode
		}
	}
	n.watches = watches
	return err
}

// Wait drains the queue. The content of the events does not matter.
func (n *inotify) Wait(timeout time.Duration) bool {
	if n.err == nil {
		_ = n.file.SetReadDeadline(time.Now().Add(timeout)) // fails when the file is closed, and then Read does as well
		_, _ = n.file.Read(n.events[:])
	} else {
		select {
		case <-n.closed:
		case <-time.After(timeout):
		}
	}
	select {
	case <-n.closed:
		return false
	default:
		return true
	}
}

func (n *inotify) Close() {
	close(n.closed)
	_ = n.file.Close() // nil or closed after n.err; nothing was written
}
