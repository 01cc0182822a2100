// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/osthread"
)

// openNetNS opens the network namespace at path. The host's is refused: a pod that is to use that has ModeNode.
func openNetNS(path string) (*os.File, error) {
	file, err := openNamespace(path)
	if err == nil {
		if err = checkNetNS(file); err == nil {
			return file, nil
		}
		err = errors.Join(err, file.Close())
	}
	return nil, fmt.Errorf("network namespace %q: %w", path, err)
}

func openNamespace(path string) (*os.File, error) {
	// With O_PATH until the type is known: the open of a fifo would block, that of a device can do anything.
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, invalid(err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return nil, invalid(err)
	}
	if fs.Type != unix.NSFS_MAGIC {
		return nil, invalid(errors.New("it is no namespace"))
	}
	file, err := os.Open("/proc/thread-self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return nil, invalid(err)
	}
	return file, nil
}

func checkNetNS(file *os.File) error {
	kind, err := unix.IoctlRetInt(int(file.Fd()), unix.NS_GET_NSTYPE)
	if err != nil {
		return invalid(os.NewSyscallError("ioctl NS_GET_NSTYPE", err))
	}
	if kind != unix.CLONE_NEWNET {
		return invalid(fmt.Errorf("it is a namespace of kind %#x, not %#x", kind, unix.CLONE_NEWNET))
	}
	host, err := isHosts(file, "net")
	if host {
		err = invalid(errors.New("it is the host's"))
	}
	return err
}

func invalid(err error) error { return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument) }

// hostNamespace is the path of a namespace of the calling thread. It is the host's on any thread but the main one.
func hostNamespace(name string) string { return "/proc/thread-self/ns/" + name }

// isHosts reports whether file is the host's namespace of this name.
func isHosts(file *os.File, name string) (bool, error) {
	info, err := file.Stat()
	if err != nil {
		return false, err
	}
	return isAt(info, hostNamespace(name))
}

// isAt reports whether file is what is at path.
func isAt(file os.FileInfo, path string) (bool, error) {
	at, err := os.Stat(path)
	return err == nil && os.SameFile(file, at), err
}

// ownerOf opens the user namespace that owns the network namespace. It is nil for the host's, and for no network.
func ownerOf(network *os.File) (*os.File, error) {
	if network == nil {
		return nil, nil
	}
	fd, err := unix.IoctlRetInt(int(network.Fd()), unix.NS_GET_USERNS)
	if err != nil {
		return nil, fmt.Errorf("user namespace of network namespace %q: %w",
			network.Name(), os.NewSyscallError("ioctl NS_GET_USERNS", err))
	}
	unix.CloseOnExec(fd)
	owner := os.NewFile(uintptr(fd), "user namespace of "+network.Name())
	if host, err := isHosts(owner, "user"); err != nil || host {
		return nil, errors.Join(err, owner.Close())
	}
	return owner, nil
}

// inNamespaces runs f on a thread that has joined these namespaces of process pid and ends with f.
func inNamespaces(pid int, names []string, f func() error) error {
	return osthread.Run(func() error {
		for _, name := range names {
			file, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, name))
			if err != nil {
				return err
			}
			err = setns(file, 0)
			_ = file.Close() // nothing was written
			if err != nil {
				return err
			}
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

// enterNamespaces moves the calling thread into network, if that is not nil, and into new namespaces, which are
// CLONE_NEW… bits. A host name that is empty stays the host's.
func enterNamespaces(network *os.File, cloneFlags int, hostname string) error {
	if network != nil {
		if err := setns(network, unix.CLONE_NEWNET); err != nil {
			return err
		}
	}
	if err := unix.Unshare(cloneFlags); err != nil {
		return fmt.Errorf("make namespaces %#x: %w", cloneFlags, os.NewSyscallError("unshare", err))
	}
	if cloneFlags&unix.CLONE_NEWUTS != 0 && hostname != "" {
		if err := unix.Sethostname([]byte(hostname)); err != nil {
			return fmt.Errorf("set host name %q: %w", hostname, os.NewSyscallError("sethostname", err))
		}
	}
	return nil
}

// enterHostNamespaces moves the main thread into the host's namespaces of those kinds that enterNamespaces changes. It
// is not called on the main thread.
func enterHostNamespaces(main *osthread.Thread) error {
	var files []*os.File
	defer func() {
		for _, file := range files {
			_ = file.Close() // nothing was written
		}
	}()
	for _, name := range []string{"net", "ipc", "uts"} {
		file, err := os.Open(hostNamespace(name))
		if err != nil {
			return err
		}
		files = append(files, file)
	}
	err := main.Do(context.Background(), func() error {
		var errs []error
		for _, file := range files {
			errs = append(errs, setns(file, 0))
		}
		return errors.Join(errs...)
	})
	if errdefs.IsUnavailable(err) {
		return nil // the process ends, and its namespaces with it
	}
	return err
}
