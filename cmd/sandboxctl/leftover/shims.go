// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package leftover

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/pkg/identifiers"

	"sandbox.internal/shim/cmd/sandboxctl/machine"
	"sandbox.internal/shim/cmd/sandboxctl/measure"
)

// shim is a process that runs the program of a shim, of any runtime.
type shim struct {
	Name
	pid     int
	ours    bool
	address string // of its containerd
}

// scanShims finds shims that see the mounts of containerd: others are of nodes in containers (kind), or programs in
// containers. The command line of a program in a container is not read: the kernel takes a lock for that, which the
// program can keep.
func (s *Scan) scanShims() (list []shim) {
	of := "self"
	if s.Daemon > 0 {
		of = machine.PidText(s.Daemon)
	}
	namespace := s.mountNamespace(of)
	for _, pid := range s.Root.Pids() {
		exe, _ := os.Readlink(s.Root.ProcFile(pid, "exe")) // it has none, or has ended
		name := strings.TrimSuffix(filepath.Base(exe), " (deleted)")
		if !strings.HasPrefix(name, "containerd-shim") || s.mountNamespace(machine.PidText(pid)) != namespace {
			continue
		}
		text, _ := os.ReadFile(s.Root.ProcFile(pid, "cmdline")) // as above
		args := strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
		n := Name{machine.FlagValue(args, "namespace"), machine.FlagValue(args, "id")}
		if identifiers.Validate(n.Namespace) != nil || identifiers.Validate(n.ID) != nil || slices.Contains(args, "delete") {
			continue // the delete command ends by itself, and removes what it was called for
		}
		list = append(list, shim{n, pid, name == program, machine.FlagValue(args, "address")})
	}
	return list
}

// mountNamespace returns that of a process; empty: it cannot be seen.
func (s *Scan) mountNamespace(pid string) string {
	link, _ := os.Readlink(s.Root.Path("proc", pid, "ns/mnt"))
	return link
}

// children counts the processes that a process has started or adopted, as far as they can be seen.
func (s *Scan) children(pid int) (n int) {
	threads, _ := filepath.Glob(s.Root.ProcFile(pid, "task/*/children")) // the pattern is right
	for _, file := range threads {
		text, _ := machine.ReadText(file) // the thread may have ended
		n += len(strings.Fields(text))
	}
	return n
}

// hasShim reports whether a process was started by a shim that runs.
func (s *Scan) hasShim(pid int) bool {
	for seen := map[int]bool{}; pid > 1 && !seen[pid]; { // there is a loop if pids are used again
		seen[pid] = true
		if slices.ContainsFunc(s.shims, func(sh shim) bool { return sh.pid == pid }) {
			return true
		}
		p, _ := measure.ReadProcess(s.Root, pid) // 0 of one that has ended
		pid = p.Parent
	}
	return false
}
