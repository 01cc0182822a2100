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
// oom_kill. A wake-up only says when to read it.
//
// The watches of cgroups/v3 cannot be stopped: EventChan of cgroup2 leaves its goroutine behind, and OOMEventFD of
// cgroup1 is a blocking descriptor.
type OOMWatch struct {
	cgroup string // for messages
	// +checklocks:mu
	notify func()
	source oomSource // nil when there is nothing to watch
	waiter sync.WaitGroup

	mu   sync.Mutex // held over read and notify, so that Check waits for a report in progress
	last uint64     // number of kills at the last look
	// +checklocks:mu
	unlogged uint64 // kills that the log does not have yet
	// +checklocks:mu
	logged time.Time
	// +checklocks:mu
	limits *oomLimits // nil on v1
	// +checklocks:mu
	whose string // cgroup whose limit the last kill was for, see oomLimits
}

// oomLogInterval is how far apart lines of the log are: a container may run out of memory in a loop.
const oomLogInterval = 10 * time.Second

// oomSource is where one cgroup version counts OOM kills.
type oomSource interface {
	// kills returns the number of kills in the cgroup and those nested in it, without blocking. The caller serialises
	// calls.
	kills() (uint64, error)
	// killsAtMost is kills for a cgroup that is gone. It includes the kills in sibling cgroups since the last call of
	// kills. Without a way to count, it returns the last number or an error.
	killsAtMost() (uint64, error)
	// whyNoAwait returns why the kernel does not tell when the number may have risen; empty if it does.
	whyNoAwait() string
	// await calls check each time the number may have risen, and returns after close, or at once if it cannot await.
	await(check func())
	// close ends await and closes all descriptors.
	close()
}

// WatchOOM starts to watch the cgroup. notify is called once for each increase in the number of killed processes,
// nested cgroups included; kills at the same time may be one increase. Kills from before the call do not count. notify
// is called by the watch's goroutine or inside Check or Stop, never concurrently. It must return soon and must not call
// the watch.
//
// A cgroup without memory controller gives a watch that does nothing. If the kernel cannot tell of kills, the log says
// why, and only Check and Stop report. A cgroup that is gone gives errdefs.ErrNotFound. The caller must call Stop.
func (c *Cgroup) WatchOOM(notify func()) (*OOMWatch, error) {
	dir := c.Path("memory")
	open := openOOMControl
	var limits *oomLimits
	if c.unified {
		open = openMemoryEvents
		limits = &oomLimits{dir: dir}
		limits.met = limits.read()
	}
	w := &OOMWatch{cgroup: c.String(), notify: notify, limits: limits}
	var err error
	if dir != "" {
		w.source, err = open(dir)
	}
	if dir == "" || IsGone(err) && exists(dir) {
		log.L.WithField("cgroup", w.cgroup).Debug("no memory controller: OOM kills are not reported")
		w.source = nil
		return w, nil
	}
	if err == nil {
		if w.last, err = w.source.kills(); err != nil {
			w.source.close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("watch OOM kills of cgroup %s: %w", w.cgroup, classify(err))
	}
	if why := w.source.whyNoAwait(); why != "" {
		log.L.WithField("cgroup", w.cgroup).Warn("OOM kills are reported only when init or an exec ends: " + why)
	}
	w.waiter.Go(func() { w.source.await(w.Check) }) // ends when Stop closes the source; Stop joins it
	return w, nil
}

// Check reads the counter and reports an increase that was not reported yet before it returns. The kernel counts a kill
// before it sends the signal, so a Check after a process has ended knows whether it was one. It does nothing when the
// cgroup is gone or the watch stopped.
func (w *OOMWatch) Check() {
	if w.source == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.source.kills()
	w.report(n, err)
}

// CheckKilled is Check after a SIGKILL of unknown origin has ended a process of the cgroup. The cgroup may be gone:
// systemd removes an empty scope. On v2 the parent cgroup still counts the kills of all its children, so a kill in a
// sibling since the last Check is taken for a kill in this cgroup. On v1 no counter is left, and nothing is reported.
func (w *OOMWatch) CheckKilled() {
	if w.source == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.source.kills()
	if err != nil {
		n, err = w.source.killsAtMost()
	}
	w.report(n, err)
}

// report notes and reports the number of kills that was read.
//
// +checklocks:w.mu
func (w *OOMWatch) report(n uint64, err error) {
	if err != nil {
		return // gone or stopped: an open descriptor cannot read it any more either
	}
	if n > w.last {
		if w.limits != nil {
			w.whose = w.limits.whose()
		}
		if w.unlogged += n - w.last; time.Since(w.logged) >= oomLogInterval {
			w.log()
		}
		w.notify()
	}
	w.last = max(w.last, n)
}

// log writes down the kills that the log does not have yet.
//
// +checklocks:w.mu
func (w *OOMWatch) log() {
	if w.unlogged > 0 {
		entry := log.L.WithField("cgroup", w.cgroup).WithField("kills", w.unlogged)
		if w.whose != "" {
			entry = entry.WithField("limit_of", w.whose)
		}
		entry.Info("out of memory: processes killed")
		w.unlogged, w.logged = 0, time.Now()
	}
}

// Limit returns the cgroup whose limit the last kill was for, or NoOOMLimit. It returns "" if there was none, or the
// kernel does not tell.
func (w *OOMWatch) Limit() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.whose
}

// Stop checks a last time, ends the goroutine and waits for it. It may be called again.
func (w *OOMWatch) Stop() {
	w.Check()
	if w.source != nil {
		w.source.close() // closing it again does no harm
	}
	w.waiter.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log()
}

// memoryEvents is memory.events of a v2 cgroup, which counts the whole subtree. memory.events.local would leave out the
// cgroups that a container makes for itself (cgroup-v2.rst, "Memory Interface Files").
//
// The kernel wakes pollers of the file when a number changes, but not within 10 ms of the last time. Polling, unlike
// inotify, needs no instance: a user has 128 for all programs by default (fs.inotify.max_user_instances), fewer than a
// node has containers.
type memoryEvents struct {
	*os.File
	above  *os.File // memory.events of the parent cgroup, which counts these kills too; nil if there is none
	others uint64   // kills that only the parent counted, as seen by kills; the number never falls
}

func openMemoryEvents(dir string) (oomSource, error) {
	file, err := os.Open(filepath.Join(dir, memoryEventsFile))
	if err != nil {
		return nil, err
	}
	e := &memoryEvents{File: file}
	// Without os.Open, which would have the poller woken by all cgroups that are below that one.
	above := filepath.Join(filepath.Dir(dir), memoryEventsFile)
	if fd, err := unix.Open(above, unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		e.above = os.NewFile(uintptr(fd), above)
	}
	return e, nil
}

const memoryEventsFile = "memory.events"

func (e *memoryEvents) kills() (uint64, error) {
	for {
		n, err := numberIn(e.File, "oom_kill")
		if err != nil || e.above == nil {
			return n, err
		}
		all, err := numberIn(e.above, "oom_kill")
		if err != nil {
			return n, nil //nolint:nilerr // all that is lost is the count after the end of the cgroup
		}
		switch again, err := numberIn(e.File, "oom_kill"); {
		case err != nil: // it is gone, and n is the last count
			return n, nil
		case again == n: // so all has none that n has not; but the kernel counts here before it counts above
			if others := all - n; all > n && others > e.others {
				e.others = others
			}
			return n, nil
		}
	}
}

func (e *memoryEvents) killsAtMost() (uint64, error) {
	if e.above == nil {
		return 0, unix.ENODEV
	}
	all, err := numberIn(e.above, "oom_kill")
	return all - min(all, e.others), err
}

func (e *memoryEvents) whyNoAwait() string { return whyNotPolled(e.File) }

// whyNotPolled returns why Go's poller does not have the file. Package os drops the error of epoll_ctl(2), for example
// ENOSPC (fs.epoll.max_user_watches); but only a file that is not polled has no deadlines.
func whyNotPolled(f *os.File) string {
	if !errors.Is(f.SetDeadline(time.Time{}), os.ErrNoDeadline) {
		return ""
	}
	return "the kernel has no room to watch for them: raise fs.epoll.max_user_watches, unless memory was short"
}

// await waits in Go's poller, which calls the function at first and after each wake-up until the file is closed. It
// returns immediately for a file that is not polled.
func (e *memoryEvents) await(check func()) {
	conn, _ := e.SyscallConn()         // fails only without a file
	_ = conn.Read(func(uintptr) bool { // the error says that the file was closed
		check()
		return false
	})
}

func (e *memoryEvents) close() {
	_ = e.Close() // closing a control file cannot fail
	if e.above != nil {
		_ = e.above.Close()
	}
}
