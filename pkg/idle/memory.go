// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"debug/elf"
	"fmt"
	"os"
	"runtime/debug"
	"sync"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// quietGC and usedGC are the GOGC of a shim that is quiet, and of one that is used again: the smallest heap at which Go
// collects is that percentage of 4 MiB.
const quietGC, usedGC = 20, 50

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

// Trim gives garbage and the mapped pages of the program's file back. After it GOGC is lower, so that garbage from
// periodic polls stays small. If an operator has set GOGC, that stays, and Trim does not start the first collection.
func (m *Memory) Trim() {
	m.mu.Lock()
	defer m.mu.Unlock()
	first := m.collected == 0 && os.Getenv("GOGC") == ""
	setGC(quietGC)
	if first || collections() > m.collected {
		debug.FreeOSMemory()
		m.collected = collections()
	}
	// This comes last: what runs after it maps its code and data again. The pages stay in the page cache. If madvise(2)
	// fails, more stays mapped, which does no harm.
	for _, c := range m.code {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, c[0], c[1], unix.MADV_DONTNEED)
	}
}

// Use is called when the shim is used after a Trim, and at the start of one that is to have many pods.
func (m *Memory) Use() {
	m.mu.Lock()
	defer m.mu.Unlock()
	setGC(usedGC)
}

// setGC sets GOGC, unless an operator has.
func setGC(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
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
