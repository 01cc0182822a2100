// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
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
	state, err := ProcField(pid, "status", "State")
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

// ProcField returns one field of /proc/PID/FILE.
func ProcField(pid int, file, field string) (string, error) {
	name := fmt.Sprintf("/proc/%d/%s", pid, file)
	text, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && name == field {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("%s: no field %q", name, field)
}

// Anonymous returns how many KiB of a process's memory are its own alone and in no file.
func Anonymous(pid int) (int, error) {
	text, err := ProcField(pid, "status", "RssAnon")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSuffix(text, " kB"))
}

// Zombies lists the dead children of a process that it has not collected.
func Zombies(parent int) []Proc {
	return procs(func(p Proc) bool { return isChild(p.Pid, parent) && strings.HasPrefix(procState(p.Pid), "Z") })
}

// Children lists the living children of a process.
func Children(parent int) []Proc {
	return procs(func(p Proc) bool { return isChild(p.Pid, parent) && Alive(p.Pid) })
}

// Holders lists the processes that hold the namespaces of a shim's pod.
func Holders(shim int) []Proc {
	return procs(func(p Proc) bool { return isHolder(p) && isChild(p.Pid, shim) })
}

func isHolder(p Proc) bool {
	name, err := ProcField(p.Pid, "status", "Name")
	return err == nil && name == "sandbox-init"
}

func isChild(pid, parent int) bool {
	ppid, err := ProcField(pid, "status", "PPid")
	return err == nil && ppid == strconv.Itoa(parent)
}

// GoRuntimeDied reports whether the log of a program says that the Go runtime, or cgo, ended it since a system call of
// their own failed, as one that makes a thread.
func GoRuntimeDied(log string) bool {
	return slices.ContainsFunc([]string{
		"netpollBreak write failed", "runtime.netpollBreak(", // the latter as the words before may have been read already
		"while checking standard file descriptor", // at the beginning of a program
		"failed to create new OS thread", "pthread_create failed", "netpoll failed", "netpollinit", "out of memory",
	}, func(words string) bool { return strings.Contains(log, words) })
}

// Switches counts how often the threads of a process gave up or lost a processor: whenever one wakes, it sleeps again.
func Switches(pid int) (total int, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(files) == 0 {
		return 0, fmt.Errorf("threads of %d: none (%w)", pid, err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(text)) {
			if _, value, ok := strings.Cut(line, "voluntary_ctxt_switches:"); ok { // also matches nonvoluntary_…
				n, err := strconv.Atoi(strings.TrimSpace(value))
				if err != nil {
					return 0, err
				}
				total += n
			}
		}
	}
	return total, nil
}

// CheckAsleep fails the test unless the process, a program in Go, comes to rest. Go's scavenger works for some seconds
// after a load, and its sysmon looks around once a minute, so the first window in which nothing happens counts, and one
// look is allowed in it. A ticker of a second would make three.
func CheckAsleep(tb testing.TB, pid int) {
	tb.Helper()
	CheckNearlyAsleep(tb, pid, 2)
}

// CheckNearlyAsleep is CheckAsleep for a program whose threads may go to sleep so often in three seconds.
func CheckNearlyAsleep(tb testing.TB, pid, allowed int) {
	tb.Helper()
	var woken []int
	for range 20 { // tests of other packages may disturb some
		before, err := Switches(pid)
		// A program is the clock: tests may not call time.Sleep.
		err = errors.Join(err, exec.CommandContext(tb.Context(), "sleep", "3").Run())
		after, e := Switches(pid)
		if err = errors.Join(err, e); err != nil {
			tb.Fatal(err)
		}
		woken = append(woken, after-before)
		if after-before <= allowed {
			tb.Logf("threads of %d went to sleep so often in 3 s: %v", pid, woken)
			return
		}
	}
	tb.Errorf("threads of %d went to sleep so often in 3 s: %v, want %d at most at last", pid, woken, allowed)
}

// Stop stops a process by SIGSTOP, and returns when each of its threads has stopped: on a busy machine others run on
// until the one that got the signal handles it. It goes on at the end of the test.
func Stop(tb testing.TB, pid int) {
	tb.Helper()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		tb.Fatalf("stop process %d: %v", pid, err)
	}
	tb.Cleanup(func() { _ = unix.Kill(pid, unix.SIGCONT) }) // it may have been killed
	Eventually(tb, fmt.Sprintf("process %d stops", pid), func() error {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil {
			return err
		}
		if len(threads) == 0 {
			return errors.New("it has no threads")
		}
		for _, name := range threads {
			stat, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			if _, state, _ := bytes.Cut(stat, []byte(") ")); !bytes.HasPrefix(state, []byte("T")) {
				return fmt.Errorf("%s: %s", name, stat)
			}
		}
		return nil
	})
}

// Buffer collects the output of a process. Any number of goroutines may use it.
type Buffer struct {
	mu   sync.Mutex
	data bytes.Buffer
}

// Write appends p and never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.Write(p)
}

// String returns everything written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.String()
}

// Reset forgets everything written so far.
func (b *Buffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data.Reset()
}

// WaitFor returns once the output contains want.
func (b *Buffer) WaitFor(tb testing.TB, want string) {
	tb.Helper()
	Eventually(tb, fmt.Sprintf("output with %q", want), func() error {
		if text := b.String(); !strings.Contains(text, want) {
			return fmt.Errorf("output is %.200q", text)
		}
		return nil
	})
}
