// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package stats reads the metrics of a cgroup as the messages of github.com/containerd/cgroups/v3:
// io.containerd.cgroups. v1.Metrics on v1 and hybrid, io.containerd.cgroups.v2.Metrics on v2. containerd's collectors
// and CRI branch on the name. The figures are those of containerd/cgroups, with which the tests compare them on live
// cgroups; where that is wrong the tests say so. The package has readers of its own because containerd/cgroups opens
// every file for every call, which takes seven times as much CPU time (1.28 against 0.19 ms).
//
// # Values
//
//   - No limit: on v2 the largest number of the field's type; on v1 0 for pids, and for memory what the kernel writes,
//     the largest number of bytes in whole pages.
//   - A controller that the cgroup does not have is left out of the message, and so is pressure that is not accounted.
//     On v1 the CPU message has both parts when cpu or cpuacct is there, and memory all four entries: consumers rely on
//     it.
//   - A number that the kernel does not have is 0: memory.peak before Linux 5.19, memory.swap.* without swap
//     accounting, usage and limits of the root.
//   - Unknown keys and lines are skipped, since kernels add some. A known key whose value is not a number is
//     errdefs.ErrInternal and names file and key: a wrong figure would be worse than none.
//
// The messages have no place for memory.events.local, the other keys of memory.stat, zswap, the events and peak of
// pids, bytes and operations that were discarded, rsvd of hugetlb, bursts on v1, and misc. Their fields for networks
// and for tasks by state (taskstats) do not come from files of a cgroup, and stay empty as with the runc shim.
//
// # Cost
//
// A reader keeps its files open between calls, some 30 on v1 and 25 on v2, from the first Read until Close, or until a
// Read finds the cgroup gone. Opening takes six times as long as reading. An open file takes a page of the kernel's
// memory. The kernel makes the text anew at each read from the start, and answers ENODEV when the cgroup or the
// controller is gone; the files are then opened again, once. cgroup.controllers tells of controllers that are added to
// a v2 cgroup.
//
// # Concurrency
//
// The package has no goroutine. Concurrent calls of Read share one read and its answer. Nothing is kept for later
// calls. Reader.mu is held while files are read or closed.
package stats

import (
	"errors"
	"fmt"
	"sync"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/errdefs"
	"golang.org/x/sync/singleflight"
	"google.golang.org/protobuf/proto"

	"sandbox.internal/shim/pkg/cgroup"
)

// Metrics is a *Metrics of cgroup1/stats or of cgroup2/stats. Several callers may share it, so it must not be changed.
type Metrics interface{ proto.Message }

// Reader reads the metrics of one cgroup. It is made once for a container and may be used by several goroutines.
type Reader struct {
	cgroup *cgroup.Cgroup
	reads  singleflight.Group // the read in progress

	mu sync.Mutex // held while source reads or closes
	// +checklocks:mu
	source interface {
		read() (Metrics, error)
		close()
	}
}

// New returns a reader of c, a container's cgroup or any other. One that is gone is errdefs.ErrNotFound. Close closes
// the files that Read opens.
func New(c *cgroup.Cgroup) (*Reader, error) {
	r := &Reader{cgroup: c}
	switch {
	case !c.Exists():
		return nil, r.notFound()
	case c.Unified():
		r.source = &files[*v2.Metrics]{
			make: func() *v2.Metrics { return &v2.Metrics{} },
			dirs: func() []directory[*v2.Metrics] { return directoriesV2(c.Path("")) },
		}
	default:
		r.source = &files[*v1.Metrics]{
			make: func() *v1.Metrics { return &v1.Metrics{} },
			dirs: func() []directory[*v1.Metrics] { return directoriesV1(c) },
		}
	}
	return r, nil
}

// Read returns the metrics as they are now, or as a Read in progress finds them. It leaves out controllers that the
// cgroup does not have. A cgroup that is gone is errdefs.ErrNotFound.
func (r *Reader) Read() (Metrics, error) {
	m, err, _ := r.reads.Do("", func() (any, error) { return r.read() })
	if err != nil {
		return nil, err
	}
	return m.(Metrics), nil
}

// Close closes the files. A Read after it opens them again.
func (r *Reader) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.source.close()
}

func (r *Reader) read() (Metrics, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, err := r.source.read()
	if errors.Is(err, errStale) {
		r.source.close()
		m, err = r.source.read()
	}
	// Checked after the read: a cgroup that exists now existed all the time, so nothing is missing because it was being
	// removed.
	if errors.Is(err, errStale) || !r.cgroup.Exists() {
		return nil, r.notFound()
	}
	if err != nil {
		return nil, fmt.Errorf("metrics of cgroup %s: %w", r.cgroup, err)
	}
	return m, nil
}

func (r *Reader) notFound() error {
	return fmt.Errorf("metrics of cgroup %s: %w", r.cgroup, errdefs.ErrNotFound)
}
