// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package criu deals with the program that saves and restores containers: it finds it, sets its options, reads its log,
// and refuses what the program would take for something else.
package criu

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	securejoin "github.com/cyphar/filepath-securejoin"
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
		return fmt.Errorf("find criu, of the package criu, in containerd's PATH: %w: %w", err, errdefs.ErrNotImplemented)
	}
	if want != "" && want != path {
		return fmt.Errorf("CriuPath %q: must be %q, that of containerd's PATH: %w", want, path, errdefs.ErrInvalidArgument)
	}
	return nil
}

// RestoreOptions returns the options of a restore: everything that the checkpoint may contain may be restored. CNI
// makes the devices of network namespaces.
func RestoreOptions(image, work string) *libcontainer.CriuOpts {
	return &libcontainer.CriuOpts{
		ImagesDirectory: image, WorkDirectory: work, EmptyNs: unix.CLONE_NEWNET, StatusFd: -1,
		TcpEstablished: true, ExternalUnixConnections: true, FileLocks: true,
	}
}

// DumpOptions translates r, and checks what libcontainer does not.
func DumpOptions(r process.CheckpointRequest) (*libcontainer.CriuOpts, error) {
	invalid := func(field, value, want string) error {
		return fmt.Errorf("%s %q: %s: %w", field, value, want, errdefs.ErrInvalidArgument)
	}
	if !filepath.IsAbs(r.Path) {
		return nil, invalid("path", r.Path, "must be an absolute path")
	}
	if filepath.IsAbs(r.ParentPath) {
		return nil, invalid("parent_path", r.ParentPath, "must be relative to the path of the image")
	}
	if !slices.Contains(cgroupModes, r.CgroupsMode) {
		return nil, invalid("cgroups_mode", r.CgroupsMode, "want one of "+strings.Join(cgroupModes[1:], ", "))
	}
	for _, kind := range r.EmptyNamespaces {
		if kind != "network" {
			return nil, invalid("empty_namespaces", kind, "want network, which is always restored empty")
		}
	}
	return &libcontainer.CriuOpts{
		ImagesDirectory: r.Path, ParentImage: r.ParentPath, EmptyNs: unix.CLONE_NEWNET, StatusFd: -1,
		ManageCgroupsMode: r.CgroupsMode, LeaveRunning: !r.Exit, TcpEstablished: r.OpenTCP,
		ExternalUnixConnections: r.ExternalUnixSockets, ShellJob: r.Terminal, FileLocks: r.FileLocks,
	}, nil
}

// cgroupModes are those of criu(8), --manage-cgroups; empty is its default.
var cgroupModes = []string{"", "soft", "full", "strict", "ignore"}

// CheckImage refuses a directory that is not a checkpoint: criu's own error is hard to understand.
func CheckImage(dir string) error {
	const first = "inventory.img" // that CRIU reads
	_, err := os.Stat(filepath.Join(dir, first))
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("checkpoint %q: must have a file %s: %w", dir, first, errdefs.ErrInvalidArgument)
	}
	return err
}

// WithLog calls f with a directory for criu's log, and adds the cause from the log to an error of f. The directory is
// dir, or one in bundle if that is empty. name is that of the log.
func WithLog(bundle, dir, name string, f func(dir string) error) error {
	if dir == "" {
		dir = filepath.Join(bundle, "criu-log")
		defer func() { _ = os.Remove(dir) }() // unless it has a log
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("directory for the log of criu: %w", err)
	}
	path := filepath.Join(dir, name)
	_ = os.Remove(path) // the log of an earlier call
	err := f(dir)
	if err == nil {
		return nil
	}
	if first := cause(path); first != "" {
		return fmt.Errorf("%w: %s (see %s)", err, first, path)
	}
	return err
}

// DetachRoot detaches the root file system that libcontainer has mounted in a container's state directory for a restore
// that failed: who removes that directory would remove the files in its volumes.
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
	for s := bufio.NewScanner(f); s.Scan(); {
		if _, cause, ok := strings.Cut(s.Text(), "Error "); ok {
			return cause
		}
	}
	return ""
}

// CheckNamespaces refuses paths that no longer lead to the namespaces of pid: libcontainer tells CRIU not to save
// these.
func CheckNamespaces(list configs.Namespaces, pid int) error {
	for _, ns := range list {
		if ns.Path == "" || ns.Type != configs.NEWNET && ns.Type != configs.NEWPID {
			continue
		}
		own, err := os.Stat(fmt.Sprintf("/proc/%d/ns/%s", pid, configs.NsName(ns.Type)))
		if err != nil {
			return err
		}
		if named, err := os.Stat(ns.Path); err != nil || !os.SameFile(own, named) {
			return fmt.Errorf("config.json: linux.namespaces: path %q of type %s no longer names the namespace "+
				"that the container is in: %w", ns.Path, ns.Type, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// CheckMounts refuses links in a root file system that deceive CRIU. libcontainer names it the place of a mount once
// links are followed, which CRIU keeps as mnt[PLACE]:SOURCE: a place with "]:" ends early (CVE-2026-119101), and of two
// mounts at one place CRIU takes the source of the first. At a restore nobody can replace links meanwhile.
func CheckMounts(config *configs.Config) error {
	sources := map[string]string{} // by place
	for _, m := range config.Mounts {
		if m.Device != "bind" && m.Device != "cgroup" {
			continue
		}
		place, err := placeOf(config, m.Destination)
		if err != nil {
			return err
		}
		if other, ok := sources[place]; ok && other != m.Source {
			return fmt.Errorf("mount at %q: is at %q once links are followed, as that of %q, from which CRIU cannot tell it: %w",
				m.Destination, place, other, errdefs.ErrFailedPrecondition)
		}
		sources[place] = m.Source
	}
	for _, d := range config.Devices {
		if _, err := placeOf(config, d.Path); err != nil {
			return err
		}
	}
	return nil
}

// placeOf returns where a path of the container leads.
func placeOf(config *configs.Config, name string) (string, error) {
	place, err := securejoin.SecureJoin(config.Rootfs, strings.TrimPrefix(name, config.Rootfs))
	place = strings.TrimPrefix(place, config.Rootfs)
	if err == nil && strings.Contains(place, "]:") {
		err = fmt.Errorf("is at %q once links are followed, which CRIU cannot tell from its source: %w",
			place, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return "", fmt.Errorf("mount at %q: %w", name, err)
	}
	return place, nil
}
