// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"sandbox.internal/shim/pkg/cgroup"
)

// Metrics is a *cgroup1/stats.Metrics or *cgroup2/stats.Metrics of containerd/cgroups.
type Metrics = proto.Message

// Reader reads the metrics of one cgroup. It is made once for a container and may be used by several goroutines.
type Reader struct {
	cgroup *cgroup.Cgroup
	read   func() (proto.Message, error)
}

// New returns a reader of c. The cgroup must exist: on v1 it is looked at for what the kernel accounts. One that is gone
// is errdefs.ErrNotFound.
func New(c *cgroup.Cgroup) (*Reader, error) {
	if !c.Exists() {
		return nil, notFound(c)
	}
	r := &Reader{cgroup: c}
	var err error
	if c.Unified() {
		r.read, err = newV2(c)
	} else {
		r.read, err = newV1(c)
	}
	if err != nil {
		return nil, fmt.Errorf("metrics of cgroup %s: %w", c, err)
	}
	return r, nil
}

// Read returns the metrics as they are now. The
// metrics of a controller that the cgroup does not have are left out. A cgroup that is gone is errdefs.ErrNotFound.
func (r *Reader) Read() (Metrics, error) {
	m, err := r.read()
	// Asked after the reading: a cgroup that is there now was there all the time, so nothing was read as zero because it
	// was being removed.
	if gone(err) || !r.cgroup.Exists() {
		return nil, notFound(r.cgroup)
	}
	if err != nil {
		return nil, fmt.Errorf("metrics of cgroup %s: %w", r.cgroup, err)
	}
	return m, nil
}

func notFound(c *cgroup.Cgroup) error {
	return fmt.Errorf("metrics of cgroup %s: %w", c, errdefs.ErrNotFound)
}

// gone reports whether err says that a file is not there any more; one that was opened before answers ENODEV.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}
