// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package leftover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/pkg/identifiers"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/cmd/sandboxctl/machine"
)

// shimPrefix is what the names of shims of all runtimes begin with. The kernel keeps as much of a process's name.
const shimPrefix = "containerd-shim"

// shim is a process that has the command line of a shim, of any runtime.
type shim struct {
	Name
	pid     int
	sure    bool // it is one, of this containerd's mounts; else it may be: anybody can have such a command line
	hidden  bool // which container it was started for cannot be read
	ours    bool
	here    bool   // it sees the mounts that containerd does: others are of nodes in containers (kind)
	address string // of its containerd
	started uint64
}

// String names a shim.
func (sh shim) String() string {
	switch {
	case sh.sure:
		return fmt.Sprintf("the shim of %s, pid %d", sh.ID, sh.pid)
	case sh.hidden:
		return fmt.Sprintf("what may be the shim of any container, pid %d, whose command line cannot be read", sh.pid)
	}
	return fmt.Sprintf("what may be the shim of %s, pid %d", sh.ID, sh.pid)
}

// wait returns what to do if a shim has to end first.
func (sh shim) wait() string { return fmt.Sprintf("when process %d has ended, run this again", sh.pid) }

// scanShims reads command lines, for which the kernel takes a lock that a process can keep for ever. Those that are
// most likely shims come first: when some could not be read in time, no more are.
func (s *Scan) scanShims(ctx context.Context) (list []shim) {
	of := "self"
	if s.Daemon > 0 {
		of = machine.PidText(s.Daemon)
	}
	s.namespace = s.mountNamespace(of)
	var likely, others []int
	for _, pid := range s.Root.Pids() {
		switch {
		case s.ofUser(pid):
		case s.mayBeShim(pid):
			likely = append(likely, pid)
		default:
			others = append(others, pid)
		}
	}
	const mostHidden = 4
	hidden := 0
	for i, pid := range slices.Concat(likely, others) {
		line, err := machine.CommandLine{}, machine.ErrHidden
		if hidden < mostHidden {
			line, err = s.Root.CommandLine(ctx, pid)
		}
		switch sh, found := s.newShim(pid, line); {
		case err == nil && found:
			list = append(list, sh)
		case err == nil, errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH): // no shim, or it has ended
		default:
			hidden++
			if i < len(likely) {
				list = append(list, shim{pid: pid, hidden: true})
			}
		}
	}
	return list
}

// newShim reports whether a command line is that of a shim. If it has been cut off, it is one that may be.
func (s *Scan) newShim(pid int, line machine.CommandLine) (shim, bool) {
	first, _, _ := strings.Cut(line.Text, "\x00")
	if !strings.HasPrefix(filepath.Base(first), shimPrefix) {
		return shim{}, false
	}
	args := line.Args()
	if last := args[len(args)-1]; !line.Cut && (len(args) == 1 || last == "delete") {
		return shim{}, false // the delete command ends by itself, and removes what it was called for
	}
	n := Name{machine.FlagValue(args, "namespace"), machine.FlagValue(args, "id")}
	if identifiers.Validate(n.Namespace) != nil || identifiers.Validate(n.ID) != nil {
		return shim{pid: pid, hidden: true}, line.Cut
	}
	here := s.namespace != "" && s.mountNamespace(machine.PidText(pid)) == s.namespace
	stat, _ := s.Root.Stat(pid) // it has just ended
	return shim{
		Name: n, pid: pid, sure: here && !line.Cut && s.runsShim(pid), ours: filepath.Base(first) == program, here: here,
		address: machine.FlagValue(args, "address"), started: stat.Started,
	}, true
}

// mayBeShim reports whether a process may be a shim of this containerd, by what can be read of it without a lock that
// it may keep: it has the name of one, or its program has, or it sees the mounts that containerd does.
func (s *Scan) mayBeShim(pid int) bool {
	exe, err := os.Readlink(s.Root.ProcFile(pid, "exe"))
	if errors.Is(err, fs.ErrNotExist) { // of the kernel, or a zombie: it has no command line
		return false
	}
	name, _ := machine.ReadText(s.Root.ProcFile(pid, "comm")) // it may have ended
	if strings.HasPrefix(filepath.Base(exe), shimPrefix) || strings.HasPrefix(name, shimPrefix) {
		return true
	}
	mounts := s.mountNamespace(machine.PidText(pid))
	return mounts == "" || s.namespace == "" || mounts == s.namespace
}

// ofUser reports whether a process is certain to belong to a user other than root and the one who runs this program.
func (s *Scan) ofUser(pid int) bool {
	status, _ := machine.ReadText(s.Root.ProcFile(pid, "status")) // of what has ended nothing is certain
	for line := range strings.Lines(status) {
		if ids, found := strings.CutPrefix(line, "Uid:"); found {
			own := fmt.Sprint(os.Geteuid())
			return slices.ContainsFunc(strings.Fields(ids), func(id string) bool { return id != "0" && id != own })
		}
	}
	return false
}

// runsShim reports whether a process runs the program of a shim that is root's.
func (s *Scan) runsShim(pid int) bool {
	exe := s.Root.ProcFile(pid, "exe")
	name, err := os.Readlink(exe)
	if err != nil || !strings.HasPrefix(filepath.Base(name), "containerd-shim-") {
		return false
	}
	var st unix.Stat_t // of the file that it runs, even if that is deleted
	err = unix.Stat(exe, &st)
	return err == nil && st.Uid == 0
}
