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
)

// ipcSysctls belong to an IPC namespace, as does what begins with fs.mqueue (ipc_namespaces(7)).
var ipcSysctls = []string{
	"kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem",
	"kernel.shm_rmid_forced", "kernel.shmall", "kernel.shmmax", "kernel.shmmni",
}

// sysctlName is a key with dots between its elements. A key whose first separator is a slash is one with slashes, of
// which an element can contain dots (sysctl.d(5)).
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

// checkSysctls refuses what belongs to no namespace, or to one of the host. The rules are those of libcontainer
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

// writeSysctls writes those of the calling thread's namespaces.
func writeSysctls(sysctls map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(sysctls)) {
		if err := writeSysctl(sysctlPath(sysctlName(key)), sysctls[key]); err != nil {
			return fmt.Errorf("sysctl %q = %q: %w: %w", key, sysctls[key], err, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

func writeSysctl(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
