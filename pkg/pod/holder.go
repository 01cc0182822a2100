// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/launcher/native"
	"sandbox.internal/shim/pkg/osthread"
	"sandbox.internal/shim/pkg/poll"
	"sandbox.internal/shim/pkg/reaper"
)

const programName = "sandbox-init"

// holderConfig says which namespaces a holder has. Those that it does not name are the shim's.
type holderConfig struct {
	Net      *os.File        // network namespace to join
	User     *os.File        // user namespace to join
	Map      *idmap.Mappings // of a user namespace to make; not with User
	Make     int             // CLONE_NEW… of clone(2) of the others to make, except the PID namespace
	PID      bool            // make a PID namespace and be its first process
	Hostname string          // "" to leave it; not without CLONE_NEWUTS
	UID, GID uint32          // to run as, in the user namespace
}

// holder is the process that holds the namespaces of a pod where the shim's main thread cannot: a PID namespace needs
// a first process, and a process with threads cannot join a user namespace. It runs the program of
// pkg/launcher/native, gives up all that it has, and sleeps until it is killed or the shim's main thread ends. It
// adopts what the containers of the pod leave behind, which the kernel reaps.
//
// A process in the pod finds nothing of the host through the holder: its root is empty, the program cannot be changed,
// and a tracer needs CAP_SYS_PTRACE in the shim's user namespace. The kernel kills the holder at the first system call
// by which a tracer would act.
type holder struct {
	pid     int
	process *os.Process   // nil if a former program has reaped it
	exited  chan struct{} // closed when the process has exited and been waited for
	status  int           // written before
	at      time.Time     // so is this
	reaped  bool          // so is this, while the reaper reaps
}

// startHolder starts the process and returns when it holds the namespaces. When it fails, it leaves no process.
func startHolder(ctx context.Context, c holderConfig, t *osthread.Thread, reaper *reaper.Reaper) (*holder, error) {
	program, err := native.New("containerd-shim-sandbox-v1", programName)
	if err != nil {
		return nil, err
	}
	var run *native.Run
	err = t.Do(func() (err error) {
		// The main thread lives as long as the shim does, and so does its child.
		run, err = program.Start(reaper, [3]*os.File{}, c.Net, c.User)
		return err
	})
	h := &holder{exited: make(chan struct{})}
	if err == nil {
		h.process, err = run.Execute(ctx, c.request())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", programName, err), program.Close())
	}
	h.pid = h.process.Pid
	h.watch(reaper, program)
	return h, nil
}

func (h *holder) Pid() int { return h.pid }

// Wait waits until the process has ended and returns how: its exit code, or 128 and the signal.
func (h *holder) Wait() (status int, at time.Time) {
	<-h.exited
	return h.status, h.at
}

// Kill kills the process, with all of its PID namespace, and waits until the process has ended or ctx ends. It can be
// called again.
func (h *holder) Kill(ctx context.Context) error {
	if h.process == nil { // another process may have its id by now
		return nil
	}
	if err := h.process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill sandbox-init %d: %w", h.pid, err)
	}
	select {
	case <-h.exited:
		return nil
	case <-ctx.Done(): // the first process waits for one of the namespace that does not die
		return fmt.Errorf("wait for the end of sandbox-init %d: %w", h.pid, context.Cause(ctx))
	}
}

// watch has await begin when the process has exited.
func (h *holder) watch(reaper *reaper.Reaper, program *native.Program) {
	await := func() { h.await(reaper, program) }
	if h.reaped {
		await()
		return
	}
	poll.OnDeath(h.process, await)
}

// await waits for the process, unless a former program did. It closes the program, for which startHolder would have to
// wait; nil for none.
func (h *holder) await(reaper *reaper.Reaper, program *native.Program) {
	if !h.reaped {
		_ = native.AwaitDeath(context.Background(), h.Pid()) // for what OnDeath cannot watch; Wait takes a thread
		reaper.Reap(h.reap)
		reaper.Unregister(h.Pid())
	}
	close(h.exited)
	if program != nil {
		_ = program.Close() // nothing runs it any more
	}
}

func (h *holder) reap() {
	state, err := h.process.Wait()
	h.at, h.status = time.Now(), 255 // containerd's status for an exit of which nothing is known
	if err == nil {
		status, _ := state.Sys().(syscall.WaitStatus) // it is one on every unix
		h.status = status.ExitStatus()
		if status.Signaled() {
			h.status = 128 + int(status.Signal())
		}
	}
	h.reaped = true
}

// Descriptors of the program. Both can be absent.
const (
	netFD  = native.Socket + 1 // network namespace to join
	userFD = native.Socket + 2 // user namespace to join
)

// request returns all that the process does.
func (c holderConfig) request() *native.Request {
	r := &native.Request{}
	const sigIgn, sizeOfSigset, cpuSeconds, stackSize = 1, 8, 10, 64 << 10
	r.Call(unix.SYS_RT_SIGACTION, int(unix.SIGCHLD), r.Table(sigIgn, 0, 0, 0), 0, sizeOfSigset)
	r.Call(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, r.Table(uint64(math.MaxUint64)), 0, sizeOfSigset)
	r.Call(unix.SYS_SETSID).IgnoreErrors() // fails if it leads a group, which nobody signals
	r.Call(unix.SYS_PRCTL, unix.PR_SET_NAME, programName).IgnoreErrors()
	// The process is in the shim's cgroup. A tracer that has it compute ends it, and its stack cannot grow.
	r.Call(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_CPU, r.Table(cpuSeconds, cpuSeconds), 0).OnError("limit the CPU time")
	r.Call(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_STACK, r.Table(stackSize, stackSize), 0).OnError("limit the stack")
	emptyRoot(r)
	c.enterNamespaces(r)
	c.dropPrivileges(r)
	// These come after the change of the user, which resets both.
	r.Call(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 0).OnError("become undumpable")
	r.Call(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, int(unix.SIGKILL)).OnError("set the parent's death signal")
	r.Wait(nil) // ends here if the shim died before
	r.Call(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, sleepFilter(r)).OnError("set the seccomp filter")
	r.Sleep()
	return r
}

// emptyRoot makes an empty, read-only file system the root in a mount namespace of its own: /proc/1/root in the pod
// must not lead to the host.
func emptyRoot(r *native.Request) {
	const what = "make an empty root"
	r.Call(unix.SYS_UNSHARE, unix.CLONE_NEWNS).OnError(what)
	// Nothing propagates to the host, and what is unmounted there is unmounted here, where nobody could unmount it.
	r.Call(unix.SYS_MOUNT, "", "/", 0, unix.MS_REC|unix.MS_SLAVE, 0).OnError(what)
	const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	r.Call(unix.SYS_MOUNT, "tmpfs", "/proc", "tmpfs", flags, "size=4k").OnError(what) // /proc is always there
	r.Call(unix.SYS_CHDIR, "/proc").OnError(what)
	// EINVAL: the root is the initial ramdisk, which cannot be moved.
	pivot := r.Call(unix.SYS_PIVOT_ROOT, ".", ".").Tolerate(unix.EINVAL).OnError(what)
	r.Call(unix.SYS_UMOUNT2, ".", unix.MNT_DETACH).IfDone(pivot).OnError(what)
	r.Call(unix.SYS_MOUNT, ".", "/", 0, unix.MS_MOVE, 0).IfFailed(pivot).OnError(what)
	r.Call(unix.SYS_CHROOT, ".").IfFailed(pivot).OnError(what)
	r.Call(unix.SYS_CHDIR, "/").OnError(what)
}

func (c holderConfig) enterNamespaces(r *native.Request) {
	if c.Net != nil { // before the user namespace: it need not be the owner
		r.Call(unix.SYS_SETNS, netFD, unix.CLONE_NEWNET).OnError("join the network namespace")
	}
	if c.User != nil {
		r.Call(unix.SYS_SETNS, userFD, unix.CLONE_NEWUSER).OnError("join the user namespace")
	}
	if c.Map != nil {
		r.Call(unix.SYS_UNSHARE, unix.CLONE_NEWUSER).OnError("make a user namespace")
		r.Wait(func(pid int) error { return writeMappings(pid, c.Map) })
	}
	if c.User != nil || c.Map != nil {
		// Files of the namespaces, such as the root of mqueue, belong to their creator. EINVAL: there is no root.
		r.Call(unix.SYS_SETRESGID, 0, 0, 0).Tolerate(unix.EINVAL).OnError("setresgid")
		r.Call(unix.SYS_SETRESUID, 0, 0, 0).Tolerate(unix.EINVAL).OnError("setresuid")
	}
	r.Call(unix.SYS_UNSHARE, c.Make).OnError("make namespaces")
	if c.Hostname != "" {
		r.Call(unix.SYS_SETHOSTNAME, c.Hostname, len(c.Hostname)).OnError("set the host name")
	}
	if c.PID {
		const what = "make a PID namespace"
		r.Call(unix.SYS_UNSHARE, unix.CLONE_NEWPID).OnError(what)
		r.Fork(0).OnError(what)
	}
}

// dropPrivileges gives up all that a process without a user of its own in the pod can do.
func (c holderConfig) dropPrivileges(r *native.Request) {
	for capability := range 64 { // more than there are
		r.Call(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, capability).Tolerate(unix.EINVAL).OnError("drop the bounding set")
	}
	r.Call(unix.SYS_SETGROUPS, 0, 0).Tolerate(unix.EPERM).OnError("setgroups") // the user namespace may deny it
	r.Call(unix.SYS_SETRESGID, c.GID, c.GID, c.GID).OnError("setresgid")
	r.Call(unix.SYS_SETRESUID, c.UID, c.UID, c.UID).OnError("setresuid")
	r.Call(unix.SYS_CAPSET, r.Table(unix.LINUX_CAPABILITY_VERSION_3), r.Table(0, 0, 0)).OnError("drop capabilities")
	r.Call(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1).OnError("set no_new_privs")
}

// sleepFilter returns the address of a seccomp filter (seccomp(2)) for the system calls of Request.Sleep. A tracer
// cannot get past it: the filter sees the call after the tracer (kernel/entry/common.c, syscall_trace_enter).
func sleepFilter(r *native.Request) native.Word {
	const load, equal, ret = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ, unix.BPF_RET
	const number, arch = 0, 4 // offsets in struct seccomp_data
	filter := []unix.SockFilter{
		{Code: load, K: arch},
		{Code: equal, K: native.AuditArch, Jf: 4},
		{Code: load, K: number},
		{Code: equal, K: unix.SYS_PPOLL, Jt: 3},
		{Code: equal, K: unix.SYS_CLOSE_RANGE, Jt: 2},
		{Code: equal, K: unix.SYS_MUNMAP, Jt: 1},
		{Code: ret, K: unix.SECCOMP_RET_KILL_PROCESS},
		{Code: ret, K: unix.SECCOMP_RET_ALLOW},
	}
	code, _ := binary.Append(nil, binary.LittleEndian, filter) // the type has a fixed size
	return r.Table(len(filter), code)
}

// writeMappings gives the user namespace that process pid has made its mappings, see user_namespaces(7).
func writeMappings(pid int, m *idmap.Mappings) error {
	for name, list := range map[string][]specs.LinuxIDMapping{"uid_map": m.UIDs, "gid_map": m.GIDs} {
		var text []byte
		for _, line := range list {
			text = fmt.Appendf(text, "%d %d %d\n", line.ContainerID, line.HostID, line.Size)
		}
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/%s", pid, name), text, 0); err != nil {
			return fmt.Errorf("write %q: %w", text, err)
		}
	}
	return nil
}
