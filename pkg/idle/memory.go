// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"debug/elf"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// keptThreads is how many threads Trim leaves. A shim that had no burst has fewer.
const keptThreads = 12

// quietGC is the GOGC of a shim that has been quiet: the smallest heap at which Go collects is that percentage of 4
// MiB.
const quietGC = 50

// Memory is what this process can give back to the system (docs/decisions/0006-memory-of-a-shim.md).
type Memory struct {
	mu sync.Mutex
	// +checklocks:mu
	code [][2]uintptr // start and size of the program's segments that nothing writes to
	// +checklocks:mu
	collected int64 // garbage collections when memory was last given back
}

// OwnMemory returns the memory of this process.
func OwnMemory() *Memory {
	code, err := readOnlySegments("/proc/self/exe")
	if err != nil {
		log.L.WithError(err).Warn("the shim keeps its code in memory")
	}
	return &Memory{code: code}
}

// Trim gives threads, garbage and the mapped pages of the program's file back. After the first call GOGC is lower, so
// that garbage from periodic polls stays small. If an operator has set GOGC, Trim does not start the first collection.
func (m *Memory) Trim() {
	m.mu.Lock()
	defer m.mu.Unlock()
	first := m.collected == 0 && os.Getenv("GOGC") == ""
	if first {
		debug.SetGCPercent(quietGC)
	}
	if first || collections() > m.collected {
		debug.FreeOSMemory()
		m.collected = collections()
	}
	if threads, err := os.ReadDir("/proc/self/task"); err == nil && len(threads) > keptThreads {
		// For each thread in a system call the runtime would make a new one, which the cgroup may not allow.
		endThreads(len(threads) - keptThreads - inSystemCalls())
	}
	// This comes last: what runs after it maps its code and data again.
	for _, c := range m.code {
		// The pages stay in the page cache, and come back when they are used. If madvise(2) fails, more stays mapped,
		// which does no harm.
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, c[0], c[1], unix.MADV_DONTNEED)
	}
}

// inSystemCalls returns about how many threads are in system calls now.
func inSystemCalls() int {
	sample := []metrics.Sample{{Name: "/sched/goroutines/not-in-go:goroutines"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0 // this Go has no such metric
	}
	return int(sample[0].Value.Uint64())
}

// endThreads ends n threads, if any, that have nothing to do. The Go runtime makes one for each system call that
// blocks, and keeps it for the next one. But a goroutine that returns while it is locked to its thread ends it.
func endThreads(n int) {
	var locked sync.WaitGroup
	all := make(chan struct{})
	locked.Add(max(n, 0))
	for range n {
		go func() {
			runtime.LockOSThread()
			locked.Done()
			<-all // or the next one would have no other thread
		}()
	}
	locked.Wait()
	close(all)
}

// collections returns how many collections the runtime has made. runtime.ReadMemStats has the number too, but takes
// memory as a collection does.
func collections() int64 {
	var s debug.GCStats
	debug.ReadGCStats(&s)
	return s.NumGC
}

// readOnlySegments finds the segments of this program, whose file is at path, that are never written to. The memory map
// would not do: what is protected after relocation looks the same there, and would be lost.
func readOnlySegments(path string) (segments [][2]uintptr, err error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("segments of %s: %w", path, err)
	}
	defer func() { _ = f.Close() }() // opened for reading only
	if f.Type != elf.ET_EXEC {
		return nil, nil // it is loaded elsewhere than its file says
	}
	page := uint64(os.Getpagesize())
	for _, p := range f.Progs {
		if p.Type != elf.PT_LOAD || p.Flags&elf.PF_W != 0 {
			continue
		}
		// Whole pages only: the next segment may share the last one.
		start, end := (p.Vaddr+page-1)&^(page-1), (p.Vaddr+p.Filesz)&^(page-1)
		if end > start {
			segments = append(segments, [2]uintptr{uintptr(start), uintptr(end - start)})
		}
	}
	return segments, nil
}
