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

	"sandbox.internal/shim/pkg/poll"
)

// OOMWatch reports OOM kills in a cgroup by the kernel's counter oom_kill; a wake-up only says when to read it.
// The watches of containerd/cgroups v3 cannot be stopped.
type OOMWatch struct {
	// +checklocks:mu
	notify func()
	source oomSource // nil when there is nothing to watch

	mu sync.Mutex // held over read and notify, so that Check waits for a report in progress
	// +checklocks:mu
	last uint64 // number of kills at the last look

	unwatch func()        // ends the calls of signal
	signals chan struct{} // holds one that follow has not seen
	stopped chan struct{} // closed by Stop
	waiter  sync.WaitGroup

	state sync.Mutex
	// +checklocks:state
	begun bool
	// +checklocks:state
	following bool // follow runs; Stop joins it
}

// oomSource is where one cgroup version counts OOM kills. The caller serialises calls of kills and killsAtMost.
type oomSource interface {
	// kills returns the number of kills in the cgroup and those nested in it. On v1 it falls when one of those is removed.
	kills() (uint64, error)
	// killsAtMost is kills for a cgroup that is gone. It includes the kills in siblings since the last call of kills.
	killsAtMost() (uint64, error)
	// signals returns the descriptor and the events (epoll(7)) that come when the number may have risen, -1 for none, and
	// how long after such an event to look at the number, and after that look.
	signals() (fd int, events uint32, looks []time.Duration)
	// close closes all descriptors.
	close()
}

// WatchOOM is OpenOOMWatch and Begin.
func (c *Cgroup) WatchOOM(notify func()) (*OOMWatch, error) {
	w, err := c.OpenOOMWatch(notify)
	if err == nil {
		w.Begin()
	}
	return w, err
}

// OpenOOMWatch opens a watch, which the caller must Begin and Stop. It calls notify for each increase of oom_kill,
// nested cgroups included, from a goroutine, Check or Stop, never concurrently. notify must not call the watch.
//
// Without memory controller the watch does nothing. A cgroup that is gone gives errdefs.ErrNotFound.
func (c *Cgroup) OpenOOMWatch(notify func()) (*OOMWatch, error) {
	w := &OOMWatch{notify: notify, unwatch: func() {}, signals: make(chan struct{}, 1), stopped: make(chan struct{})}
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
		if err = w.watch(source); err != nil {
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
	return w, nil
}

func (w *OOMWatch) watch(source oomSource) (err error) {
	fd, events, _ := source.signals()
	if fd >= 0 {
		stop, err := poll.Each(fd, events, w.signal)
		if err == nil {
			w.unwatch = stop
		} else if !errors.Is(err, unix.EPERM) { // not a file of the kernel's
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last, err = source.kills(); err != nil {
		w.unwatch()
	}
	return err
}

// Begin starts the watch, with the signals since it was opened.
func (w *OOMWatch) Begin() {
	w.state.Lock()
	defer w.state.Unlock()
	w.begun = w.source != nil
	w.followLocked()
}

// signal has somebody look at the number. It returns at once.
func (w *OOMWatch) signal() {
	w.state.Lock()
	defer w.state.Unlock()
	select {
	case w.signals <- struct{}{}:
	default:
	}
	w.followLocked()
}

// +checklocks:w.state
func (w *OOMWatch) followLocked() {
	if w.begun && !w.following && len(w.signals) > 0 {
		w.following = true
		w.waiter.Go(w.follow) // ends after a while, or by Stop
	}
}

// follow looks at the number until a while after the last signal.
func (w *OOMWatch) follow() {
	_, _, looks := w.source.signals()
	for n := 0; n < len(looks) || w.isSignalled(); n++ {
		wait := looks[min(n, len(looks)-1)]
		select {
		case <-w.stopped:
			return
		case <-w.signals:
			n = -1
		case <-time.After(wait):
			w.Check()
		}
	}
}

// isSignalled reports whether there is a signal. If not, follow has ended.
func (w *OOMWatch) isSignalled() bool {
	w.state.Lock()
	defer w.state.Unlock()
	w.following = len(w.signals) > 0
	return w.following
}

// OOMState is what a watch hands over to that of a successor.
type OOMState struct {
	Last   uint64
	Others uint64 `json:",omitempty"`
}

// Freeze keeps the watch from reporting until thaw, and returns its state.
//
// +checklocksignore: thaw unlocks
func (w *OOMWatch) Freeze() (s OOMState, thaw func()) {
	w.mu.Lock()
	s.Last = w.last
	if e, ok := w.source.(*memoryEvents); ok {
		s.Others = e.others
	}
	return s, func() { w.mu.Unlock() }
}

// Restore has a watch that has not begun report the kills since s.
func (w *OOMWatch) Restore(s OOMState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = s.Last
	if source, ok := w.source.(*memoryEvents); ok {
		source.others = s.Others
	}
	w.signal() // which the former watch may have had
}

// Check reads the counter and reports an increase before it returns. The kernel counts a kill before it sends SIGKILL,
// so Check after the exit of a process sees it.
func (w *OOMWatch) Check() { w.check(false) }

// CheckKilled is Check after a process has ended by a SIGKILL of unknown origin. If the cgroup is gone (systemd removes
// empty scopes), the counter of its parent decides on v2: a kill in a sibling since the last Check is taken for one in
// this cgroup. On v1 no counter is left.
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

// Stop checks a last time, and ends the watch. It may be called again, but not at once.
func (w *OOMWatch) Stop() {
	if w.source == nil {
		return
	}
	w.Check()
	w.unwatch()
	select {
	case <-w.stopped:
	default:
		close(w.stopped)
	}
	w.waiter.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.source.close() // closing it again does no harm
}

const memoryEventsFile = "memory.events"

// memoryEvents is memory.events of a v2 cgroup, which counts the subtree (cgroup-v2.rst, "Memory Interface Files").
// The kernel wakes pollers when a number changes, at most every 10 ms. inotify instances are scarce.
type memoryEvents struct {
	*os.File        // not in Go's poller
	above    string // memory.events of the parent cgroup, which counts these kills too
	others   uint64 // kills that only the parent counted, as seen by kills; the number never falls
}

func openMemoryEvents(dir string) (oomSource, error) {
	path := filepath.Join(dir, memoryEventsFile)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	above := filepath.Join(filepath.Dir(dir), memoryEventsFile)
	return &memoryEvents{File: os.NewFile(uintptr(fd), path), above: above}, nil
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

func (e *memoryEvents) signals() (int, uint32, []time.Duration) {
	return int(e.Fd()), unix.EPOLLPRI, []time.Duration{0}
}

func (e *memoryEvents) close() { _ = e.Close() } // closing a control file cannot fail

const oomControlFile = "memory.oom_control"

// oomLooks are the times after a signal of v1: the kernel signals before it chooses a process to kill.
var oomLooks = func() (all []time.Duration) {
	for wait := time.Millisecond; wait < time.Second; wait *= 2 {
		all = append(all, wait)
	}
	return all
}()

// oomControl is memory.oom_control of a v1 cgroup with an eventfd, which the kernel signals for the limits of the
// cgroup and its ancestors, and for its removal (cgroup-v1/memory.rst, "OOM Control"). Other kills wait for a Check.
type oomControl struct {
	dir   string
	event *os.File // not in Go's poller
}

func openOOMControl(dir string) (oomSource, error) {
	file, err := os.Open(filepath.Join(dir, oomControlFile))
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // closing a control file cannot fail
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
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

// killsAtMost fails, since a v1 cgroup does not count kills in its children.
func (c *oomControl) killsAtMost() (uint64, error) { return 0, unix.ENODEV }

// signals gives an event for each write of the kernel, though nobody reads it.
func (c *oomControl) signals() (int, uint32, []time.Duration) {
	return int(c.event.Fd()), unix.EPOLLIN, oomLooks
}

// close also makes the kernel forget the eventfd.
func (c *oomControl) close() { _ = c.event.Close() } // there is nothing to flush
