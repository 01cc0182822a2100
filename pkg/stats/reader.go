// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"errors"
	"fmt"
	"sync"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"sandbox.internal/shim/pkg/cgroup"
)

// Metrics is a *Metrics of cgroup1/stats or of cgroup2/stats. Several callers may share it, so it must not be changed.
type Metrics interface{ proto.Message }

// Reader reads the metrics of one cgroup. It is made once for a container and may be used by several goroutines.
type Reader struct {
	cgroup *cgroup.Cgroup
	shared shared[Metrics]

	mu     sync.Mutex // held while source reads or closes
	source interface {
		read() (Metrics, error)
		close()
	}
}

// New returns a reader of c, which may be any cgroup: a container's, or that of the pod above it. One that is gone is
// errdefs.ErrNotFound. Close lets go of the files that Read opens.
func New(c *cgroup.Cgroup) (*Reader, error) {
	r := &Reader{cgroup: c}
	switch {
	case !c.Exists():
		return nil, r.notFound()
	case c.Unified():
		r.source = &files[*v2.Metrics]{
			make:    func() *v2.Metrics { return &v2.Metrics{} },
			folders: func() []folder[*v2.Metrics] { return foldersV2(c.Path("")) },
		}
	default:
		r.source = &files[*v1.Metrics]{
			make:    func() *v1.Metrics { return &v1.Metrics{} },
			folders: func() []folder[*v1.Metrics] { return foldersV1(c) },
		}
	}
	return r, nil
}

// Read returns the metrics as they are now, or as a Read under way finds them. The metrics of a controller that the cgroup
// does not have are left out. A cgroup that is gone is errdefs.ErrNotFound.
func (r *Reader) Read() (Metrics, error) { return r.shared.do(r.read) }

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
	// Asked after the reading: a cgroup that is there now was there all the time, so nothing was left out because it was
	// being removed.
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
