// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// ipcSysctls belong to an IPC namespace, as does what begins with fs.mqueue (ipc_namespaces(7)).
var ipcSysctls = []string{
	"kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem",
	"kernel.shm_rmid_forced", "kernel.shmall", "kernel.shmmax", "kernel.shmmni",
}

// sysctlName is a key with dots between its elements. In a key whose first separator is a slash, slashes separate, and
// an element can contain dots (sysctl.d(5)).
func sysctlName(key string) string {
	if i := strings.IndexAny(key, "./"); i < 0 || key[i] == '.' {
		return key
	}
	return strings.NewReplacer(".", "/", "/", ".").Replace(key)
}

// sysctlPath is the file of a sysctlName.
func sysctlPath(name string) string {
	return "/proc/sys/" + strings.NewReplacer(".", "/", "/", ".").Replace(name)
}

// checkSysctls refuses sysctls that belong to no namespace, or to one of the host. The rules are those of libcontainer
// (configs/validate) and Kubernetes.
func checkSysctls(c Config) error {
	for _, key := range slices.Sorted(maps.Keys(c.Sysctls)) {
		refuse := func(why string) error {
			return fmt.Errorf("sysctl %q = %q: %s: %w", key, c.Sysctls[key], why, errdefs.ErrInvalidArgument)
		}
		name := sysctlName(key)
		if path := sysctlPath(name); filepath.Clean(path) != path || strings.ContainsRune(path, 0) {
			return refuse("must be names with dots between them")
		}
		switch {
		case slices.Contains(ipcSysctls, name) || strings.HasPrefix(name, "fs.mqueue."):
			if c.IPC == ModeNode {
				return refuse("must not be set in the IPC namespace of the host")
			}
		case strings.HasPrefix(name, "net."):
			if c.Network == ModeNode {
				return refuse("must not be set in the network namespace of the host")
			}
		case name == "kernel.domainname":
			if c.Network == ModeNode { // and with it the UTS namespace
				return refuse("must not be set in the UTS namespace of the host")
			}
		case name == "kernel.hostname":
			return refuse("is set by the host name of the pod")
		default:
			return refuse("must belong to a network, IPC or UTS namespace")
		}
		if strings.ContainsFunc(c.Sysctls[key], func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			return refuse("must not contain control characters")
		}
	}
	return nil
}

// writeSysctls writes sysctls of the calling thread's namespaces. Some only the owner of the namespace may write, such
// as fs.mqueue since Linux 6.9. They are written as root, the host's id of the root of a user namespace, after which
// the thread cannot be used for anything else.
func writeSysctls(sysctls map[string]string, root int) error {
	denied := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(sysctls)) {
		err := writeSysctl(key, sysctls[key])
		if errors.Is(err, os.ErrPermission) && root != 0 {
			denied[key] = sysctls[key]
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
	err := func() error {
		f, err := os.OpenFile(sysctlPath(sysctlName(key)), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteString(value)
		return errors.Join(err, f.Close())
	}()
	if err != nil {
		return fmt.Errorf("sysctl %q = %q: %w: %w", key, value, err, errdefs.ErrInvalidArgument)
	}
	return nil
}

// setThreadUID changes the effective user of the calling thread alone. It cannot change back.
func setThreadUID(uid int) error {
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		return os.NewSyscallError("prctl", err)
	}
	const keep = ^uintptr(0)
	// The bare system call: package syscall would change all threads.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); errno != 0 {
		return fmt.Errorf("set user %d: %w", uid, os.NewSyscallError("setresuid", errno))
	}
	// The kernel has reset this for the whole process.
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_DUMPABLE, uintptr(dumpable), 0, 0, 0))
}
