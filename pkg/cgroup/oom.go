// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
)

// OOMWatch reports when the kernel kills a process of a cgroup for want of memory. The kernel's counter oom_kill is the
// truth; what wakes the watch up only says when to read it.
type OOMWatch struct {
	cgroup string // for messages
	notify func()
	source source        // nil when there is nothing to watch
	ended  chan struct{} // closed when the goroutine has ended
	stop   sync.Once

	mu   sync.Mutex // held over read and notify, so that Check waits for a report that is under way
	last uint64     // the kills that were seen
}

// source is where one cgroup version counts OOM kills.
type source interface {
	// kills returns the number of kills in the cgroup and those nested in it. It may be called at any time, also by
	// several goroutines if the caller serialises them, and does not wait for anything.
	kills() (uint64, error)
	// await calls look each time the number may have risen, and returns after close.
	await(look func())
	// close ends await and lets go of all descriptors.
	close()
}

// WatchOOM starts to watch the cgroup. notify is called once for each increase that is seen of the number of processes
// killed, nested cgroups included; kills that come at once may be one increase. Kills from before the call do not count.
// notify is called by the watch's goroutine or inside Check or Stop, never by two at a time; it must return soon and must
// not call the watch.
//
// A cgroup without memory controller gives a watch that does nothing. A cgroup that is gone is errdefs.ErrNotFound. The
// caller must call Stop.
func (c *Cgroup) WatchOOM(notify func()) (*OOMWatch, error) {
	w := &OOMWatch{cgroup: c.String(), notify: notify, ended: make(chan struct{})}
	dir := c.Path("memory")
	var err error
	switch {
	case dir == "":
	case c.unified:
		w.source, err = openEvents(dir)
	default:
		w.source, err = openControl(dir)
	}
	switch {
	case err == nil && w.source != nil:
		w.last, err = w.source.kills()
		if err != nil {
			w.source.close()
		}
	case err == nil, gone(err) && isDir(dir):
		log.L.WithField("cgroup", w.cgroup).Debug("no memory controller: OOM kills are not reported")
		w.source = nil
		close(w.ended)
		return w, nil
	}
	if err != nil {
		if gone(err) {
			err = errdefs.ErrNotFound
		}
		return nil, fmt.Errorf("watch OOM kills of cgroup %s: %w", w.cgroup, err)
	}
	go w.run() // ends when Stop closes the source; Stop joins it through ended
	return w, nil
}

// Check reads the counter now and reports an increase that was not reported yet before it returns. The kernel counts a
// kill before it sends the signal, so a Check after a process has ended knows whether it was one. When the cgroup is gone
// or the watch stopped it does nothing.
func (w *OOMWatch) Check() {
	if w.source == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.source.kills()
	if err != nil {
		return // gone or stopped: the kernel cannot tell any more, also not through a descriptor that is open
	}
	if n > w.last {
		log.L.WithField("cgroup", w.cgroup).WithField("kills", n-w.last).Info("out of memory: processes killed")
		w.notify()
	}
	w.last = n
}

// Stop does a last Check, ends the goroutine and waits for it. It may be called again.
func (w *OOMWatch) Stop() {
	w.stop.Do(func() {
		w.Check()
		if w.source != nil {
			w.source.close()
		}
	})
	<-w.ended
}

func (w *OOMWatch) run() {
	defer close(w.ended)
	w.source.await(w.Check)
}

// counter is an open control file with lines of a name and a number.
type counter struct{ *os.File }

func openCounter(dir, name string) (counter, error) {
	f, err := os.Open(filepath.Join(dir, name)) // with O_CLOEXEC, as all that os opens
	return counter{f}, err
}

// value reads the number of the line that begins with name. The read is positioned, so it disturbs no other reader.
func (c counter) value(name string) (uint64, error) {
	var buf [512]byte // memory.events has about 100 bytes
	n, err := c.ReadAt(buf[:], 0)
	if n == 0 {
		return 0, err
	}
	for line := range bytes.Lines(buf[:n]) {
		key, number, ok := bytes.Cut(bytes.TrimSpace(line), []byte{' '})
		if ok && string(key) == name {
			return strconv.ParseUint(string(number), 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no line %q: %w", c.Name(), name, errdefs.ErrNotImplemented)
}
