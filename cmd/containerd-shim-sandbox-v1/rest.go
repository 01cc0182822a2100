// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
)

// How long nobody asks anything of the daemon before it gives memory back. The first time is soon after its container
// started; after that it is more than the ten seconds that lie between the probes of a kubelet, which would else pay for
// the pages that they bring back.
const (
	firstRest = 2 * time.Second
	laterRest = 15 * time.Second
)

// polls are the methods by which somebody looks at intervals, as containerd's CRI plugin does each second (containerd
// internal/cri/server/stats_collector.go). Who waited for their end would never rest; they need little of the program.
var polls = []string{"Stats", "State", "Pids", "SandboxMetrics", "SandboxStatus", "PingSandbox"}

// restGC is how much garbage there may be once the daemon has rested, in percent of what is in use; the least heap at which
// Go collects is that share of 4 MiB.
const restGC = 50

// rester calls rest when nothing has been asked of the daemon for a while, polls apart: once, and not again before the next
// call.
type rester struct {
	timer *time.Timer
	delay atomic.Int64 // time.Duration
	mu    sync.Mutex   // held during a rest
}

// newRester begins with the waiting. rest is called by a goroutine of its own, one at a time.
func newRester(rest func()) *rester {
	r := &rester{}
	r.delay.Store(int64(firstRest))
	r.timer = time.AfterFunc(firstRest, func() {
		r.delay.Store(int64(laterRest))
		r.mu.Lock()
		defer r.mu.Unlock()
		rest()
	})
	return r
}

// intercept is next with the waiting begun anew by each call that is no poll, and by its end.
func (r *rester) intercept(next ttrpc.UnaryServerInterceptor) ttrpc.UnaryServerInterceptor {
	return func(ctx context.Context, u ttrpc.Unmarshaler, i *ttrpc.UnaryServerInfo, m ttrpc.Method) (any, error) {
		if !slices.Contains(polls, path.Base(i.FullMethod)) {
			r.wait()
			defer r.wait()
		}
		return next(ctx, u, i, m)
	}
}

func (r *rester) wait() { r.timer.Reset(time.Duration(r.delay.Load())) }

// stop ends the waiting.
func (r *rester) stop() { r.timer.Stop() }

// memory is what this process can give back (docs/decisions/0006).
type memory struct {
	code []segment
	seen int64 // collections of garbage, when it was last given back
}

// ownMemory is the memory of this process.
func ownMemory() *memory {
	code, err := readOnly("/proc/self/exe")
	if err != nil {
		log.L.WithError(err).Warn("the shim keeps its code in memory")
	}
	for _, s := range code {
		s.mapSmall()
	}
	return &memory{code: code}
}

// giveBack returns garbage and what is mapped of the program's file to the system. It is called by one goroutine at a
// time.
//
// From then on garbage is collected earlier: what polls leave is not to grow to what a busy shim may have.
//
// A heap that was never collected is left alone: it is small, and a collection takes more than it frees, a page for each
// size of object that is in use.
func (m *memory) giveBack() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(restGC)
	}
	if collections() > m.seen {
		debug.FreeOSMemory()
		m.seen = collections()
	}
	for _, s := range m.code {
		s.drop()
	}
}

// collections is how many the runtime has made. runtime.ReadMemStats would tell as well, but takes memory as a
// collection does.
func collections() int64 {
	var s debug.GCStats
	debug.ReadGCStats(&s)
	return s.NumGC
}

// segment is a part of the program in memory that nothing writes to.
type segment struct{ start, size uintptr }

// mapSmall has the kernel map no huge page of the page cache. Where the file lies in such, as the linker or a copy left it, one
// touch would map 2 MiB.
func (s segment) mapSmall() {
	// Without it more is mapped, which harms nobody.
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, s.start, s.size, unix.MADV_NOHUGEPAGE)
}

// drop unmaps the pages. They stay in the page cache, and come back when they are used.
func (s segment) drop() {
	// Without it they stay, which harms nobody.
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, s.start, s.size, unix.MADV_DONTNEED)
}

// readOnly finds the segments of this program, whose file is at path, that are never written to. The memory map would
// not do: what is protected after relocation looks the same there, and would be lost.
func readOnly(path string) ([]segment, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("segments of %s: %w", path, err)
	}
	defer func() { _ = f.Close() }() // opened for reading only
	if f.Type != elf.ET_EXEC {
		return nil, nil // it lies elsewhere than its file says
	}
	var list []segment
	page := uint64(os.Getpagesize())
	for _, p := range f.Progs {
		if p.Type != elf.PT_LOAD || p.Flags&elf.PF_W != 0 {
			continue
		}
		// Whole pages only: the next segment may share the last one.
		start, end := (p.Vaddr+page-1)&^(page-1), (p.Vaddr+p.Filesz)&^(page-1)
		if end > start {
			list = append(list, segment{uintptr(start), uintptr(end - start)})
		}
	}
	return list, nil
}
