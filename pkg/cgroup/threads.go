// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// appendOwners adds the processes that have a thread in a threaded cgroup of v2 (cgroup-v2.rst, "Threads").
func appendOwners(pids []int, n node) ([]int, error) {
	const file = "cgroup.threads"
	text, err := n.read(file)
	if err != nil {
		return pids, err
	}
	threads, err := parseProcs(nil, text)
	if err != nil {
		return pids, fmt.Errorf("parse %s: %w", filepath.Join(n.Name(), file), err)
	}
	for _, thread := range threads {
		path := fmt.Sprintf("/proc/%d/status", thread)
		status, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return pids, err
		}
		pid, err := owner(status)
		if err != nil {
			return pids, fmt.Errorf("parse Tgid of %s: %w", path, err)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// owner returns the process of a thread with this /proc/TID/status (proc_pid_status(5)). The kernel escapes line feeds
// in its name.
func owner(status []byte) (int, error) {
	_, line, _ := bytes.Cut(status, []byte("\nTgid:\t"))
	line, _, _ = bytes.Cut(line, []byte("\n"))
	pid, err := strconv.ParseUint(string(line), 10, 31)
	if err == nil && pid == 0 { // as which signals reach the caller's process group
		err = strconv.ErrRange
	}
	return int(pid), err
}

// typeOf returns what cgroup.type of a v2 cgroup says: domain, domain threaded, domain invalid or threaded.
func typeOf(dir string) (string, error) { return readSettings(filepath.Join(dir, "cgroup.type")) }

// acceptProcesses makes a new v2 cgroup threaded if its parent is, or has a threaded cgroup: the kernel lets nothing
// into it otherwise.
func acceptProcesses(dir string) {
	if kind, err := typeOf(dir); err == nil && kind == "domain invalid" {
		_ = Write(filepath.Join(dir, "cgroup.type"), "threaded") // or whoever is put there is told
	}
}
