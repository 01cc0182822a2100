// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Procs returns the ids of all processes in the cgroup and the cgroups nested in it, each once, in rising order. On v1 it
// is the union over all hierarchies: a process that is on its way in is not yet in each of them. Processes outside of the
// caller's pid namespace have no id and are left out. A cgroup of which no directory is left is errdefs.ErrNotFound.
func (c *Cgroup) Procs() ([]int, error) {
	var pids []int
	found := false
	for _, dir := range c.dirs {
		err := walk(dir, func(n node) (err error) {
			pids, err = appendProcs(pids, n)
			return err
		}, stay)
		switch {
		case err == nil:
			found = true
		case !gone(err):
			return nil, fmt.Errorf("list processes of cgroup %s: %w", c, err)
		}
	}
	if !found {
		return nil, fmt.Errorf("list processes of cgroup %s: %w", c, errdefs.ErrNotFound)
	}
	slices.Sort(pids) // the kernel promises neither an order nor that a process is listed once
	return slices.Compact(pids), nil
}

// appendProcs appends the processes of n itself to pids.
func appendProcs(pids []int, n node) ([]int, error) {
	const file = "cgroup.procs"
	b, err := n.read(file)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return pids, nil // a threaded cgroup of v2: its processes are listed by the domain above
	}
	if err != nil {
		return pids, err
	}
	for line := range bytes.Lines(b) {
		pid, err := strconv.Atoi(string(bytes.TrimSpace(line)))
		if err != nil {
			return pids, fmt.Errorf("parse %s: %w", filepath.Join(n.Name(), file), err)
		}
		if pid > 0 { // 0 is a process of a pid namespace that is not below ours
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// describe names processes for a message: how many there are, and of the first few the program and the state, in the
// letters of proc_pid_stat(5). A D is one that no signal ends.
func describe(pids []int) string {
	const named = 3
	var names []string
	for _, pid := range pids[:min(len(pids), named)] {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
		if err != nil || open < 0 || end < open || len(b) < end+3 {
			names = append(names, fmt.Sprintf("%d (gone)", pid))
			continue
		}
		names = append(names, fmt.Sprintf("%d (%s, state %c)", pid, b[open+1:end], b[end+2]))
	}
	if len(pids) > named {
		names = append(names, "…")
	}
	return fmt.Sprintf("%d processes [%s]", len(pids), strings.Join(names, ", "))
}
