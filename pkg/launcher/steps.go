// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os/signal"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/launcher/native"
)

// initFD is the descriptor of the pidfd of the container's init. That of the terminal's socket follows, if there is
// one.
const initFD = native.Socket + 1

// request returns all steps of an exec, in libcontainer's order and with its errors, on which Docker depends. But the
// fork into the PID namespace comes last, so that who can be traced there has no more rights than the program. With
// moves, the process moves into Unified, instead of being forked into it, and waits for a grace period of RCU.
func (c *Process) request(moves bool) *native.Request {
	r := &native.Request{}
	if c.Cgroups.Freezer != "" {
		r.Thaw = filepath.Join(filepath.Dir(c.Cgroups.Freezer), "cgroup.procs")
	}
	c.enterCgroups(r, moves)
	c.enterNamespaces(r)
	env, home := c.environment(r)
	c.configure(r)
	c.limit(r, home, initFD)
	c.becomeUser(r)
	c.enterPIDNamespace(r, env)
	return r
}

// consoleFD returns the descriptor that takes the master of the terminal.
func (c *Process) consoleFD() int {
	if c.Target == nil {
		return initFD
	}
	return initFD + 1
}

// freeFD returns the lowest descriptor that is not in use.
func (c *Process) freeFD() int {
	fd := c.consoleFD()
	if c.Terminal != nil {
		fd++
	}
	return fd
}

// enterCgroups follows nsenter/nsexec.c up to the first clone, process_linux.go addIntoCgroup.
func (c *Process) enterCgroups(r *native.Request, moves bool) {
	free := c.freeFD()
	r.Call(unix.SYS_CLOSE_RANGE, free, uint32(math.MaxUint32), 0).OnError("close_range")
	for fd := native.Socket; fd < free; fd++ {
		r.Call(unix.SYS_FCNTL, fd, unix.F_SETFD, unix.FD_CLOEXEC).OnError("fcntl")
	}
	c.protect(r, free)
	if c.Cgroups.Unified != "" {
		c.enterUnified(r, free, 0, moves)
	}
	c.enterTasks(r, free)
	resetAffinity(r)
}

// protect gives the process what keeps others from it, before it enters anything. free is a descriptor to use.
func (c *Process) protect(r *native.Request, free int) {
	resetSignals(r)
	if c.OOMScoreAdj != nil {
		write(r, free, "/proc/self/oom_score_adj", strconv.Itoa(*c.OOMScoreAdj))
	}
	c.confine(r, free)
	setUndumpable(r)
}

// confine tells the security module what is to confine the program and its keyring. A process does that for its next
// program, also for that of its child, by files in /proc (fs/proc/base.c, proc_pid_attr_write). It writes while it has
// the host's: in the mount namespace of the container anything may be there (CVE-2019-16884).
func (c *Process) confine(r *native.Request, free int) {
	if c.Label != "" {
		if c.Keyring != "" {
			write(r, free, "/proc/self/attr/keycreate", c.Label)
		}
		write(r, free, "/proc/thread-self/attr/exec", c.Label)
	}
	if c.Profile != "" {
		const file, failed = "/proc/thread-self/attr/apparmor/exec", "apparmor failed to apply profile: "
		writeOr(failed, r, free, file, "exec "+c.Profile)
	}
}

// enterUnified forks the process into its v2 cgroup, or moves it there, and into new namespaces.
func (c *Process) enterUnified(r *native.Request, free, namespaces int, moves bool) {
	if moves {
		write(r, free, filepath.Join(c.Cgroups.Unified, "cgroup.procs"), "0")
		return
	}
	r.Call(unix.SYS_OPENAT, unix.AT_FDCWD, c.Cgroups.Unified, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC).
		ExpectFD(free).Explain(c.notJoined)
	r.ForkInto(free, namespaces).Explain(c.notJoined)
	r.Call(unix.SYS_CLOSE, free)
}

// enterTasks moves the process into its v1 cgroups. Who moves itself through the file tasks waits for no grace period
// of RCU (kernel/cgroup/cgroup.c, cgroup_procs_write_start).
func (c *Process) enterTasks(r *native.Request, free int) {
	for _, dir := range c.Cgroups.Tasks {
		write(r, free, filepath.Join(dir, "tasks"), "0")
	}
}

// resetAffinity lets the process run on every CPU, as process_linux.go, tryResetCPUAffinity, does.
func resetAffinity(r *native.Request) {
	const mostCPUs = 8192 // NR_CPUS of arch/x86/Kconfig with MAXSMP, and more than other machines have
	cpus := bytes.Repeat([]byte{0xff}, mostCPUs/8)
	r.Call(unix.SYS_SCHED_SETAFFINITY, 0, len(cpus), cpus).IgnoreErrors()
}

// resetSignals gives signals that the caller ignores their default action; execve resets the others. As with
// libcontainer, SIGHUP and SIGINT stay ignored.
func resetSignals(r *native.Request) {
	const sizeOfSigset = 8
	for sig := unix.Signal(1); sig <= unix.SIGSYS; sig++ { // it ignores no real-time signal
		if sig != unix.SIGHUP && sig != unix.SIGINT && signal.Ignored(sig) {
			r.Call(unix.SYS_RT_SIGACTION, int(sig), r.Table(0, 0, 0, 0), 0, sizeOfSigset)
		}
	}
}

// setUndumpable keeps other processes from tracing the program. A change of credentials may undo it (fs.suid_dumpable
// in proc_sys_fs(5)), so it is repeated after each.
func setUndumpable(r *native.Request) *native.Step {
	return r.Call(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 0).OnError("set process as non-dumpable")
}

// write writes text to a file of the host, which becomes descriptor fd.
func write(r *native.Request, fd int, path, text string) { writeOr("", r, fd, path, text) }

// writeOr writes text to the file at path, which is fd meanwhile. An error begins with failed.
func writeOr(failed string, r *native.Request, fd int, path, text string) {
	r.Call(unix.SYS_OPENAT, unix.AT_FDCWD, path, unix.O_WRONLY|unix.O_CLOEXEC).ExpectFD(fd).
		OnError(failed + "open " + path)
	r.Call(unix.SYS_WRITE, fd, text, len(text)).OnError(failed + "write " + path)
	r.Call(unix.SYS_CLOSE, fd)
}

func (c *Process) notJoined(errno unix.Errno, _ uint32) error {
	return fmt.Errorf("%w %s: %w", ErrNotJoined, c.Cgroups.Unified, errno)
}

// enterNamespaces follows nsenter/nsexec.c, join_namespaces and stages 1 and 2. Only children enter the PID namespace
// that is joined. The terminal is made while a descriptor of the host is still open.
func (c *Process) enterNamespaces(r *native.Request) {
	procSelf := c.freeFD()
	if c.Terminal != nil {
		r.Call(unix.SYS_OPENAT, unix.AT_FDCWD, "/proc/self/fd", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC).
			ExpectFD(procSelf).OnError("open /proc/self/fd")
	}
	r.Call(unix.SYS_SETNS, initFD, c.Join).OnError("failed to join namespaces: setns")
	if c.Join&unix.CLONE_NEWUSER != 0 {
		r.Call(unix.SYS_SETRESUID, 0, 0, 0).OnError("failed to become root in user namespace")
		// libcontainer does this later, but before it makes the terminal, which gets the group.
		r.Call(unix.SYS_SETGID, 0).OnError("setgid failed")
		setUndumpable(r)
	}
	if c.Terminal != nil {
		c.openTerminal(r, procSelf)
	}
	// From here on only the standard streams and the socket are open.
	r.Call(unix.SYS_CLOSE_RANGE, initFD, uint32(math.MaxUint32), 0).OnError("close_range")
	r.Call(unix.SYS_SETUID, 0).OnError("setuid failed")
	r.Call(unix.SYS_SETGID, 0).OnError("setgid failed")
	if c.Terminal == nil {
		useOwnNull(r)
	}
}

// packed returns a structure of fixed size as the kernel takes it.
func packed(structure any) []byte {
	b, _ := binary.Append(nil, binary.LittleEndian, structure) // its size is fixed
	return b
}

// configure follows setns_init_linux.go, Init, up to where the parent sets the resource limits.
func (c *Process) configure(r *native.Request) {
	if c.Keyring != "" {
		r.Call(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, c.Keyring).Tolerate(unix.ENOSYS).
			OnError("unable to join session keyring: unable to create session key")
	}
	if c.Umask != nil {
		r.Call(unix.SYS_UMASK, *c.Umask)
	}
	c.forbidPrivileges(r)
}

func (c *Process) forbidPrivileges(r *native.Request) {
	if c.NoNewPrivileges {
		r.Call(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1)
	}
}

func (c *Process) setRlimits(pid int) error {
	for _, l := range c.Rlimits {
		if err := unix.Prlimit(pid, l.Resource, &unix.Rlimit{Cur: l.Soft, Max: l.Hard}, nil); err != nil {
			return fmt.Errorf("error setting rlimits for ready process: error setting rlimit type %d: %w", l.Resource, err)
		}
	}
	return nil
}

// becomeUser follows the rest of setns_init_linux.go, Init, with init_linux.go, finalizeNamespace.
func (c *Process) becomeUser(r *native.Request) {
	var mayHaveGroups *native.Step
	if c.MayDenyGroups { // before the filter, whose EPERM is an error
		mayHaveGroups = c.setGroups(r).Tolerate(unix.EPERM)
	}
	if c.Filter != nil && !c.NoNewPrivileges { // it needs a privilege that is about to be dropped
		c.loadFilter(r).OnError("error loading seccomp filter into kernel: error loading seccomp filter")
	}
	chdirFailed := fmt.Sprintf("chdir to cwd (%q) set in config.json failed", c.Cwd)
	var chdir *native.Step
	if c.Cwd != "" {
		chdir = r.Call(unix.SYS_CHDIR, c.Cwd).Tolerate(unix.EPERM, unix.EACCES).OnError(chdirFailed)
	}
	if c.Capabilities != nil {
		c.dropBounding(r)
	}
	r.Call(unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 1).OnError("unable to set keep caps")
	c.setIDs(r, mayHaveGroups)
	setUndumpable(r).IgnoreErrors()
	if chdir != nil {
		r.Call(unix.SYS_CHDIR, c.Cwd).OnError(chdirFailed).IfFailed(chdir)
	}
	r.CheckCwd().Explain(func(errno unix.Errno, _ uint32) error {
		if errno == unix.ENOENT {
			return errors.New("current working directory is outside of container mount namespace root -- " +
				"possible container breakout detected")
		}
		return fmt.Errorf("failed to verify if current working directory is safe: getwd: %w", errno)
	})
	r.Call(unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 0).OnError("unable to clear keep caps")
	if c.Capabilities != nil {
		c.setCapabilities(r)
	}
}

// dropBounding follows capabilities/capabilities.go, ApplyBoundingSet.
func (c *Process) dropBounding(r *native.Request) {
	for i := 0; i <= c.Capabilities.Last; i++ {
		if c.Capabilities.Bounding>>i&1 == 0 {
			// EINVAL: the kernel does not know the capability.
			r.Call(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, i).Tolerate(unix.EINVAL).OnError("unable to apply bounding set")
		}
	}
}

// setCapabilities follows capabilities/capabilities.go, ApplyCaps, except for the bounding set.
func (c *Process) setCapabilities(r *native.Request) {
	header := packed(unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3})
	var sets []byte
	for _, shift := range []int{0, 32} {
		sets = append(sets, packed(unix.CapUserData{
			Effective:   uint32(c.Capabilities.Effective >> shift),
			Permitted:   uint32(c.Capabilities.Permitted >> shift),
			Inheritable: uint32(c.Capabilities.Inheritable >> shift),
		})...)
	}
	r.Call(unix.SYS_CAPSET, header, sets).OnError("unable to apply caps: can't apply capabilities")
	r.Call(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL).Tolerate(unix.EINVAL).
		OnError("unable to apply caps")
	for i := 0; i <= c.Capabilities.Last; i++ {
		if c.Capabilities.Ambient>>i&1 == 1 {
			r.Call(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, i).IgnoreErrors()
		}
	}
}

func (c *Process) setGroups(r *native.Request) *native.Step {
	var groups []byte
	for _, gid := range c.Groups {
		groups = binary.LittleEndian.AppendUint32(groups, uint32(gid))
	}
	return r.Call(unix.SYS_SETGROUPS, len(c.Groups), groups).OnError("unable to setup user: setgroups")
}

// setIDs follows init_linux.go, setupUser. mayHaveGroups is done if the user namespace allows groups; nil: any does.
func (c *Process) setIDs(r *native.Request, mayHaveGroups *native.Step) {
	for stream, name := range []string{"/dev/stdin", "/dev/stdout", "/dev/stderr"} {
		null := isNull(r, stream)
		// EPERM: the owner is not mapped.
		r.Call(unix.SYS_FCHOWN, stream, c.UID, -1).IfFailed(null).Tolerate(unix.EPERM, unix.EROFS).
			OnError("unable to setup user: chown " + name)
	}
	if step := c.setGroups(r); mayHaveGroups != nil {
		step.IfDone(mayHaveGroups)
	}
	r.Call(unix.SYS_SETGID, c.GID).Explain(notMapped("gid", c.GID))
	r.Call(unix.SYS_SETUID, c.UID).Explain(notMapped("uid", c.UID))
}

func notMapped(kind string, id int) func(unix.Errno, uint32) error {
	return func(errno unix.Errno, _ uint32) error {
		if errno == unix.EINVAL {
			return fmt.Errorf("unable to setup user: cannot set%s to unmapped %s %d in user namespace", kind, kind, id)
		}
		return fmt.Errorf("unable to setup user: %w", errno)
	}
}

// enterPIDNamespace follows nsenter/nsexec.c, stage 2, and what only the process can do in setns_init_linux.go, Init.
func (c *Process) enterPIDNamespace(r *native.Request, env native.Word) {
	c.lookup(r)
	c.loadLateFilter(r)
	r.Fork(0).OnError("unable to spawn stage-2: clone")
	r.Call(unix.SYS_SETSID).OnError("setsid failed")
	if c.Terminal != nil {
		r.Call(unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0)
	}
	r.Wait(func(int) error {
		if c.Ready == nil {
			return nil
		}
		return c.Ready()
	})
	c.exec(r, env)
}

// loadLateFilter loads the filter as late as possible, if that needs no privilege.
func (c *Process) loadLateFilter(r *native.Request) {
	if c.Filter != nil && c.NoNewPrivileges {
		c.loadFilter(r).
			OnError("unable to init seccomp: error loading seccomp filter into kernel: error loading seccomp filter")
	}
}

func (c *Process) loadFilter(r *native.Request) *native.Step {
	program := r.Table(len(c.Filter.Program)/unix.SizeofSockFilter, c.Filter.Program)
	if c.Filter.Flags == 0 {
		return r.Call(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, program)
	}
	return r.Call(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, uint64(c.Filter.Flags), program)
}
