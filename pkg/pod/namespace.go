// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/osthread"
)

// nsfs is the type of the file system of namespaces (include/uapi/linux/magic.h).
const nsfs = unix.NSFS_MAGIC

// openNetNS opens the network namespace at path. One of the host's is refused: a pod that is to use that says so.
func openNetNS(path string) (*os.File, error) {
	refuse := func(err, class error) error {
		return fmt.Errorf("network namespace %q: %w: %w", path, err, class)
	}
	// Not opened for good before it is known: a fifo would block, a device may do anything.
	found, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, refuse(err, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, refuse(err, errdefs.ErrInvalidArgument)
	}
	defer unix.Close(found) //nolint:errcheck // a place, not a file
	var fs unix.Statfs_t
	if err := unix.Fstatfs(found, &fs); err != nil {
		return nil, refuse(err, errdefs.ErrInvalidArgument)
	}
	if fs.Type != nsfs {
		return nil, refuse(errors.New("it is no namespace"), errdefs.ErrInvalidArgument)
	}
	file, err := os.Open("/proc/thread-self/fd/" + strconv.Itoa(found))
	if err != nil {
		return nil, refuse(err, errdefs.ErrInvalidArgument)
	}
	kind, err := unix.IoctlRetInt(int(file.Fd()), unix.NS_GET_NSTYPE)
	switch {
	case err != nil:
		err = refuse(os.NewSyscallError("ioctl NS_GET_NSTYPE", err), errdefs.ErrInvalidArgument)
	case kind != unix.CLONE_NEWNET:
		err = refuse(fmt.Errorf("it is a namespace of kind %#x, not %#x", kind, unix.CLONE_NEWNET), errdefs.ErrInvalidArgument)
	default:
		var same bool
		if same, err = isOurs(file, "net"); err == nil && !same {
			return file, nil
		}
		if same {
			err = refuse(errors.New("it is the host's"), errdefs.ErrInvalidArgument)
		}
	}
	return nil, errors.Join(err, file.Close())
}

// ownNamespace is the path of the calling thread's. That of any thread but the main one is the host's.
func ownNamespace(name string) string { return "/proc/thread-self/ns/" + name }

// isOurs says whether file is the calling thread's namespace of this name.
func isOurs(file *os.File, name string) (bool, error) {
	a, err := file.Stat()
	if err != nil {
		return false, err
	}
	b, err := os.Stat(ownNamespace(name))
	if err != nil {
		return false, err
	}
	return os.SameFile(a, b), nil
}

// ownerOf opens the user namespace that owns the namespace ns; nil if it is the shim's own.
func ownerOf(ns *os.File) (*os.File, error) {
	fd, err := unix.IoctlRetInt(int(ns.Fd()), unix.NS_GET_USERNS)
	if err != nil {
		return nil, fmt.Errorf("user namespace of network namespace %q: %w", ns.Name(), os.NewSyscallError("ioctl NS_GET_USERNS", err))
	}
	unix.CloseOnExec(fd)
	owner := os.NewFile(uintptr(fd), "user namespace of "+ns.Name())
	if ours, err := isOurs(owner, "user"); err != nil || ours {
		return nil, errors.Join(err, owner.Close())
	}
	return owner, nil
}

// inNamespaces runs f on a thread that has joined these namespaces of process pid and ends with f.
func inNamespaces(pid int, names []string, f func() error) error {
	return osthread.Run(func() error {
		for _, name := range names {
			if err := join(fmt.Sprintf("/proc/%d/ns/%s", pid, name)); err != nil {
				return err
			}
		}
		return f()
	})
}

// join moves the calling thread into the namespace at path.
func join(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // only its namespace counts
	if err := unix.Setns(int(file.Fd()), 0); err != nil {
		return fmt.Errorf("join namespace %q: %w", path, os.NewSyscallError("setns", err))
	}
	return nil
}

// namespaces are the host's of those kinds that the main thread can change.
type namespaces []*os.File

// hostNamespaces opens those of the calling thread, which is not the main one.
func hostNamespaces() (h namespaces, err error) {
	for _, name := range []string{"net", "ipc", "uts"} {
		file, err := os.Open(ownNamespace(name))
		if err != nil {
			h.close()
			return nil, err
		}
		h = append(h, file)
	}
	return h, nil
}

// rejoin moves the calling thread, the main one, back.
func (h namespaces) rejoin() error {
	var errs []error
	for _, file := range h {
		if err := unix.Setns(int(file.Fd()), 0); err != nil {
			errs = append(errs, fmt.Errorf("return to namespace %q: %w", file.Name(), os.NewSyscallError("setns", err)))
		}
	}
	return errors.Join(errs...)
}

func (h namespaces) close() {
	for _, file := range h {
		_ = file.Close() // only its namespace counts
	}
}

// become makes the calling thread, the main one, the pod: it joins network, if that is not nil, and makes the other
// namespaces, which are CLONE_NEW… bits. A host name that is empty stays the host's.
func become(network *os.File, makes int, hostname string) error {
	if network != nil {
		if err := unix.Setns(int(network.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("join network namespace %q: %w", network.Name(), os.NewSyscallError("setns", err))
		}
	}
	if makes != 0 {
		if err := unix.Unshare(makes); err != nil {
			return fmt.Errorf("make namespaces %s: %w", describe(makes), os.NewSyscallError("unshare", err))
		}
	}
	if makes&unix.CLONE_NEWUTS != 0 && hostname != "" {
		if err := unix.Sethostname([]byte(hostname)); err != nil {
			return fmt.Errorf("set host name %q: %w", hostname, os.NewSyscallError("sethostname", err))
		}
	}
	return nil
}

// describe names the namespaces of CLONE_NEW… bits.
func describe(flags int) string {
	var names []string
	for _, n := range []struct {
		flag int
		name string
	}{{unix.CLONE_NEWNET, "network"}, {unix.CLONE_NEWIPC, "ipc"}, {unix.CLONE_NEWUTS, "uts"}} {
		if flags&n.flag != 0 {
			names = append(names, n.name)
		}
	}
	return strings.Join(names, ", ")
}
