// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package machine reads what a machine reports about itself: files of the kernel, mounts, processes, cgroup
// hierarchies. Tests give it the files of another machine, below a directory.
package machine

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// Root is the directory of a machine's files: "/" except in tests.
type Root string

// Path returns a path of the machine.
func (r Root) Path(elem ...string) string {
	return filepath.Join(append([]string{string(r)}, elem...)...)
}

// ReadText reads a small file without the white space around.
func ReadText(path string) (string, error) {
	text, err := os.ReadFile(path)
	return strings.TrimSpace(string(text)), err
}

// ReadNumber reads a file with one number, or "max", which is -1.
func ReadNumber(path string) (int, error) {
	text, err := ReadText(path)
	if err != nil {
		return 0, err
	}
	if text == "max" {
		return -1, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %q is no number", path, text)
	}
	return n, nil
}

// Sysctl reads a file below /proc/sys.
func (r Root) Sysctl(name string) (string, error) { return ReadText(r.Path("proc/sys", name)) }

// Mounts lists what is mounted where this program runs.
func (r Root) Mounts() ([]*mountinfo.Info, error) {
	text, err := os.ReadFile(r.Path("proc/self/mountinfo"))
	if err != nil {
		return nil, err
	}
	return mountinfo.GetMountsFromReader(bytes.NewReader(text), nil)
}

// Resolve follows the symbolic links in a path of the machine. A path that does not exist stays as it is.
func (r Root) Resolve(path string) string {
	resolved, err := filepath.EvalSymlinks(r.Path(path))
	if err != nil || !Within(string(r), resolved) {
		return path
	}
	return filepath.Join("/", strings.TrimPrefix(resolved, string(r)))
}

// Within reports whether path is dir or below it.
func Within(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// ProcFile returns the path of a file of a process.
func (r Root) ProcFile(pid int, name string) string { return r.Path("proc", strconv.Itoa(pid), name) }

// Pids lists the processes, among them the kernel's own and those that have ended.
func (r Root) Pids() (pids []int) {
	entries, _ := os.ReadDir(r.Path("proc")) // without it other checks fail
	for _, d := range entries {
		if pid, err := strconv.Atoi(d.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Outdated reports whether the file at the path of a process's program is another one by now, as after an upgrade of a
// package. It is not known, and false, if there is no file, or the process has ended.
func (r Root) Outdated(pid int) bool {
	path, err := os.Readlink(r.ProcFile(pid, "exe"))
	if err != nil {
		return false
	}
	runs, err := os.Stat(r.ProcFile(pid, "exe"))
	installed, absent := os.Stat(r.ProcFile(pid, "root") + strings.TrimSuffix(path, " (deleted)")) // where it sees it
	return err == nil && absent == nil && !os.SameFile(runs, installed)
}

// FlagValue returns the value of a flag of a command line, with one dash or two, in the same argument or the next.
func FlagValue(args []string, names ...string) string {
	for i, arg := range args {
		name, value, joined := strings.Cut(arg, "=")
		for _, n := range names {
			if name != "-"+n && name != "--"+n {
				continue
			}
			if joined {
				return value
			}
			if i+1 < len(args) {
				return args[i+1]
			}
		}
	}
	return ""
}

// CgroupRoot is where cgroups are mounted, on all machines.
const CgroupRoot = "/sys/fs/cgroup"
