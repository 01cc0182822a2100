// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// delegated are the controllers of v2 that children get.
var delegated = []string{"memory", "pids"}

// Delegate makes limits possible in children that MakeChild makes. On v2 the kernel gives controllers only to children
// of a cgroup without processes of its own (cgroup-v2.rst, "No Internal Process Constraint"), so Delegate moves the
// processes of c into a child called leaf. Accounting and limits of c stay the same. On v1 Delegate does nothing.
//
// The caller ensures that no process enters c itself from then on.
func (c *Cgroup) Delegate(leaf string) error {
	if !c.unified {
		return nil
	}
	dir := c.Path("")
	leaf = filepath.Join(dir, leaf)
	if err := c.delegate(dir, leaf); err != nil {
		return fmt.Errorf("limits of execs: delegate controllers of cgroup %s: %w", c, err)
	}
	c.leaf.Store(&leaf)
	return nil
}

func (c *Cgroup) delegate(dir, leaf string) error {
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			return err
		}
		pids, err := parseProcs(nil, text)
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			break
		}
		for _, pid := range pids {
			err := Write(filepath.Join(leaf, "cgroup.procs"), strconv.Itoa(pid))
			if err != nil && !errors.Is(err, unix.ESRCH) { // it has ended
				return err
			}
		}
	}
	has, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	var enable []string
	for _, controller := range delegated {
		if slices.Contains(strings.Fields(string(has)), controller) {
			enable = append(enable, "+"+controller)
		}
	}
	return Write(filepath.Join(dir, "cgroup.subtree_control"), strings.Join(enable, " "))
}

// CPUTimeController is the controller of v1 from which Usage gets the CPU time. On v2 each cgroup counts it.
const CPUTimeController = "cpuacct"

// CanLimit reports whether a controller is available to children that MakeChild makes.
func (c *Cgroup) CanLimit(controller string) bool {
	if !c.unified {
		dir := c.paths[controller]
		return dir != "" && countsChildren(controller, dir)
	}
	if controller == CPUTimeController {
		return true
	}
	given, err := os.ReadFile(c.File("cgroup.subtree_control"))
	return err == nil && slices.Contains(strings.Fields(string(given)), controller)
}

// LimitMemory limits memory to a number of bytes, without swap. At the limit the kernel kills all processes of the
// cgroup on v2, and one process on v1.
func (c *Cgroup) LimitMemory(memory int64) error {
	if c.unified {
		err := c.set("memory.swap.max", 0)
		if errdefs.IsFailedPrecondition(err) { // the kernel has no swap
			err = nil
		}
		return errors.Join(c.set("memory.max", memory), err, c.set("memory.oom.group", 1))
	}
	if err := c.set("memory.limit_in_bytes", memory); err != nil {
		return err
	}
	err := c.set("memory.memsw.limit_in_bytes", memory)
	if errdefs.IsFailedPrecondition(err) { // swap is not counted
		err = c.set("memory.swappiness", 0) // not used then, either
	}
	return err
}

// LimitPids limits the number of processes and threads.
func (c *Cgroup) LimitPids(n int64) error { return c.set("pids.max", n) }

func (c *Cgroup) set(file string, n int64) error { return c.write(file, strconv.FormatInt(n, 10)) }

func (c *Cgroup) write(file, text string) error {
	path := c.File(file)
	err := os.ErrNotExist
	if path != "" {
		err = Write(path, text)
	}
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cgroup %s has no %s: %w", c, file, errdefs.ErrFailedPrecondition)
	}
	return err
}

// Account is what the processes of a cgroup used, in more detail than Usage.
type Account struct {
	Usage
	User, System time.Duration
	OOMKills     uint64 // of its processes
	ForksRefused uint64 // by its limit of processes
}

// Account reads the account. A number that the kernel does not count is 0. A cgroup that is gone gives
// errdefs.ErrNotFound.
func (c *Cgroup) Account() (a Account, err error) {
	if a.Usage, err = c.Usage(); err != nil {
		return Account{}, err
	}
	a.ForksRefused = c.forksRefused()
	if c.unified {
		a.User = time.Duration(c.counter("cpu.stat", "user_usec")) * time.Microsecond
		a.System = time.Duration(c.counter("cpu.stat", "system_usec")) * time.Microsecond
		a.OOMKills = c.counter("memory.events", "oom_kill")
	} else {
		a.User = time.Duration(c.counter("cpuacct.usage_user", ""))
		a.System = time.Duration(c.counter("cpuacct.usage_sys", ""))
		a.OOMKills = c.counter("memory.oom_control", "oom_kill")
	}
	if !c.Exists() { // it went while it was read, and what was missing counted as 0
		return Account{}, fmt.Errorf("read account of cgroup %s: %w", c, errdefs.ErrNotFound)
	}
	return a, nil
}

// forksRefused counts the forks that the cgroup's own limit refused. Since Linux 6.11, pids.events of v2 counts those
// of the cgroups below as well, and pids.events.local those of this limit alone. Before that, on v1, and with the mount
// option pids_localevents, they count those that were tried in the cgroup, whichever limit refused them: those of the
// leaf, which has no limit, are its own.
func (c *Cgroup) forksRefused() uint64 {
	if !c.unified {
		return c.counter("pids.events", "max")
	}
	file := "pids.events.local"
	if !exists(c.File(file)) {
		file = "pids.events"
	}
	n := c.counter(file, "max")
	if leaf := c.leaf.Load(); leaf != nil {
		below, _ := readNumber(filepath.Join(*leaf, file), "max") // no such file: it is not counted
		n += below
	}
	return n
}

func (c *Cgroup) counter(file, key string) uint64 {
	path := c.File(file)
	if path == "" {
		return 0
	}
	n, _ := readNumber(path, key) // no such file: it is not counted
	return n
}
