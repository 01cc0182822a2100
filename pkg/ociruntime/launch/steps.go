// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launch

/*
#include "program.h"
*/
import "C"

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// here is AT_FDCWD, for paths that are absolute.
var here = number(int64ToWord(unix.AT_FDCWD))

func int64ToWord(n int64) uint64 { return uint64(n) }

// steps is the whole way from the shim to the program of the container. Each part names its source in libcontainer, and
// has the order from there, but for one thing: the fork into the PID namespace comes last. Whatever can be seen there,
// and traced with CAP_SYS_PTRACE, has no more rights than the program. What happens before the namespaces are joined may
// open files of the host, and closes them.
func (c *Command) steps() *request {
	r := &request{}
	c.enterCgroups(r)
	c.enterNamespaces(r)
	c.setUp(r)
	c.finalize(r)
	return r
}

// free is the lowest descriptor that is not in use.
func (c *Command) free() int {
	if c.Terminal != nil {
		return C.FD_CONSOLE + 1
	}
	return C.FD_CONSOLE
}

// enterCgroups: nsenter/nsexec.c up to the first clone, process_linux.go addIntoCgroup and setFinalCPUAffinity.
func (c *Command) enterCgroups(r *request) {
	free := c.free()
	r.call(unix.SYS_CLOSE_RANGE, number(free), number(uint32(math.MaxUint32)), number(0)).or(named("close_range"))
	r.do(C.OP_SIGNALS)
	for fd := C.FD_SOCKET; fd < free; fd++ {
		r.call(unix.SYS_FCNTL, number(fd), number(unix.F_SETFD), number(unix.FD_CLOEXEC)).or(named("fcntl"))
	}
	if c.OOMScoreAdj != nil {
		c.write(r, "/proc/self/oom_score_adj", decimal(*c.OOMScoreAdj))
	}
	undumpable(r)
	if c.InitialAffinity != nil {
		c.affinity(r, c.InitialAffinity).or(named("error setting initial CPU affinity"))
	}
	if c.Unified != "" && c.moves {
		c.write(r, filepath.Join(c.Unified, "cgroup.procs"), "0")
	} else if c.Unified != "" {
		r.call(unix.SYS_OPENAT, here, r.text(c.Unified), number(unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)).
			gives(free).or(notJoined(c.Unified))
		r.do(C.OP_FORK, number(free+1)).or(notJoined(c.Unified))
		r.call(unix.SYS_CLOSE, number(free))
	}
	for _, dir := range c.Tasks {
		// A process with one thread that moves itself by this file waits for no grace period of RCU, which one that
		// is moved by cgroup.procs does (kernel/cgroup/cgroup.c, cgroup_procs_write_start).
		c.write(r, filepath.Join(dir, "tasks"), "0")
	}
	if c.FinalAffinity != nil {
		c.affinity(r, c.FinalAffinity).or(named("error setting final CPU affinity"))
	} else if c.InitialAffinity == nil {
		const mostCPUs = 64 << 10
		c.affinity(r, bytes.Repeat([]byte{0xff}, mostCPUs/8)).anyway()
	}
}

// undumpable keeps other processes from tracing the program. A change of credentials may undo it (fs.suid_dumpable in
// proc_sys_fs(5)), so it comes again after each.
func undumpable(r *request) *step {
	return r.call(unix.SYS_PRCTL, number(unix.PR_SET_DUMPABLE), number(0)).or(named("set process as non-dumpable"))
}

func (c *Command) affinity(r *request, cpus []byte) *step {
	return r.call(unix.SYS_SCHED_SETAFFINITY, number(0), number(len(cpus)), r.bytes(cpus))
}

// write opens a file of the host, writes text and closes it.
func (c *Command) write(r *request, path, text string) {
	free := c.free()
	r.call(unix.SYS_OPENAT, here, r.text(path), number(unix.O_WRONLY|unix.O_CLOEXEC)).gives(free).or(named("open " + path))
	r.call(unix.SYS_WRITE, number(free), r.text(text), number(len(text))).or(named("write " + path))
	r.call(unix.SYS_CLOSE, number(free))
}

// enterNamespaces: nsenter/nsexec.c, join_namespaces and stages 1 and 2. Only children get into the PID namespace that
// is joined. The terminal is made while a descriptor of the host is still open.
func (c *Command) enterNamespaces(r *request) {
	if c.Terminal != nil {
		r.call(unix.SYS_OPENAT, here, r.text("/proc/self/fd"), number(unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)).
			gives(c.free()).or(named("open /proc/self/fd"))
	}
	r.call(unix.SYS_SETNS, number(C.FD_INIT), number(c.Namespaces)).or(named("failed to join namespaces: setns"))
	if c.Namespaces&unix.CLONE_NEWUSER != 0 {
		r.call(unix.SYS_SETRESUID, number(0), number(0), number(0)).or(named("failed to become root in user namespace"))
		// libcontainer does it later, yet before the terminal is made, which gets the group.
		r.call(unix.SYS_SETGID, number(0)).or(named("setgid failed"))
		undumpable(r)
	}
	if c.Terminal != nil {
		c.terminal(r)
	}
	// From here on it has its standard streams and FD_SOCKET.
	r.call(unix.SYS_CLOSE_RANGE, number(C.FD_INIT), number(uint32(math.MaxUint32)), number(0)).or(named("close_range"))
	r.call(unix.SYS_SETUID, number(0)).or(named("setuid failed"))
	r.call(unix.SYS_SETGID, number(0)).or(named("setgid failed"))
}

// terminal: console_linux.go, safeAllocPty, and init_linux.go, setupConsole.
func (c *Command) terminal(r *request) {
	const ptmx = "/dev/pts/ptmx"
	proc := c.free()
	handle, master, peer := proc+1, proc+2, proc+3
	r.call(unix.SYS_OPENAT, here, r.text(ptmx), number(unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC)).
		gives(handle).or(named("open " + ptmx))
	r.do(C.OP_PTMX, number(handle)).or(named("verify ptmx handle"))
	r.call(unix.SYS_OPENAT, number(proc), r.text(decimal(handle)), number(unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)).
		gives(master).or(named("reopen ptmx to get new pty pair"))
	r.call(unix.SYS_IOCTL, number(master), number(unix.TIOCSPTLCK), r.words(number(0))).or(plain)
	r.call(unix.SYS_IOCTL, number(master), number(unix.TIOCGPTPEER), number(unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)).
		gives(peer).or(named("failed to get peer end of newly-allocated console: ioctl TIOCGPTPEER"))
	if t := c.Terminal; t.Width != 0 && t.Height != 0 {
		size := binary.LittleEndian.AppendUint16(nil, t.Height)
		size = binary.LittleEndian.AppendUint16(size, t.Width)
		r.call(unix.SYS_IOCTL, number(master), number(unix.TIOCSWINSZ), r.bytes(append(size, 0, 0, 0, 0)))
	}
	rights := unix.UnixRights(master)
	vector := r.words(r.text(ptmx), number(len(ptmx)))
	// struct msghdr of sendmsg(2): no address, one vector, one control message.
	message := r.words(number(0), number(0), vector, number(1), r.bytes(rights), number(len(rights)), number(0))
	r.call(unix.SYS_SENDMSG, number(C.FD_CONSOLE), message, number(0)).or(named("sendmsg"))
	streams := 3
	if c.Stdio[2] != nil {
		streams = 2 // it begins with that
	}
	for fd := range streams {
		r.call(unix.SYS_DUP3, number(peer), number(fd), number(0)).or(named("dup3"))
	}
}

// setUp: setns_init_linux.go, Init, up to where the parent sets the resource limits.
func (c *Command) setUp(r *request) {
	if c.Keyring != "" {
		r.call(unix.SYS_KEYCTL, number(unix.KEYCTL_JOIN_SESSION_KEYRING), r.text(c.Keyring)).unless(unix.ENOSYS).
			or(named("unable to join session keyring: unable to create session key"))
	}
	if c.NoNewPrivileges {
		r.call(unix.SYS_PRCTL, number(unix.PR_SET_NO_NEW_PRIVS), number(1))
	}
	if c.Umask != nil {
		r.call(unix.SYS_UMASK, number(*c.Umask))
	}
	if c.Scheduler != nil {
		var attr bytes.Buffer
		_ = binary.Write(&attr, binary.LittleEndian, c.Scheduler) // a buffer takes all, and the type has a fixed size
		r.call(unix.SYS_SCHED_SETATTR, number(0), r.bytes(attr.Bytes()), number(0)).or(named("error setting scheduler"))
	}
	if c.IOPriority != nil {
		const process = 1 // IOPRIO_WHO_PROCESS
		r.call(unix.SYS_IOPRIO_SET, number(process), number(0), number(*c.IOPriority)).or(named("failed to set io priority"))
	}
	r.do(C.OP_READY).grant = c.limit
}

// limit sets the resource limits of the process.
func (c *Command) limit(pid int) error {
	for _, l := range c.Rlimits {
		if err := unix.Prlimit(pid, l.Resource, &unix.Rlimit{Cur: l.Soft, Max: l.Hard}, nil); err != nil {
			return fmt.Errorf("error setting rlimits for ready process: error setting rlimit type %d: %w", l.Resource, err)
		}
	}
	return nil
}

// finalize: setns_init_linux.go, Init, from there on, with init_linux.go, finalizeNamespace. Without no-new-privileges
// a filter needs a privilege that is about to be dropped; otherwise it comes as late as possible.
func (c *Command) finalize(r *request) {
	if c.Filter != nil && !c.NoNewPrivileges {
		c.filter(r).or(named("error loading seccomp filter into kernel: error loading seccomp filter"))
	}
	var enter func()
	if c.Cwd != "" {
		cwd := r.text(c.Cwd)
		r.call(unix.SYS_CHDIR, cwd).unless(unix.EPERM, unix.EACCES).or(chdirFailed(c.Cwd))
		tried := r.last()
		enter = func() { r.call(unix.SYS_CHDIR, cwd).or(chdirFailed(c.Cwd)).after = tried }
	}
	env := r.list(c.Env, 1)
	if c.FindHome {
		slot := word{value: env.value + uint64(len(c.Env)*wordSize), place: true}
		r.do(C.OP_HOME, number(c.UID), r.text("/etc/passwd"), slot)
	}
	if c.Capabilities != nil {
		r.do(C.OP_BOUNDING, number(c.Capabilities.Bounding), number(c.Capabilities.Last)).or(named("unable to apply bounding set"))
	}
	r.call(unix.SYS_PRCTL, number(unix.PR_SET_KEEPCAPS), number(1)).or(named("unable to set keep caps"))
	c.user(r)
	undumpable(r).anyway()
	if enter != nil {
		enter()
	}
	r.do(C.OP_INSIDE).or(notInside)
	r.call(unix.SYS_PRCTL, number(unix.PR_SET_KEEPCAPS), number(0)).or(named("unable to clear keep caps"))
	if c.Capabilities != nil {
		c.capabilities(r)
	}
	paths, search := c.paths()
	r.do(C.OP_LOOKUP, r.list(paths, 0), number(search)).or(notFound(c.Args[0]))
	late := c.FilterLast()
	if !late {
		c.filterLate(r)
	}
	c.enterPIDNamespace(r)
	if late {
		c.filterLate(r)
	}
	r.do(C.OP_EXEC, r.list(c.Args, 0), env)
}

// filterLate loads the filter as late as possible, where that needs no privilege.
func (c *Command) filterLate(r *request) {
	if c.Filter != nil && c.NoNewPrivileges {
		c.filter(r).or(named("unable to init seccomp: error loading seccomp filter into kernel: error loading seccomp filter"))
	}
}

// enterPIDNamespace: nsenter/nsexec.c, stage 2, and setns_init_linux.go, Init, for what only the process itself can do.
func (c *Command) enterPIDNamespace(r *request) {
	r.do(C.OP_FORK).or(named("unable to spawn stage-2: clone"))
	r.call(unix.SYS_SETSID).or(named("setsid failed"))
	if c.Terminal != nil {
		r.call(unix.SYS_IOCTL, number(0), number(unix.TIOCSCTTY), number(0))
	}
	r.do(C.OP_READY)
}

func (c *Command) filter(r *request) *step {
	var program bytes.Buffer
	_ = binary.Write(&program, binary.LittleEndian, c.Filter.Program) // a buffer takes all, and the type has a fixed size
	prog := r.words(number(len(c.Filter.Program)), r.bytes(program.Bytes()))
	if c.Filter.Flags == 0 {
		return r.call(unix.SYS_PRCTL, number(unix.PR_SET_SECCOMP), number(unix.SECCOMP_MODE_FILTER), prog)
	}
	return r.call(unix.SYS_SECCOMP, number(unix.SECCOMP_SET_MODE_FILTER), number(uint64(c.Filter.Flags)), prog)
}

// user: init_linux.go, setupUser.
func (c *Command) user(r *request) {
	r.do(C.OP_STDIO, number(c.UID)).or(notGiven)
	if c.SetGroups {
		groups := make([]byte, 0, 4*len(c.Groups))
		for _, gid := range c.Groups {
			groups = binary.LittleEndian.AppendUint32(groups, uint32(gid))
		}
		r.call(unix.SYS_SETGROUPS, number(len(c.Groups)), r.bytes(groups)).or(named("unable to setup user: setgroups"))
	}
	r.call(unix.SYS_SETGID, number(c.GID)).or(unmapped("gid", c.GID))
	r.call(unix.SYS_SETUID, number(c.UID)).or(unmapped("uid", c.UID))
}

// capabilities: capabilities/capabilities.go, ApplyCaps. The bounding set is done already.
func (c *Command) capabilities(r *request) {
	const (
		version     = 0x20080522 // _LINUX_CAPABILITY_VERSION_3
		half        = 32
		ambient     = 47 // PR_CAP_AMBIENT
		raise       = 2  // PR_CAP_AMBIENT_RAISE
		clearAll    = 4  // PR_CAP_AMBIENT_CLEAR_ALL
		sizeOfSets  = 24
		sizeOfFirst = 4
	)
	sets := make([]byte, 0, sizeOfSets)
	for shift := 0; shift <= half; shift += half {
		for _, set := range []uint64{c.Capabilities.Effective, c.Capabilities.Permitted, c.Capabilities.Inheritable} {
			sets = binary.LittleEndian.AppendUint32(sets, uint32(set>>shift))
		}
	}
	header := binary.LittleEndian.AppendUint32(make([]byte, 0, 2*sizeOfFirst), version)
	r.call(unix.SYS_CAPSET, r.bytes(append(header, 0, 0, 0, 0)), r.bytes(sets)).or(named("unable to apply caps: can't apply capabilities"))
	r.call(unix.SYS_PRCTL, number(ambient), number(clearAll)).unless(unix.EINVAL).or(named("unable to apply caps"))
	for i := 0; i <= c.Capabilities.Last; i++ {
		if c.Capabilities.Ambient>>i&1 == 1 {
			r.call(unix.SYS_PRCTL, number(ambient), number(raise), number(i)).anyway()
		}
	}
}

// paths are where the program is looked for, as os/exec.LookPath does it, and 1 if they come from PATH.
func (c *Command) paths() (paths []string, search int) {
	name := c.Args[0]
	if strings.Contains(name, "/") {
		return []string{name}, 0
	}
	if name == "" || name == "." || name == ".." {
		return nil, 1
	}
	for _, e := range c.Env {
		path, ok := strings.CutPrefix(e, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range filepath.SplitList(path) {
			if dir == "" {
				dir = "."
			}
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	return paths, 1
}
