// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sleep

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strconv"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
)

const (
	// reclaimTime bounds how long memory of a container is given back.
	reclaimTime = 10 * time.Second
	// reclaimStep is what the kernel is asked for at once: a few milliseconds, after which the container may be wanted.
	reclaimStep = 8 << 20
)

// reclaim gives memory of a container that sleeps back, until there is no more, it is wanted or the time is over.
// cgroup v2 takes an amount (cgroup-v2.rst, memory.reclaim, Linux 5.19). cgroup v1 gives back all that it can at once
// (cgroup-v1/memory.rst, force_empty), also if the container wakes meanwhile.
func (g *group) reclaim(ctx context.Context, h *hook) {
	ctx, cancel := context.WithTimeout(ctx, reclaimTime)
	defer cancel()
	c := h.runtime.Cgroup()
	before := current(c)
	var err error
	if !c.Unified() {
		err = cgroup.Write(c.File("memory.force_empty"), "0")
	}
	for c.Unified() && err == nil && ctx.Err() == nil {
		err = cgroup.Write(c.File("memory.reclaim"), strconv.Itoa(reclaimStep))
	}
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EBUSY): // there is no more
	case cgroup.IsGone(err): // an older kernel, no controller, or no container
	case err != nil:
		log.L.WithError(err).WithField("container", h.id).Warn("give memory of a sleeping container back")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.told.Freed = before - min(before, current(c))
}

// current is the memory of a cgroup in bytes; 0 if it is not counted.
func current(c *cgroup.Cgroup) uint64 {
	name := "memory.usage_in_bytes"
	if c.Unified() {
		name = "memory.current"
	}
	text, err := os.ReadFile(c.File(name))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 64) // the kernel's number
	return n
}
