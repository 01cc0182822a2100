// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package nsholder

import (
	"fmt"
	"math"
	"os"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/native"
)

// Descriptors of the program. Both can be absent.
const (
	netFD  = native.Socket + 1 // network namespace to join
	userFD = native.Socket + 2 // user namespace to join
)

// request is all that the process does.
func (c Config) request() (*native.Request, error) {
	if len(c.Hostname) > MaxHostname {
		return nil, fmt.Errorf("host name %q: must have at most %d bytes: %w", c.Hostname, MaxHostname, errdefs.ErrInvalidArgument)
	}
	r := &native.Request{}
	// The kernel reaps what the pod leaves behind, as SIGCHLD is ignored; all that can be blocked is.
	r.Call(unix.SYS_RT_SIGACTION, int(unix.SIGCHLD), r.Table(sigIgn, 0, 0, 0), 0, sizeOfSigset)
	r.Call(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, r.Table(uint64(math.MaxUint64)), 0, sizeOfSigset)
	r.Call(unix.SYS_SETSID).IgnoreErrors() // where it leads a group, which nobody signals
	r.Call(unix.SYS_PRCTL, unix.PR_SET_NAME, programName).IgnoreErrors()
	emptyRoot(r)
	c.enterNamespaces(r)
	c.dropPrivileges(r)
	// After the change of the user, which resets both.
	r.Call(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 0).OnError("become undumpable")
	r.Call(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, int(unix.SIGKILL)).OnError("set the parent's death signal")
	r.Wait(nil) // ends here if the shim died before
	r.Sleep()
	return r, nil
}

const (
	sigIgn       = 1
	sizeOfSigset = 8
)

// emptyRoot makes an empty, read-only file system the root in a mount namespace of its own: /proc/1/root in the pod
// must not lead to the host.
func emptyRoot(r *native.Request) {
	const what = "make an empty root"
	r.Call(unix.SYS_UNSHARE, unix.CLONE_NEWNS).OnError(what)
	// Nothing goes to the host, and what is unmounted there is unmounted here, where nobody could unmount it.
	r.Call(unix.SYS_MOUNT, "", "/", 0, unix.MS_REC|unix.MS_SLAVE, 0).OnError(what)
	// /proc is a directory that is there.
	const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	r.Call(unix.SYS_MOUNT, "tmpfs", "/proc", "tmpfs", flags, "size=4k").OnError(what)
	r.Call(unix.SYS_CHDIR, "/proc").OnError(what)
	// EINVAL: the root is the initial ramdisk, which cannot be moved.
	pivot := r.Call(unix.SYS_PIVOT_ROOT, ".", ".").Tolerate(unix.EINVAL).OnError(what)
	r.Call(unix.SYS_UMOUNT2, ".", unix.MNT_DETACH).UnlessFailed(pivot).OnError(what)
	r.Call(unix.SYS_MOUNT, ".", "/", 0, unix.MS_MOVE, 0).IfFailed(pivot).OnError(what)
	r.Call(unix.SYS_CHROOT, ".").IfFailed(pivot).OnError(what)
	r.Call(unix.SYS_CHDIR, "/").OnError(what)
}

func (c Config) enterNamespaces(r *native.Request) {
	if c.Net != nil { // before the user namespace: it need not be the owner
		r.Call(unix.SYS_SETNS, netFD, unix.CLONE_NEWNET).OnError("join the network namespace")
	}
	if c.User != nil {
		r.Call(unix.SYS_SETNS, userFD, unix.CLONE_NEWUSER).OnError("join the user namespace")
	}
	if c.Map != nil {
		r.Call(unix.SYS_UNSHARE, unix.CLONE_NEWUSER).OnError("make a user namespace")
		r.Wait(c.Map.write)
	}
	r.Call(unix.SYS_UNSHARE, c.Make).OnError("make namespaces")
	if c.Hostname != "" {
		r.Call(unix.SYS_SETHOSTNAME, c.Hostname, len(c.Hostname)).OnError("set the host name")
	}
	if c.PID {
		const what = "make a PID namespace"
		r.Call(unix.SYS_UNSHARE, unix.CLONE_NEWPID).OnError(what)
		r.Fork().OnError(what)
	}
}

// dropPrivileges gives up all that a process without a user of its own in the pod can do.
func (c Config) dropPrivileges(r *native.Request) {
	// EPERM: the user namespace denies setgroups(2).
	r.Call(unix.SYS_SETGROUPS, 0, 0).Tolerate(unix.EPERM).OnError("setgroups")
	r.Call(unix.SYS_SETRESGID, c.GID, c.GID, c.GID).OnError("setresgid")
	r.Call(unix.SYS_SETRESUID, c.UID, c.UID, c.UID).OnError("setresuid")
	r.Call(unix.SYS_CAPSET, r.Table(unix.LINUX_CAPABILITY_VERSION_3), r.Table(0, 0, 0)).OnError("drop capabilities")
	r.Call(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1).OnError("set no_new_privs")
}

// write gives the user namespace that process pid has made its mappings, see user_namespaces(7).
func (m *Mappings) write(pid int) error {
	for _, f := range []struct {
		name string
		list []specs.LinuxIDMapping
	}{{"uid_map", m.UIDs}, {"gid_map", m.GIDs}} {
		var text strings.Builder
		for _, line := range f.list {
			fmt.Fprintf(&text, "%d %d %d\n", line.ContainerID, line.HostID, line.Size)
		}
		path := fmt.Sprintf("/proc/%d/%s", pid, f.name)
		if err := os.WriteFile(path, []byte(text.String()), 0); err != nil {
			return fmt.Errorf("write %q: %w", text.String(), err)
		}
	}
	return nil
}
