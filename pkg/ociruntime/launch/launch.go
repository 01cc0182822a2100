// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package launch starts inits and execs without starting a Go program.
//
// [Init.Start] is for the former, [Command.Start] for the latter. Both have the program of pkg/native make the system
// calls of libcontainer (steps.go), and report what fails in libcontainer's words. docs/decisions/0004 and 0015 say why
// that is safe. An exec:
//
//	shim --start--> program --fork--> in the v2 cgroup --fork--> in the PID namespace --execve--> the process
//	                signals           v1 cgroups, CPUs           session
//	                not dumpable      namespaces, terminal
//	                                  limits, filter,
//	                                  user, capabilities
//
// The last process starts with the rights of its program, so tracing it in the PID namespace gains nothing. A seccomp
// filter may forbid what is left to do there ([Command.FilterLast]).
//
// # Promises
//
//   - Start ends when its context does, and leaves no process behind if it fails, as pkg/native says.
//   - The only descriptors of the shim that get into a PID namespace that others are in are the standard streams and
//     the program's socket, which execve closes. An init that is the first process of its own has others open until its
//     file system is complete, while only hooks of the host may join it.
package launch

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs2"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/native"
	"sandbox.internal/shim/pkg/reaper"
)

// ProgramName is what the program of pkg/native is called here.
const ProgramName = "launcher"

// ErrNotStarted means that nothing was done that libcontainer cannot do again, and that libcontainer may succeed, since
// it makes a file system in another way.
var ErrNotStarted = errors.New("the launcher cannot start a process")

// ErrNotJoined means that no process can be started in Command.Unified.
var ErrNotJoined = errors.New("error adding process to cgroup")

// notStarted is such an error, in the words of its reason.
type notStarted struct{ error }

func (notStarted) Is(target error) bool { return target == ErrNotStarted }

func (e notStarted) Unwrap() error { return e.error }

// Start starts c with program, and returns when c's own program has begun, or when ctx ends. The process is a child of
// the caller, who owns it in the reaper. c is not changed.
func (c *Command) Start(ctx context.Context, program *native.Program, reaper *reaper.Reaper) (*os.Process, error) {
	p, err := c.start(ctx, program, reaper, c.request(false, false))
	// ENOSYS: a seccomp filter on the shim forbids clone3(2).
	if errors.Is(err, native.ErrKilledInCgroup) || errors.Is(err, unix.ENOSYS) {
		p, err = c.start(ctx, program, reaper, c.request(true, false))
	}
	// The limit of processes forbids a fork (Documentation/admin-guide/cgroup-v2.rst, PID).
	if errors.Is(err, unix.EAGAIN) && c.Limited != "" {
		p, err = c.start(ctx, program, reaper, c.request(true, true))
	}
	return p, err
}

func (c *Command) start(
	ctx context.Context, program *native.Program, reaper *reaper.Reaper, request *native.Request,
) (_ *os.Process, failed error) {
	stdio, more := c.Stdio, []*os.File{c.Init}
	if c.Terminal != nil {
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		defer null.Close() //nolint:errcheck // nothing was written
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, os.NewSyscallError("socketpair", err)
		}
		ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
		defer ours.Close()   //nolint:errcheck // nothing is expected from it
		defer theirs.Close() //nolint:errcheck // the program has its own
		stdio, more = c.besideTerminal(null), append(more, theirs)
		defer func() {
			if failed == nil { // else this may be tried again, with another terminal
				forward(ours, c.Terminal.Socket)
			}
		}()
	}
	if len(c.attributes()) > 0 {
		proc, err := openProcfs()
		if err != nil {
			return nil, err
		}
		defer proc.Close() //nolint:errcheck // only names a directory
		more = append(more, proc)
	}
	run, err := program.Start(reaper, stdio, more...)
	if err != nil {
		return nil, err
	}
	return run.Execute(ctx, request)
}

// leaveLimited moves a process from Limited to where the shim is.
func (c *Command) leaveLimited(pid int) error {
	own, err := cgroups.GetOwnCgroupPath("pids")
	if cgroups.IsCgroup2UnifiedMode() {
		var paths map[string]string
		paths, err = cgroups.ParseCgroupFile("/proc/self/cgroup")
		own = filepath.Join(fs2.UnifiedMountpoint, paths[""])
	}
	if err != nil {
		return err
	}
	return cgroups.WriteCgroupProc(own, pid)
}

func (c *Command) enterLimited(pid int) error { return cgroups.WriteCgroupProc(c.Limited, pid) }

// besideTerminal returns the streams to use until there is a terminal, which replaces those that are null.
func (c *Command) besideTerminal(null *os.File) [3]*os.File {
	return [3]*os.File{null, null, cmp.Or(c.Stdio[2], null)}
}

// Command is a process that is to run in a container. No string may contain a zero byte, and the environment has each
// name once.
type Command struct {
	Args []string
	Env  []string // HOME is added when FindHome is set
	Cwd  string   // "" for the root

	// TaskDir is where a program without an absolute path is looked up before PATH and Cwd: in its subdirectory local,
	// then in TaskDir itself; "" for none.
	TaskDir string

	// FindHome asks for HOME from the container's /etc/passwd, or "/" if that does not say.
	FindHome bool

	Stdio    [3]*os.File // with a Terminal only the last, a separate stderr, which may be nil
	Terminal *Terminal   // nil for none

	Init       *os.File // pidfd of the container's init
	Namespaces int      // those to join (CLONE_NEW… of clone(2)); the mount namespace is among them
	Unified    string   // the container's cgroup in the v2 hierarchy, "" for none
	Tasks      []string // its cgroups in the v1 hierarchies
	Limited    string   // the one of these with the limit of processes, "" for none
	Freezer    string   // that of Tasks whose processes may be frozen, "" for none

	OOMScoreAdj     *int
	InitialAffinity []byte // CPUs to begin with, as sched_setaffinity(2) takes them; nil for any
	FinalAffinity   []byte // CPUs once the process is in its cgroups; nil to leave them
	Keyring         string // name of the session keyring, "" to keep the shim's

	Label   string // the SELinux label of its program and of its keyring, "" for what the policy says
	Profile string // the AppArmor profile of its program, "" for none

	NoNewPrivileges bool
	Umask           *uint32
	Scheduler       *unix.SchedAttr
	IOPriority      *int // as ioprio_set(2) takes it
	Rlimits         []Rlimit
	Filter          *Filter

	// Ready is called when the process is about to run its program and all that set it up have ended; nil for none.
	Ready func() error

	UID, GID      int
	MayDenyGroups bool // its user namespace may deny setgroups(2): it then has no groups
	Groups        []int
	Capabilities  *Capabilities // nil to leave them
}

// Terminal is a terminal that is made in the container.
type Terminal struct {
	Socket        *os.File // takes the master, as docs/terminals.md of runc describes it
	Width, Height uint16   // 0 for the kernel's default
}

// Rlimit is a resource limit, see prlimit(2).
type Rlimit struct {
	Resource   int
	Soft, Hard uint64
}

// Capabilities are sets of bits, see capabilities(7).
type Capabilities struct {
	Bounding, Effective, Permitted, Inheritable, Ambient uint64
	Last                                                 int // the highest that the kernel knows
}
