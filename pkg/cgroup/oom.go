// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// OOMWatch reports when the kernel kills a process of a cgroup for lack of memory. It relies on the kernel's counter
// oom_kill; a wake-up only says when to read it. The watches of cgroups/v3 cannot be stopped.
type OOMWatch struct {
	notify func()
	source oomSource // nil when there is nothing to watch
	waiter sync.WaitGroup

	mu   sync.Mutex // held over read and notify, so that Check waits for a report in progress
	last uint64     // number of kills at the last look
}

// oomSource is where one cgroup version counts OOM kills. The caller serialises calls of kills and killsAtMost.
type oomSource interface {
	// kills returns the number of kills in the cgroup and those nested in it. On v1 it falls when one of those is removed.
	kills() (uint64, error)
	// killsAtMost is kills for a cgroup that is gone. It includes the kills in sibling cgroups since the last call of
	// kills. Without a way to count, it returns an error.
	killsAtMost() (uint64, error)
	// await calls check each time the number may have risen, and returns after close, or at once if it cannot await.
	await(check func())
	// close ends await and closes all descriptors.
	close()
}

// WatchOOM starts to watch the cgroup. notify is called once for each increase in the number of killed processes since
// the call, nested cgroups included. It is called by the watch's goroutine or inside Check or Stop, never concurrently.
// It must return soon and must not call the watch.
//
// A cgroup without memory controller gives a watch that does nothing. If the kernel cannot tell of kills, only Check
// and Stop report. A cgroup that is gone gives errdefs.ErrNotFound. The caller must call Stop.
func (c *Cgroup) WatchOOM(notify func()) (*OOMWatch, error) {
	w := &OOMWatch{notify: notify}
	dir := c.Path("memory")
	if dir == "" {
		return w, nil
	}
	open := openOOMControl
	if c.unified {
		open = openMemoryEvents
	}
	source, err := open(dir)
	if err == nil {
		if w.last, err = source.kills(); err != nil {
			source.close()
		}
	}
	if IsGone(err) && exists(dir) { // no memory controller
		return w, nil
	}
	if err != nil {
		return nil, fmt.Errorf("watch OOM kills of cgroup %s: %w", c, classify(err))
	}
	w.source = source
	w.waiter.Go(func() { source.await(w.Check) }) // ends when Stop closes the source; Stop joins it
	return w, nil
}

// Check reads the counter and reports an increase before it returns. The kernel counts a kill before it sends the
// signal, so a Check after a process has ended knows whether it was one. It does nothing when the cgroup is gone.
func (w *OOMWatch) Check() { w.check(false) }

// CheckKilled is Check after a SIGKILL of unknown origin has ended a process of the cgroup. The cgroup may be gone:
// systemd removes an empty scope. On v2 the parent cgroup still counts the kills of all its children, so a kill in a
// sibling since the last Check is taken for a kill in this cgroup. On v1 no counter is left, and nothing is reported.
func (w *OOMWatch) CheckKilled() { w.check(true) }

func (w *OOMWatch) check(killed bool) {
	if w.source == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.source.kills()
	if err != nil && killed {
		n, err = w.source.killsAtMost()
	}
	if err != nil {
		return // gone or stopped
	}
	if n > w.last {
		w.notify()
	}
	w.last = n
}

// Stop checks a last time, ends the goroutine and waits for it. It may be called again.
func (w *OOMWatch) Stop() {
	w.Check()
	if w.source != nil {
		w.source.close() // closing it again does no harm
	}
	w.waiter.Wait()
}

const memoryEventsFile = "memory.events"

// memoryEvents is memory.events of a v2 cgroup, which counts the whole subtree (cgroup-v2.rst, "Memory Interface
// Files"). The kernel wakes pollers of the file when a number changes, but not within 10 ms of the last time. Polling,
// unlike inotify, needs none of the few instances of a user (fs.inotify.max_user_instances).
type memoryEvents struct {
	*os.File        // in Go's poller
	above    string // memory.events of the parent cgroup, which counts these kills too
	others   uint64 // kills that only the parent counted, as seen by kills; the number never falls
}

func openMemoryEvents(dir string) (oomSource, error) {
	file, err := os.Open(filepath.Join(dir, memoryEventsFile))
	if err != nil {
		return nil, err
	}
	return &memoryEvents{File: file, above: filepath.Join(filepath.Dir(dir), memoryEventsFile)}, nil
}

func (e *memoryEvents) kills() (uint64, error) {
	for {
		n, err := readNumber(e.Name(), "oom_kill")
		if err != nil {
			return 0, err
		}
		all, aboveErr := readNumber(e.above, "oom_kill")
		again, err := readNumber(e.Name(), "oom_kill")
		if aboveErr != nil || err != nil { // what is lost is the count after the end of the cgroup
			return n, nil
		}
		if again == n { // so all has none that n has not; but the kernel counts here before it counts above
			e.others = max(e.others, all-min(all, n))
			return n, nil
		}
	}
}

func (e *memoryEvents) killsAtMost() (uint64, error) {
	all, err := readNumber(e.above, "oom_kill")
	return all - min(all, e.others), err
}

// await waits in Go's poller, which calls the function at first and after each wake-up until the file is closed. It
// returns immediately if the poller does not have the file (fs.epoll.max_user_watches).
func (e *memoryEvents) await(check func()) {
	conn, _ := e.SyscallConn()         // fails only without a file
	_ = conn.Read(func(uintptr) bool { // the error says that the file was closed
		check()
		return false
	})
}

func (e *memoryEvents) close() { _ = e.Close() } // closing a control file cannot fail

const (
	// The kernel signals that a v1 cgroup is out of memory before it chooses a process to kill. So the counter is read
	// after 1, 2, 4 … 512 ms, in all about a second.
	firstRead = time.Millisecond
	lastRead  = 512 * time.Millisecond

	oomControlFile = "memory.oom_control"
)

// oomControl is memory.oom_control of a v1 cgroup with an eventfd. The kernel signals that when the cgroup or an
// ancestor is out of memory, and when it is removed (cgroup-v1/memory.rst, "OOM Control"). A kill by the machine's OOM
// killer, or by the limit of a nested cgroup, is counted and not signalled; the next Check finds it.
type oomControl struct {
	dir   string
	event *os.File
}

func openOOMControl(dir string) (oomSource, error) {
	file, err := os.Open(filepath.Join(dir, oomControlFile))
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // closing a control file cannot fail
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	c := &oomControl{dir: dir, event: os.NewFile(uintptr(fd), "oom eventfd")}
	err = Write(filepath.Join(dir, "cgroup.event_control"), fmt.Sprintf("%d %d", fd, file.Fd()))
	if errors.Is(err, unix.EOPNOTSUPP) { // mm/memcontrol-v1.c, memcg_write_event_control
		log.L.WithField("cgroup", dir).Warn("a kernel with PREEMPT_RT does not tell of OOM kills on cgroup v1: " +
			"they are reported only when init or an exec ends")
		err = nil
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// kills adds up the counters of the cgroup and those nested in it, each of which is that of one cgroup only.
func (c *oomControl) kills() (sum uint64, err error) {
	err = walk(c.dir, func(dir string) error {
		n, err := readNumber(filepath.Join(dir, oomControlFile), "oom_kill")
		sum += n
		return err
	}, nil)
	return sum, err
}

// killsAtMost fails: a v1 cgroup does not count what is below it, so nobody knows of the kills in one that is gone.
func (c *oomControl) killsAtMost() (uint64, error) { return 0, unix.ENODEV }

func (c *oomControl) await(check func()) {
	var buf [8]byte // an eventfd is read eight bytes at a time
	for wait := time.Duration(0); ; {
		var deadline time.Time
		if wait > 0 {
			deadline = time.Now().Add(wait)
		}
		_ = c.event.SetReadDeadline(deadline) // fails when the file is closed, and then Read does as well
		_, err := c.event.Read(buf[:])
		switch {
		case err == nil:
			wait = firstRead
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return
		case wait < lastRead:
			wait *= 2
		default:
			wait = 0
		}
		check()
	}
}

// close also makes the kernel forget the eventfd.
func (c *oomControl) close() { _ = c.event.Close() } // there is nothing to flush
