// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/pkg/sys"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/osthread"
)

// hostNamespace returns the path of a namespace of the host, which is that of any thread but the main one.
func hostNamespace(name string) string { return "/proc/thread-self/ns/" + name }

// ownerOf opens the user namespace that owns the network namespace. It returns nil for the host's, and for no network.
func ownerOf(network *os.File) (*os.File, error) {
	if network == nil {
		return nil, nil
	}
	owner, err := sys.GetUsernsForNamespace(network.Fd())
	if err != nil {
		return nil, fmt.Errorf("network namespace %q: %w", network.Name(), err)
	}
	owners, err := owner.Stat()
	hosts, hostErr := os.Stat(hostNamespace("user"))
	if err = errors.Join(err, hostErr); err != nil || os.SameFile(owners, hosts) {
		_ = owner.Close() // nothing was written
		return nil, err
	}
	return owner, nil
}

// inNamespaces runs f on a thread that has joined namespaces of process pid (CLONE_NEW… bits), and that ends with f.
func inNamespaces(pid, kinds int, f func() error) error {
	return osthread.Run(func() error {
		pidfd, err := unix.PidfdOpen(pid, 0)
		if err == nil {
			err = unix.Setns(pidfd, kinds)
			_ = unix.Close(pidfd) // nothing was written
		}
		if err != nil {
			return fmt.Errorf("join namespaces %#x of process %d: %w", kinds, pid, err)
		}
		return f()
	})
}

// setns moves the calling thread into a namespace, of the kind that a CLONE_NEW… bit says, or of any for 0.
func setns(file *os.File, kind int) error {
	if err := unix.Setns(int(file.Fd()), kind); err != nil {
		return fmt.Errorf("join namespace %q: %w", file.Name(), os.NewSyscallError("setns", err))
	}
	return nil
}

// enterNamespaces moves the calling thread into network, if that is not nil, and into new namespaces.
func enterNamespaces(network *os.File, cloneFlags int, hostname string) error {
	if network != nil {
		if err := setns(network, unix.CLONE_NEWNET); err != nil {
			return err
		}
	}
	if err := unix.Unshare(cloneFlags); err != nil {
		return fmt.Errorf("make namespaces %#x: %w", cloneFlags, os.NewSyscallError("unshare", err))
	}
	if hostname != "" { // Request.check wants a UTS namespace for it
		if err := unix.Sethostname([]byte(hostname)); err != nil {
			return fmt.Errorf("set host name %q: %w", hostname, os.NewSyscallError("sethostname", err))
		}
	}
	return nil
}

// enterHostNamespaces undoes enterNamespaces on the main thread, on which it is not called.
func enterHostNamespaces(main *osthread.Thread) error {
	var errs []error
	for _, name := range heldNamespaces {
		file, err := os.Open(hostNamespace(name))
		if err == nil {
			err = main.Do(func() error { return setns(file, 0) })
			_ = file.Close() // nothing was written
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// checkMappings refuses mappings without a root, which owns the pod's files. The kernel checks the rest.
func checkMappings(u *idmap.Mappings) error {
	hasRoot := func(list []specs.LinuxIDMapping) bool {
		return slices.ContainsFunc(list, func(m specs.LinuxIDMapping) bool { return m.ContainerID == 0 })
	}
	if u != nil && (!hasRoot(u.UIDs) || !hasRoot(u.GIDs)) {
		return invalidf("userns_options: uids %v, gids %v: must map uid 0 and gid 0", u.UIDs, u.GIDs)
	}
	return nil
}

// root returns who the root of the pod is on the host.
func (c Config) root() idmap.Owner {
	users := cmp.Or(c.User, &idmap.Mappings{})
	return idmap.Root(users.UIDs, users.GIDs)
}

// pauseID is the user and the group of a pod's process without a user namespace: that of the pause image.
const pauseID = 65535

// lastID returns the highest id of the first mapping: one that is mapped, and most likely nobody's.
func lastID(list []specs.LinuxIDMapping) uint32 { return list[0].ContainerID + list[0].Size - 1 }

// ipcSysctls belong to an IPC namespace, as does what begins with fs.mqueue (ipc_namespaces(7)).
var ipcSysctls = []string{
	"kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem",
	"kernel.shm_rmid_forced", "kernel.shmall", "kernel.shmmax", "kernel.shmmni",
}

// sysctlPath returns the file of a sysctl. A slash in its name is a dot in the file's (sysctl.d(5)).
func sysctlPath(name string) string {
	return "/proc/sys/" + strings.NewReplacer(".", "/", "/", ".").Replace(name)
}

// checkSysctls refuses sysctls that belong to no namespace, or to one of the host. The rules are those of libcontainer
// (configs/validate) and Kubernetes, but user.* is refused, which libcontainer allows in a user namespace.
func checkSysctls(c Config) error {
	for name, value := range c.Sysctls {
		owner := ModeNode
		switch {
		case slices.Contains(ipcSysctls, name) || strings.HasPrefix(name, "fs.mqueue."):
			owner = c.IPC
		case strings.HasPrefix(name, "net.") || name == "kernel.domainname": // the UTS namespace goes with the network
			owner = c.Network
		}
		if path := sysctlPath(name); owner == ModeNode || filepath.Clean(path) != path {
			return invalidf("sysctl %q = %q: must be one of a network, IPC or UTS namespace of the pod", name, value)
		}
	}
	return nil
}

// writeSysctls writes sysctls of the calling thread's namespaces. Only the owner of the namespace may write some, such
// as fs.mqueue since Linux 6.9. They are written as root, the host's id of the root of a user namespace, after which
// the thread cannot be used for anything else.
func writeSysctls(sysctls map[string]string, root int) error {
	denied := map[string]string{}
	for key, value := range sysctls {
		err := writeSysctl(key, value)
		if errors.Is(err, os.ErrPermission) && root != 0 {
			denied[key] = value
		} else if err != nil {
			return err
		}
	}
	if len(denied) == 0 {
		return nil
	}
	if err := setThreadUID(root); err != nil {
		return err
	}
	return writeSysctls(denied, 0)
}

func writeSysctl(key, value string) error {
	f, err := os.OpenFile(sysctlPath(key), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(value)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return invalidf("sysctl %q = %q: %w", key, value, err)
	}
	return nil
}

// setThreadUID changes the effective user of only the calling thread. It cannot change back.
func setThreadUID(uid int) error {
	dumpable, _ := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0) // cannot fail
	const keep = ^uintptr(0)
	// This is the bare system call: package syscall would change all threads.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); errno != 0 {
		return fmt.Errorf("set user %d: %w", uid, os.NewSyscallError("setresuid", errno))
	}
	// The kernel has reset this for the whole process.
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_DUMPABLE, uintptr(dumpable), 0, 0, 0))
}
