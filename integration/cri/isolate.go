// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// isolationEnv names the environment variable that tells the second run of a program where its Isolation is.
const isolationEnv = "SHIM_TEST_ISOLATION"

// Isolation is what a program has to itself: a network with nothing in it but lo, and the directories whose places CRI,
// CNI and libcontainer do not let one choose. Nothing of it is seen from outside.
type Isolation struct {
	dir string // an empty directory to all others
}

// private lists the directories that the Isolation covers with its own. It makes them on the machine if they are
// absent.
var private = []struct{ name, path string }{
	{"run", "/run/containerd"}, // states of libcontainer
	{"netns", "/run/netns"},    // named network namespaces
	{"cni", "/var/lib/cni"},    // CNI's cache of results
}

// Isolate runs the program once more, in namespaces of its own, and mounts its directories there. It returns in the
// second run only. It must come before anything that another thread or a file keeps.
func Isolate() (*Isolation, error) {
	if dir, ok := os.LookupEnv(isolationEnv); ok {
		if err := os.Unsetenv(isolationEnv); err != nil {
			return nil, err
		}
		i := &Isolation{dir: dir}
		if err := i.mount(); err != nil {
			return nil, errors.Join(err, i.Close())
		}
		return i, nil
	}
	dir, err := os.MkdirTemp("", harness.NamespacePrefix)
	if err != nil {
		return nil, err
	}
	err = again(dir)
	return nil, errors.Join(err, os.Remove(dir))
}

// again replaces the process by the same program in new namespaces. It returns only if that fails.
func again(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// Exec keeps the namespaces of the thread that calls it, so this thread has to be the one that made them.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("unshare mount and network namespaces (run as root): %w", err)
	}
	path := "PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin" // CNI's plugins call iptables
	return fmt.Errorf("exec %s: %w", self, unix.Exec(self, os.Args, append(os.Environ(), path, isolationEnv+"="+dir)))
}

func (i *Isolation) mount() error {
	steps := []func() error{
		func() error { return harness.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC) },
		// As on most machines. It ends here: the mounts are slaves of the machine's.
		func() error { return harness.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC) },
		func() error { return harness.Mount("tmpfs", i.dir, "tmpfs", 0) },
		harness.LoopbackUp,
	}
	for _, p := range private {
		own := filepath.Join(i.dir, p.name)
		steps = append(steps,
			func() error { return os.Mkdir(own, 0o755) },
			func() error { return os.MkdirAll(p.path, 0o755) },
			func() error { return harness.Mount(own, p.path, "", unix.MS_BIND) })
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// States is where libcontainer keeps the states of CRI's containers.
func (i *Isolation) States() string { return filepath.Join(i.dir, "run", "runc", "k8s.io") }

// Netns is where network namespaces have names.
func (i *Isolation) Netns() string { return filepath.Join(i.dir, "netns") }

// Close removes the directory. The namespaces end with the last process in them.
func (i *Isolation) Close() error {
	for _, p := range private {
		_ = unix.Unmount(p.path, unix.MNT_DETACH) // it may not have come that far
	}
	_ = unix.Unmount(i.dir, unix.MNT_DETACH) // likewise
	return os.Remove(i.dir)
}
