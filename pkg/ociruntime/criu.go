// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

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
	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

// criu is the program that libcontainer runs to checkpoint and to restore. It
// takes the one in PATH and cannot be told another.
const criu = "criu"

// findCriu tells whether there is a criu, and whether it is the one that is
// wanted: another one is not used in silence.
func findCriu(want string) error {
	path, err := exec.LookPath(criu)
	if err != nil {
		return fmt.Errorf("program %q: not found in PATH of containerd; it is in the package %q: %w", criu, criu, errdefs.ErrNotImplemented)
	}
	if want != "" && want != path {
		return fmt.Errorf("CriuPath %q: PATH of containerd leads to %q, and only that can be used: %w", want, path, errdefs.ErrInvalidArgument)
	}
	return nil
}

// criuOpts are the options that are always the same. Devices of network
// namespaces are made by others (CNI), before a restore as well.
func criuOpts(image, work string) *libcontainer.CriuOpts {
	return &libcontainer.CriuOpts{ImagesDirectory: image, WorkDirectory: work, EmptyNs: unix.CLONE_NEWNET, StatusFd: -1}
}

// dumpOpts translates r, as far as libcontainer does not check it.
func dumpOpts(r process.CheckpointRequest) (*libcontainer.CriuOpts, error) {
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
	o := criuOpts(r.Path, "")
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

// checkImage refuses a directory that is no checkpoint, before criu does so in
// words that nobody understands.
func checkImage(dir string) error {
	// What CRIU and libcontainer read first.
	for _, name := range []string{"inventory.img", "descriptors.json"} {
		if _, err := os.Stat(filepath.Join(dir, name)); errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("checkpoint %q: not the image of a container, there is no %s: %w", dir, name, errdefs.ErrInvalidArgument)
		} else if err != nil {
			return fmt.Errorf("checkpoint %q: %w", dir, err)
		}
	}
	return nil
}

// withLog runs f with a directory for criu's log: dir, or when that is empty
// one in the bundle, which is kept after a failure only. containerd removes it
// with the bundle. The error of f is told with the cause from the log.
func (c *container) withLog(dir, log string, f func(dir string) error) error {
	temporary := dir == ""
	var err error
	if temporary {
		dir, err = os.MkdirTemp(c.config.Bundle, "criu-")
	} else {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return fmt.Errorf("directory for the log of criu: %w", err)
	}
	if err := f(dir); err != nil {
		path := filepath.Join(dir, log)
		if cause := criuCause(path); cause != "" {
			return classify(fmt.Errorf("%w: %s (see %s)", err, cause, path))
		}
		if temporary {
			err = errors.Join(err, os.RemoveAll(dir)) // criu did not come as far as to log
		}
		return classify(err)
	}
	if temporary {
		return os.RemoveAll(dir)
	}
	return nil
}

// criuCause is the first error in a log of criu, which is what the others follow
// from; empty when there is none.
func criuCause(path string) string {
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

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
