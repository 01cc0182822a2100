// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package doctor checks a node for what the shim and its users need, and says how to fix what is wrong.
//
// [Checks] is the table of all checks. Each looks at one thing. What several look at is found first: the process of
// containerd and its configuration, what lies on disk, and last what containerd knows. So what containerd has made
// meanwhile is never taken for a leftover.
//
// It starts no goroutine, and changes nothing. It runs programs of containerd and the shim, but only those that nobody
// except root can have written.
package doctor

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"sandbox.internal/shim/cmd/sandboxctl/leftover"
	"sandbox.internal/shim/cmd/sandboxctl/machine"
	"sandbox.internal/shim/cmd/sandboxctl/node"
)

// Status of a finding, and of a check: that of its worst finding.
type Status string

// Statuses, from the best to the worst.
const (
	NotApplicable Status = "not applicable"
	OK            Status = "ok"
	Warning       Status = "warning"
	Failure       Status = "failure"
)

func (s Status) rank() int { return slices.Index([]Status{NotApplicable, OK, Warning, Failure}, s) }

// Finding is one thing that a check saw.
type Finding struct {
	Status Status `json:"status"`
	Text   string `json:"text"`
	Fix    string `json:"fix,omitempty"` // the command or the setting that fixes it
}

func ok(format string, a ...any) Finding {
	return Finding{Status: OK, Text: fmt.Sprintf(format, a...)}
}

func none(format string, a ...any) Finding {
	return Finding{Status: NotApplicable, Text: fmt.Sprintf(format, a...)}
}

func warn(format string, a ...any) Finding {
	return Finding{Status: Warning, Text: fmt.Sprintf(format, a...)}
}

func bad(format string, a ...any) Finding {
	return Finding{Status: Failure, Text: fmt.Sprintf(format, a...)}
}

// orOK returns the findings, or that all is well if there are none.
func orOK(findings []Finding, text string) []Finding {
	if findings == nil {
		return []Finding{ok("%s", text)}
	}
	return findings
}

// fix gives a finding a remedy other than that of its check.
func (f Finding) fix(format string, a ...any) Finding {
	f.Fix = fmt.Sprintf(format, a...)
	return f
}

// Result is what one check found.
type Result struct {
	Check    string    `json:"check"`
	Status   Status    `json:"status"`
	Findings []Finding `json:"findings"`
}

// Report is what all checks found.
type Report struct {
	Status    Status              `json:"status"` // of the worst
	Checks    []Result            `json:"checks"`
	Leftovers []leftover.Leftover `json:"leftovers"`
}

// Config says which node is examined, and by what.
type Config struct {
	Root    machine.Root
	Address string // socket of containerd
	State   string // state directory of containerd; "": that of its configuration
	Version string // of this program
	Timeout time.Duration
	Probes  Probes
}

// Probes ask the kernel and containerd. Tests have others.
type Probes struct {
	Euid     int
	Features func() map[string]error                               // by the name of the feature
	Peer     func(ctx context.Context, socket string) (int, error) // who listens: its pid, 0 if it cannot be seen
	Dump     func(ctx context.Context, d Daemon) ([]byte, error)   // the configuration that containerd has
	Connect  func(ctx context.Context, c node.Config) (API, error) // to containerd
}

// SystemProbes ask this machine.
func SystemProbes() Probes {
	return Probes{Euid: os.Geteuid(), Features: features, Peer: peer, Dump: dumpConfig, Connect: connect}
}

// Examination is a node with what several checks look at.
type Examination struct {
	Config

	daemon    Daemon
	daemonErr error // why containerd was not found

	config    config
	configErr error

	version    string
	versionErr error

	known leftover.Known
	// knownErr says why it is not known which containers there are.
	knownErr error

	leftovers []leftover.Leftover
	outdated  []string // shims that do not run the installed program
}

// Examine looks at a node and runs all checks.
func Examine(ctx context.Context, c Config) Report {
	e := &Examination{Config: c}
	e.findDaemon(ctx)
	e.readConfig(ctx)
	e.findLeftovers(ctx)
	report := Report{Status: NotApplicable, Leftovers: []leftover.Leftover{}}
	for _, check := range Checks() {
		r := Result{Check: check.Name, Status: NotApplicable, Findings: check.run(e, ctx)}
		for i := range r.Findings {
			f := &r.Findings[i]
			if f.Status.rank() > OK.rank() && f.Fix == "" {
				f.Fix = check.Fix
			}
			r.Status = worse(r.Status, f.Status)
		}
		report.Status = worse(report.Status, r.Status)
		report.Checks = append(report.Checks, r)
	}
	report.Leftovers = append(report.Leftovers, e.leftovers...)
	return report
}

// findLeftovers lists what lies on disk before it asks containerd, which knew of what was made before that.
func (e *Examination) findLeftovers(ctx context.Context) {
	scan := leftover.Take(ctx, leftover.Config{
		Root: e.Root, State: e.State, Sockets: e.socketDir(), Address: e.Address, Daemon: e.daemon.Pid,
	})
	e.outdated = scan.Outdated()
	e.askDaemon(ctx)
	e.leftovers = scan.Find(e.known, e.knownErr)
}

func worse(a, b Status) Status {
	if b.rank() > a.rank() {
		return b
	}
	return a
}

// socketDir returns where shims make their sockets.
func (e *Examination) socketDir() string {
	if dir := e.config.text("plugins", "io.containerd.shim.v1.manager", "socket_dir"); dir != "" {
		return dir
	}
	return "/run/containerd/s"
}

// leftoversOf returns a check of one kind of leftovers.
func leftoversOf(kind leftover.Kind) func(e *Examination, ctx context.Context) []Finding {
	return func(e *Examination, _ context.Context) []Finding {
		if e.knownErr != nil && kind.NeedsKnown() {
			return []Finding{none("containerd does not say which containers there are: %v", e.knownErr)}
		}
		var findings []Finding
		for _, l := range e.leftovers {
			if l.Kind != kind {
				continue
			}
			text, find := l.Text, warn
			if l.Caution != "" {
				text, find = text+": "+l.Caution, bad
			}
			findings = append(findings, find("%s", text).fix("%s", l.Fix))
		}
		if findings == nil {
			findings = append(findings, ok("none"))
		}
		return findings
	}
}

// Check is a row of the table of checks, which docs/sandboxctl-doctor.md has too.
type Check struct {
	Name string
	What string // is looked at, for the documentation
	Fix  string // what to do if a finding says nothing else
	run  func(e *Examination, ctx context.Context) []Finding
}

// installHandlers is the command that gives containerd the handlers.
const installHandlers = "/usr/share/containerd-shim-sandbox-v1/install.sh install --config-only " +
	"(from source: make install-node)"

// delegate returns the command that makes systemd leave the cgroups of a unit alone: set-property does not take it.
func delegate(unit string) string {
	dir := "/etc/systemd/system/" + unit + ".d"
	return fmt.Sprintf(`mkdir -p %s; printf '[Service]\nDelegate=yes\n' >%s/delegate.conf; systemctl daemon-reload; `+
		`systemctl restart %s`, dir, dir, unit)
}

// Checks returns all checks in the order in which they run.
func Checks() []Check {
	return []Check{
		{"privileges", "root, without whom much cannot be seen", "sudo sandboxctl doctor", (*Examination).privileges},
		{
			"kernel-version", "Linux 5.10 or later",
			"boot Linux 5.10 or later (Debian: apt-get install linux-image-$(dpkg --print-architecture); then reboot)",
			(*Examination).kernelVersion,
		},
		{
			"kernel-features", "system calls of the shim, each tried: pidfd_open, clone3, openat2, the mount API, memfd_create",
			"let this program and containerd make the call: a seccomp profile or a kernel without it refuses it",
			(*Examination).kernelFeatures,
		},
		{
			"namespaces", "whether user.max_*_namespaces allow any",
			"sysctl -w user.max_NAME_namespaces=15000, and the same line in /etc/sysctl.d/99-sandbox.conf",
			(*Examination).namespaces,
		},
		{
			"cgroup-mode", "cgroup v2, v1, or both",
			"add systemd.unified_cgroup_hierarchy=1 to the kernel's command line and reboot", (*Examination).cgroupMode,
		},
		{
			"cgroup-controllers", "the controllers cpu, cpuset, io, memory and pids (v1: also devices and freezer)",
			"take cgroup_disable= from the kernel's command line (some boards need cgroup_enable=memory) and reboot",
			(*Examination).cgroupControllers,
		},
		{
			"cgroup-delegation", "that systemd leaves the cgroups of containerd's unit alone",
			delegate("containerd.service"), (*Examination).cgroupDelegation,
		},
		{
			"containerd", "that containerd answers on its socket",
			"systemctl start containerd; journalctl -u containerd says why it ended", (*Examination).containerd,
		},
		{
			"containerd-version", "containerd 1.6 to 2.4", "install containerd 1.7 or 2.x", (*Examination).containerdVersion,
		},
		{
			"handlers", "that containerd's configuration, as read, names a handler with runtime_type io.containerd.sandbox.v1",
			installHandlers, (*Examination).handlers,
		},
		{
			"shim-binary", "that containerd's shim runs, has the version of this program, and accepts the default options",
			"install the package of the same release, or: make install PREFIX=/usr/local", (*Examination).shimBinary,
		},
		{
			"shim-upgrade", "that running shims run the program that is installed at their path", "sandboxctl upgrade --all",
			(*Examination).shimUpgrade,
		},
		{
			"apparmor", "that containerd can load its AppArmor profile",
			"apt-get install apparmor; systemctl restart containerd", (*Examination).apparmor,
		},
		{
			"selinux", "that containerd labels containers where SELinux enforces",
			"set enable_selinux = true in the table of CRI's plugin in containerd's configuration; systemctl restart containerd",
			(*Examination).selinux,
		},
		{
			"inotify", "fs.inotify.max_user_instances, against what root has",
			"sysctl -w fs.inotify.max_user_instances=8192, and the same in /etc/sysctl.d/99-sandbox.conf",
			(*Examination).inotify,
		},
		{
			"tasks-max", "pids.max of containerd's cgroup, in which shims run, and of those above",
			"systemctl set-property containerd.service TasksMax=infinity", (*Examination).tasksMax,
		},
		{
			"memory-overcommit", "vm.overcommit_memory, and how much is committed where it is 2",
			"sysctl -w vm.overcommit_memory=0, or more swap", (*Examination).overcommit,
		},
		{
			"run-space", "bytes and inodes that are free where containerd keeps its state",
			"mount -o remount,size=50%,nr_inodes=1m /run", (*Examination).runSpace,
		},
		{
			string(leftover.Bundles), "bundles of this runtime without a shim", "systemctl restart containerd",
			leftoversOf(leftover.Bundles),
		},
		{string(leftover.Sockets), "sockets of shims on which nobody listens", "rm SOCKET", leftoversOf(leftover.Sockets)},
		{
			string(leftover.Mounts), "mounts in bundles that nobody has any more", "umount MOUNT",
			leftoversOf(leftover.Mounts),
		},
		{
			string(leftover.States), "state directories, with their cgroups, of containers that containerd does not know",
			"runc --root DIRECTORY delete --force ID", leftoversOf(leftover.States),
		},
		{string(leftover.Shims), "shims whose bundles are gone", "kill -TERM PID", leftoversOf(leftover.Shims)},
	}
}
