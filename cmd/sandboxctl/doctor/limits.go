// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"sandbox.internal/shim/cmd/sandboxctl/machine"
	"sandbox.internal/shim/pkg/options"
)

func (e *Examination) inotify(context.Context) []Finding {
	instances, watches := e.inotifyUse()
	var findings []Finding
	var texts []string
	for _, l := range []struct {
		name string
		used int
	}{{"max_user_instances", instances}, {"max_user_watches", watches}} {
		limit, err := machine.ReadNumber(e.Root.Path("proc/sys/fs/inotify", l.name))
		switch {
		case err != nil:
			findings = append(findings, bad("%v", err).fix("build the kernel with CONFIG_INOTIFY_USER"))
		case l.used >= limit:
			findings = append(findings, bad("fs.inotify.%s=%d, and root has %d: shims and the kubelet see no changes", l.name,
				limit, l.used))
		case full(l.used, limit):
			findings = append(findings, warn("fs.inotify.%s=%d, of which root has %d", l.name, limit, l.used))
		}
		texts = append(texts, fmt.Sprintf("%s: %d of %d", l.name, l.used, limit))
	}
	if findings == nil {
		findings = append(findings, ok("%s", strings.Join(texts, ", ")))
	}
	return findings
}

// inotifyUse counts what processes of root have: the limits are for each user.
func (e *Examination) inotifyUse() (instances, watches int) {
	for _, pid := range e.Root.Pids() {
		var stat syscall.Stat_t
		if syscall.Stat(e.Root.ProcFile(pid, ""), &stat) != nil || int(stat.Uid) != 0 {
			continue
		}
		list, _ := os.ReadDir(e.Root.ProcFile(pid, "fd")) // it may be gone
		for _, fd := range list {
			target, err := os.Readlink(e.Root.ProcFile(pid, "fd/"+fd.Name()))
			if err != nil || target != "anon_inode:inotify" {
				continue
			}
			instances++
			text, _ := machine.ReadText(e.Root.ProcFile(pid, "fdinfo/"+fd.Name())) // it may be gone
			watches += strings.Count(text, "inotify wd:")
		}
	}
	return instances, watches
}

func (e *Examination) threads(context.Context) []Finding {
	text, err := machine.ReadText(e.Root.Path("proc/loadavg"))
	fields := strings.Fields(text)
	if err == nil && len(fields) < 4 {
		err = fmt.Errorf("/proc/loadavg: %q has no number of threads", text)
	}
	if err != nil {
		return []Finding{bad("%v", err).fix("mount -t proc proc /proc")}
	}
	_, number, _ := strings.Cut(fields[3], "/")
	used, err := strconv.Atoi(number)
	pidMax, pidErr := machine.ReadNumber(e.Root.Path("proc/sys/kernel/pid_max"))
	threadsMax, threadsErr := machine.ReadNumber(e.Root.Path("proc/sys/kernel/threads-max"))
	if err = errors.Join(err, pidErr, threadsErr); err != nil {
		return []Finding{bad("%v", err)}
	}
	limit := min(pidMax, threadsMax)
	if full(used, limit) {
		return []Finding{warn("%d threads of %d that there may be (kernel.pid_max=%d, kernel.threads-max=%d)", used, limit,
			pidMax, threadsMax)}
	}
	return []Finding{ok("%d of %d", used, limit)}
}

// fewTasks is less than a hundred pods have: a shim has about ten threads.
const fewTasks = 1000

func (e *Examination) tasksMax(context.Context) []Finding {
	if e.daemonErr != nil {
		return []Finding{none("containerd does not run")}
	}
	group, dir := e.Root.CgroupOf(e.daemon.Pid, "pids")
	if dir == "" {
		return []Finding{none("containerd has no cgroup with the controller pids")}
	}
	for ; ; group, dir = filepath.Dir(group), filepath.Dir(dir) {
		limit, err := machine.ReadNumber(filepath.Join(dir, "pids.max"))
		used, usedErr := machine.ReadNumber(filepath.Join(dir, "pids.current"))
		unit := filepath.Base(group)
		remedy := "systemctl set-property " + unit + " TasksMax=infinity"
		if !strings.Contains(unit, ".") {
			remedy = "echo max >" + filepath.Join(dir, "pids.max")
		}
		switch {
		case errors.Join(err, usedErr) != nil || limit < 0: // the root has none
		case full(used, limit):
			return []Finding{warn("pids.max of %s is %d, and it has %d threads: soon no shim can start", group, limit, used).
				fix("%s", remedy)}
		case limit < fewTasks:
			return []Finding{warn("pids.max of %s is %d: shims run there, with about ten threads each", group, limit).
				fix("%s", remedy)}
		}
		if group == "/" || group == "." {
			return []Finding{ok("no limit, or far from it")}
		}
	}
}

// fewFiles is less than a busy containerd may need.
const fewFiles = 65536

func (e *Examination) descriptors(context.Context) []Finding {
	var findings []Finding
	text, err := machine.ReadText(e.Root.Path("proc/sys/fs/file-nr"))
	if f := strings.Fields(text); err == nil && len(f) == 3 {
		used, _ := strconv.Atoi(f[0]) // the kernel's own numbers
		// systemd raises the limit to the largest one, which is more than an int holds on other architectures.
		if limit, err := strconv.Atoi(f[2]); err == nil && full(used, limit) {
			findings = append(findings, warn("fs.file-max=%d, of which %d are open", limit, used).
				fix("sysctl -w fs.file-max=%d", 4*limit))
		}
	}
	if e.daemonErr != nil {
		return append(findings, none("containerd does not run"))
	}
	text, err = machine.ReadText(e.Root.ProcFile(e.daemon.Pid, "limits"))
	if err != nil {
		return append(findings, bad("%v", err))
	}
	soft, hard := nofile(text)
	list, _ := os.ReadDir(e.Root.ProcFile(e.daemon.Pid, "fd")) // 0 if they cannot be seen
	switch {
	case full(len(list), soft):
		findings = append(findings, bad("containerd has %d files open, and may have %d", len(list), soft))
	case hard >= 0 && hard < fewFiles:
		findings = append(findings, warn("containerd may have %d files open: shims and containers inherit that", hard))
	default:
		findings = append(findings, ok("containerd has %d files open of %s", len(list), limitText(soft)))
	}
	return findings
}

// nofile finds the limit of open files in /proc/PID/limits; -1 is none.
func nofile(text string) (soft, hard int) {
	for line := range strings.Lines(text) {
		rest, found := strings.CutPrefix(line, "Max open files")
		f := strings.Fields(rest)
		if !found || len(f) < 2 {
			continue
		}
		number := func(s string) int {
			if n, err := strconv.Atoi(s); err == nil {
				return n
			}
			return -1 // "unlimited"
		}
		return number(f[0]), number(f[1])
	}
	return -1, -1
}

func limitText(n int) string {
	if n < 0 {
		return "any number"
	}
	return strconv.Itoa(n)
}

func (e *Examination) overcommit(context.Context) []Finding {
	mode, err := e.Root.Sysctl("vm/overcommit_memory")
	if err != nil {
		return []Finding{bad("%v", err)}
	}
	if mode != "2" {
		return []Finding{ok("vm.overcommit_memory=%s", mode)}
	}
	text, err := machine.ReadText(e.Root.Path("proc/meminfo"))
	if err != nil {
		return []Finding{bad("%v", err)}
	}
	limit, _ := strconv.Atoi(field(text, "CommitLimit:")) // 0 is full, and shows that it cannot be read
	used, _ := strconv.Atoi(field(text, "Committed_AS:"))
	if full(used, limit) {
		return []Finding{warn("vm.overcommit_memory=2, and %s of what may be committed is: programs soon get no memory, and "+
			"shims do not start", percent(used, limit))}
	}
	return []Finding{ok("vm.overcommit_memory=2, with %s committed", percent(used, limit))}
}

// Shares of a file system that are free.
const (
	littleSpace = 0.1
	noSpace     = 0.02
)

func (e *Examination) runSpace(context.Context) []Finding {
	var findings []Finding
	seen := map[uint64]bool{}
	for _, dir := range []string{e.State, filepath.Dir(options.DefaultRoot)} {
		var stat syscall.Stat_t
		if syscall.Stat(e.Root.Path(dir), &stat) != nil || seen[stat.Dev] {
			continue // not there yet, or the same file system
		}
		seen[stat.Dev] = true
		bytes, inodes, err := space(e.Root.Path(dir))
		if err != nil {
			findings = append(findings, bad("%v", err))
			continue
		}
		remedy := fmt.Sprintf("mount -o remount,size=50%%,nr_inodes=1m %s", e.mountPoint(dir))
		text := fmt.Sprintf("%s: %.0f%% of bytes and %.0f%% of inodes are free", dir, 100*bytes, 100*inodes)
		switch least := min(bytes, inodes); {
		case least < noSpace:
			findings = append(findings, bad("%s: containers cannot be made", text).fix("%s", remedy))
		case least < littleSpace:
			findings = append(findings, warn("%s", text).fix("%s", remedy))
		default:
			findings = append(findings, ok("%s", text))
		}
	}
	if findings == nil {
		findings = append(findings, none("there is no %s", e.State))
	}
	return findings
}

// mountPoint returns where the file system of a path is mounted.
func (e *Examination) mountPoint(path string) string {
	best := "/"
	mounts, _ := e.Root.Mounts() // without them it is the root, which is what a remedy then says
	for _, m := range mounts {
		if machine.Within(m.Mountpoint, path) && len(m.Mountpoint) > len(best) {
			best = m.Mountpoint
		}
	}
	return best
}

// percent returns a share for people.
func percent(part, whole int) string { return fmt.Sprintf("%d%%", part*100/max(whole, 1)) }

// full reports whether so much is used that it may soon be all.
func full(used, limit int) bool { return limit >= 0 && used >= limit-limit/5 } // 4*limit may not be an int
