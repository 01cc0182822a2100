// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package controlfile writes and checks control files of a container's cgroup where libcontainer does not.
package controlfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/resources"
)

// WriteRest writes the limits that libcontainer leaves out although the kernel has them: on cgroup v1 the memory of TCP
// buffers, and turning the OOM killer back on; on v2 the weights of devices, if the IO scheduler is not BFQ.
func WriteRest(c *cgroup.Cgroup, r *specs.LinuxResources) error {
	switch {
	case r == nil:
		return nil
	case !c.Unified():
		return writeMemory(c, r.Memory)
	case r.BlockIO != nil:
		return writeDeviceWeights(c, r.BlockIO.WeightDevice)
	}
	return nil
}

func writeMemory(c *cgroup.Cgroup, m *specs.LinuxMemory) error {
	if m == nil {
		return nil
	}
	if m.KernelTCP != nil && *m.KernelTCP != 0 {
		if err := writeFile(c, "memory.kmem.tcp.limit_in_bytes", strconv.FormatInt(*m.KernelTCP, 10)); err != nil {
			return err
		}
	}
	if m.DisableOOMKiller != nil && !*m.DisableOOMKiller && c.File("memory.oom_control") != "" {
		return writeFile(c, "memory.oom_control", "0")
	}
	return nil
}

// writeDeviceWeights skips devices whose scheduler has no weights, and, as runc does, all devices if the kernel has
// none.
func writeDeviceWeights(c *cgroup.Cgroup, devices []specs.LinuxWeightDevice) error {
	if _, err := os.Stat(c.File("io.bfq.weight")); err == nil {
		return nil // libcontainer wrote to this one
	}
	for _, d := range devices {
		if d.Weight == nil || *d.Weight == 0 {
			continue
		}
		line := fmt.Sprintf("%d:%d %d", d.Major, d.Minor, cgroups.ConvertBlkIOToIOWeightValue(*d.Weight))
		err := writeFile(c, "io.weight", line)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
	}
	return nil
}

func writeFile(c *cgroup.Cgroup, name, text string) error {
	if c.File(name) == "" {
		return fmt.Errorf("the container is in no cgroup that could have %s: %w", name, errdefs.ErrFailedPrecondition)
	}
	return cgroups.WriteFile(filepath.Dir(c.File(name)), name, text)
}

// CheckControllers refuses a field whose controller the container is not in.
func CheckControllers(c *cgroup.Cgroup, fields []resources.Field) error {
	for _, f := range fields {
		for _, file := range f.Files(c.Unified()) {
			if c.File(file) == "" {
				return fmt.Errorf("linux.resources.%s: the container is in no cgroup that could have %s: %w",
					f.Name, file, errdefs.ErrFailedPrecondition)
			}
		}
	}
	return nil
}

// CheckUsage refuses a limit that is not above the current usage, if m asks for that check: on cgroup v2 the kernel
// would kill processes to get below the limit.
func CheckUsage(c *cgroup.Cgroup, m *specs.LinuxMemory) error {
	if m == nil || m.CheckBeforeUpdate == nil || !*m.CheckBeforeUpdate {
		return nil
	}
	file := c.File("memory.usage_in_bytes")
	if c.Unified() {
		file = c.File("memory.current")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("linux.resources.memory.checkBeforeUpdate: %w", err)
	}
	usage, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return fmt.Errorf("linux.resources.memory.checkBeforeUpdate: %s: %w", file, err)
	}
	for _, f := range []struct {
		name  string
		limit *int64
	}{{"limit", m.Limit}, {"swap", m.Swap}} {
		if f.limit != nil && *f.limit > 0 && *f.limit <= usage {
			return fmt.Errorf("linux.resources.memory.%s %d: must be above the present usage of %d, "+
				"as memory.checkBeforeUpdate asks: %w",
				f.name, *f.limit, usage, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// LimitDepth limits how deep a container may nest cgroups, unless its configuration does. libcontainer does not know
// this file, so updates do not write it. Failures are only logged: no walk of this program depends on the limit.
func LimitDepth(containerID string, c *cgroup.Cgroup, r *specs.LinuxResources) {
	if r != nil {
		if _, asked := r.Unified[cgroup.DepthFile]; asked {
			return
		}
	}
	err := c.LimitDepth()
	switch {
	case err == nil:
	case errdefs.IsNotFound(err), errors.Is(err, fs.ErrPermission): // an old kernel; a shim without root
		log.L.WithError(err).WithField("container", containerID).Debug("cgroups may be nested without limit")
	default:
		log.L.WithError(err).WithField("container", containerID).Warn("cgroups may be nested without limit")
	}
}
