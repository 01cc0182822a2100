// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Proc is a process that a test may have left behind.
type Proc struct {
	Pid  int
	Argv []string
}

// String names the process as a leak is reported.
func (p Proc) String() string {
	return fmt.Sprintf("process %d %s: %q", p.Pid, procState(p.Pid), strings.Join(p.Argv, " "))
}

// procs lists the processes that match. A process that goes while it is looked at is left out.
func procs(match func(p Proc) bool) []Proc {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []Proc
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			continue
		}
		p := Proc{Pid: pid, Argv: strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")}
		if match(p) {
			found = append(found, p)
		}
	}
	return found
}

// Shims lists the shim processes of a namespace; with a container id, only those that were started for it.
func Shims(namespace, containerID string) []Proc {
	return procs(func(p Proc) bool {
		return flag(p.Argv, "namespace") == namespace && (containerID == "" || flag(p.Argv, "id") == containerID)
	})
}

// ShimsOf lists the shim processes that the containerd at address has started; with a container id, only those that
// were started for it.
func ShimsOf(address, containerID string) []Proc {
	return procs(func(p Proc) bool {
		return flag(p.Argv, "namespace") != "" && flag(p.Argv, "address") == address &&
			(containerID == "" || flag(p.Argv, "id") == containerID)
	})
}

// flag returns the value of -name in argv.
func flag(argv []string, name string) string {
	i := slices.IndexFunc(argv,
		func(arg string) bool { return strings.TrimLeft(arg, "-") == name && strings.HasPrefix(arg, "-") })
	if i < 0 || i+1 >= len(argv) {
		return ""
	}
	return argv[i+1]
}

// InCgroup lists the living processes whose cgroup is at or below path in any hierarchy.
func InCgroup(path string) []Proc {
	return slices.DeleteFunc(inCgroup(path), func(p Proc) bool { return !Alive(p.Pid) })
}

// inCgroup lists the processes whose cgroup is at or below path in any hierarchy.
func inCgroup(path string) []Proc {
	return procs(func(p Proc) bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.Pid))
		if err != nil {
			return false
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
			if len(fields) == 3 && (fields[2] == path || strings.HasPrefix(fields[2], path+"/")) {
				return true
			}
		}
		return false
	})
}

// below lists the processes whose working directory or root is at or below dir.
func below(dir string) []Proc {
	return procs(func(p Proc) bool {
		for _, link := range []string{"cwd", "root"} {
			target, err := os.Readlink(fmt.Sprintf("/proc/%d/%s", p.Pid, link))
			if err == nil && (target == dir || strings.HasPrefix(target, dir+string(filepath.Separator))) {
				return true
			}
		}
		return false
	})
}

// procState returns the state letter of a process and its meaning's first word, "S (sleeping)" say; "gone" if there is
// none.
func procState(pid int) string {
	state, err := procStatus(pid, "State")
	if err != nil {
		return "gone"
	}
	return state
}

// Alive reports whether a process exists and is no zombie.
func Alive(pid int) bool {
	state := procState(pid)
	return state != "gone" && !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}

// procStatus returns one field of /proc/<pid>/status.
func procStatus(pid int, field string) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && name == field {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("/proc/%d/status: no field %q", pid, field)
}

// Anonymous returns how many KiB of a process's memory are its own alone and in no file.
func Anonymous(pid int) (int, error) {
	text, err := procStatus(pid, "RssAnon")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSuffix(text, " kB"))
}

// Zombies lists the dead children of a process that it has not collected.
func Zombies(parent int) []Proc {
	return procs(func(p Proc) bool { return isChild(p.Pid, parent) && strings.HasPrefix(procState(p.Pid), "Z") })
}

// Holders lists the processes that hold the namespaces of a shim's pod.
func Holders(shim int) []Proc {
	return procs(func(p Proc) bool { return isHolder(p) && isChild(p.Pid, shim) })
}

// orphanedHolders lists those whose shim has ended, with which they should have ended. Nothing says which shim that
// was: they have neither its arguments nor a file of its pod.
func orphanedHolders() []Proc {
	return procs(func(p Proc) bool {
		if !isHolder(p) {
			return false
		}
		ppid, err := procStatus(p.Pid, "PPid")
		if err != nil {
			return false
		}
		parent, err := os.ReadFile("/proc/" + ppid + "/comm")
		return err == nil && !strings.HasPrefix(string(parent), "containerd-shim")
	})
}

func isHolder(p Proc) bool {
	name, err := procStatus(p.Pid, "Name")
	return err == nil && name == "sandbox-init"
}

func isChild(pid, parent int) bool {
	ppid, err := procStatus(pid, "PPid")
	return err == nil && ppid == strconv.Itoa(parent)
}

// GoRuntimeDied reports whether the log of a program says that the Go runtime, or cgo, ended it since a system call of
// their own failed, as one that makes a thread.
func GoRuntimeDied(log string) bool {
	return slices.ContainsFunc([]string{
		"netpollBreak write failed", "runtime.netpollBreak(", // the latter as the words before may have been read already
		"failed to create new OS thread", "pthread_create failed", "netpoll failed", "netpollinit", "out of memory",
	}, func(words string) bool { return strings.Contains(log, words) })
}
