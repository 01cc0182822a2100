// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package criu deals with the program that saves and restores containers: it finds it, sets its options, reads its log,
// and refuses what the program would take for something else.
package criu

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

// Program is what libcontainer runs for checkpoints. It takes the first in PATH and accepts no other.
const Program = "criu"

// Find returns an error if there is no criu, or if want is set and another one would run.
func Find(want string) error {
	path, err := exec.LookPath(Program)
	if err != nil {
		return fmt.Errorf("program %q: not found in PATH of containerd; it is in the package %q: %w",
			Program, Program, errdefs.ErrNotImplemented)
	}
	if want != "" && want != path {
		return fmt.Errorf("CriuPath %q: must be %q, the criu in containerd's PATH, which libcontainer runs: %w",
			want, path, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Options returns the options that are always the same. Others (CNI) make the devices of network namespaces, also
// before a restore.
func Options(image, work string) *libcontainer.CriuOpts {
	return &libcontainer.CriuOpts{ImagesDirectory: image, WorkDirectory: work, EmptyNs: unix.CLONE_NEWNET, StatusFd: -1}
}

// DumpOptions translates r, and checks what libcontainer does not.
func DumpOptions(r process.CheckpointRequest) (*libcontainer.CriuOpts, error) {
	invalid := func(field, value, want string) error {
		return fmt.Errorf("%s %q: %s: %w", field, value, want, errdefs.ErrInvalidArgument)
	}
	if !filepath.IsAbs(r.Path) {
		return nil, invalid("path", r.Path, "must be an absolute path")
	}
	if r.ParentPath != "" {
		if filepath.IsAbs(r.ParentPath) {
			return nil, invalid("parent_path", r.ParentPath, "must be relative to the path of the image")
		}
		if parent := filepath.Join(r.Path, r.ParentPath); !isDir(parent) {
			return nil, invalid("parent_path", r.ParentPath, "there is no directory "+parent)
		}
	}
	if !slices.Contains(cgroupModes, r.CgroupsMode) {
		return nil, invalid("cgroups_mode", r.CgroupsMode, "want one of "+strings.Join(cgroupModes[1:], ", "))
	}
	for _, kind := range r.EmptyNamespaces {
		if kind != "network" {
			return nil, invalid("empty_namespaces", kind, "want network, which is always restored empty")
		}
	}
	o := Options(r.Path, "")
	o.ParentImage = r.ParentPath
	o.ManageCgroupsMode = r.CgroupsMode
	o.LeaveRunning = !r.Exit
	o.TcpEstablished = r.OpenTCP
	o.ExternalUnixConnections = r.ExternalUnixSockets
	o.ShellJob = r.Terminal
	o.FileLocks = r.FileLocks
	return o, nil
}

// cgroupModes are those of criu(8), --manage-cgroups; empty is its default.
var cgroupModes = []string{"", "soft", "full", "strict", "ignore"}

// CheckImage refuses a directory that is not a checkpoint: criu's own error is hard to understand.
func CheckImage(dir string) error {
	// CRIU and libcontainer read these first.
	for _, name := range []string{"inventory.img", "descriptors.json"} {
		if _, err := os.Stat(filepath.Join(dir, name)); errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("checkpoint %q: not the image of a container, there is no %s: %w",
				dir, name, errdefs.ErrInvalidArgument)
		} else if err != nil {
			return fmt.Errorf("checkpoint %q: %w", dir, err)
		}
	}
	return nil
}

// WithLog calls f with a directory for criu's log, and adds the cause from the log to an error of f. The directory is
// dir, or if that is empty, one in bundle that is kept only if there is a cause or it cannot be removed, and until the
// next call. name is that of the log.
func WithLog(bundle, dir, name string, f func(dir string) error) error {
	temporary := dir == ""
	var err error
	if temporary {
		dir = filepath.Join(bundle, "criu-log")
		err = errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700))
	} else {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return fmt.Errorf("directory for the log of criu: %w", err)
	}
	if err = f(dir); err != nil {
		path := filepath.Join(dir, name)
		if first := cause(path); first != "" {
			return fmt.Errorf("%w: %s (see %s)", err, first, path)
		}
	}
	if temporary {
		if e := os.RemoveAll(dir); e != nil { // as the next call does
			log.L.WithError(e).WithField("directory", dir).Warn("remove the log of criu")
		}
	}
	return err
}

// DetachRoot detaches what libcontainer has mounted in a container's state directory if a restore did not come to its
// end: the container's root file system, with the volumes in it (libcontainer, Container.Restore). Who removes that
// directory would remove the files in these.
func DetachRoot(stateDir string) error {
	root := filepath.Join(stateDir, "criu-root")
	for {
		err := unix.Unmount(root, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		switch {
		case err == nil: // there may be another one below
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL): // or nothing is mounted there
			return nil
		default:
			return fmt.Errorf("unmount %q, which a restore has left: %w", root, err)
		}
	}
}

// cause returns the first error in a log of criu, from which the others follow; "" for none.
func cause(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // it was only read
	return firstError(f)
}

func firstError(text io.Reader) string {
	for s := bufio.NewScanner(text); s.Scan(); {
		if _, cause, ok := strings.Cut(s.Text(), "Error "); ok {
			return cause
		}
	}
	return ""
}

// CheckNamespaces refuses paths that no longer lead to the namespaces of pid, such as those of a process that has
// exited or of a closed descriptor: libcontainer reads them again and tells CRIU not to save these namespaces.
func CheckNamespaces(list configs.Namespaces, pid int) error {
	for _, ns := range list {
		if ns.Path == "" || ns.Type != configs.NEWNET && ns.Type != configs.NEWPID {
			continue
		}
		own, err := os.Stat(fmt.Sprintf("/proc/%d/ns/%s", pid, configs.NsName(ns.Type)))
		if err != nil {
			return err
		}
		named, err := os.Stat(ns.Path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err != nil || !os.SameFile(own, named) {
			return fmt.Errorf("config.json: linux.namespaces: path %q of type %s no longer names the namespace "+
				"that the container is in: %w", ns.Path, ns.Type, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// MakeImageDir makes the directory of a checkpoint's image, unless there is one. made says which.
func MakeImageDir(dir string) (made bool, err error) {
	err = os.Mkdir(dir, 0o700)
	if !errors.Is(err, os.ErrExist) {
		return err == nil, err
	}
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("path %q: must be a directory, or absent: %w", dir, errdefs.ErrInvalidArgument)
	}
	return false, err
}

// isDir reports whether path leads to a directory.
func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
