// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/pkg/identifiers"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Address is where a shim listens.
type Address struct {
	Path    string // of the socket
	Version int    // of containerd's Task API
}

// Directories of bundles below containerd's state directory: of tasks, and of sandboxes that its shim controller made.
const (
	tasks     = "io.containerd.runtime.v2.task"
	sandboxes = "io.containerd.sandbox.controller.v1.shim"
)

// ErrNoBundle means that there is no task or sandbox with an id.
var ErrNoBundle = errors.New("no bundle")

// Find returns the address of the shim of a container or a sandbox. state is containerd's state directory. If it does
// not use ttrpc over a unix socket, as this project's do, the error is errdefs.ErrNotImplemented.
func Find(state, namespace, id string) (Address, error) {
	bundle, err := Bundle(state, namespace, id)
	if err != nil {
		return Address{}, err
	}
	return readAddress(bundle)
}

// Bundle returns the directory of a container or a sandbox. No id leads out of the state directory.
func Bundle(state, namespace, id string) (string, error) {
	for _, name := range []string{namespace, id} {
		if err := identifiers.Validate(name); err != nil {
			return "", err
		}
	}
	for _, kind := range []string{tasks, sandboxes} {
		bundle := filepath.Join(state, kind, namespace, id)
		if info, err := os.Lstat(bundle); err == nil && info.IsDir() {
			return bundle, nil
		}
	}
	return "", fmt.Errorf("%s in namespace %s: %w below %s", id, namespace, ErrNoBundle, state)
}

// params are what containerd wrote when it started a shim, or when a container joined one.
type params struct {
	Version  int    `json:"version"`
	Address  string `json:"address"`
	Protocol string `json:"protocol"`
}

// readParams reads bootstrap.json of containerd 2, or only the address of older ones.
func readParams(bundle string) (p params, err error) {
	text, err := readFile(filepath.Join(bundle, "bootstrap.json"))
	if err == nil {
		if err := json.Unmarshal(text, &p); err != nil {
			return params{}, fmt.Errorf("%s/bootstrap.json: %w", bundle, err)
		}
		return p, nil
	}
	const before2 = 2
	if text, err = readFile(filepath.Join(bundle, "address")); err != nil {
		return params{}, err
	}
	return params{Version: before2, Address: string(text), Protocol: "ttrpc"}, nil
}

func readAddress(bundle string) (Address, error) {
	p, err := readParams(bundle)
	if err != nil {
		return Address{}, err
	}
	if p.Protocol != "ttrpc" {
		return Address{}, fmt.Errorf("%s/bootstrap.json: protocol %q: only ttrpc is spoken: %w",
			bundle, p.Protocol, errdefs.ErrNotImplemented)
	}
	if scheme, _, ok := strings.Cut(strings.TrimPrefix(p.Address, "ttrpc+"), "://"); ok && scheme != "unix" {
		return Address{}, fmt.Errorf("%s/bootstrap.json: address %q: only unix sockets are spoken to: %w",
			bundle, p.Address, errdefs.ErrNotImplemented)
	}
	return checkAddress(p.Address, p.Version)
}

// Socket returns the path of the socket of the shim of a bundle, whether there is one or not.
func Socket(bundle string) (path string, err error) {
	p, err := readParams(bundle)
	if err != nil {
		return "", err
	}
	return socketPath(p.Address)
}

func socketPath(address string) (string, error) {
	path := strings.TrimPrefix(strings.TrimPrefix(address, "ttrpc+"), "unix://")
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return "", fmt.Errorf("shim address %q: must be a unix socket with an absolute path", address)
	}
	return path, nil
}

// checkAddress refuses what is not a socket of this user: nothing is sent to others.
func checkAddress(address string, version int) (Address, error) {
	path, err := socketPath(address)
	if err != nil {
		return Address{}, err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return Address{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if info.Mode().Type() != os.ModeSocket || !ok || int(stat.Uid) != os.Geteuid() {
		return Address{}, fmt.Errorf("shim address %s: must be a socket of user %d", path, os.Geteuid())
	}
	return Address{Path: path, Version: version}, nil
}

// readFile reads a small file, and no symbolic link.
func readFile(path string) ([]byte, error) {
	const maxSize = 64 << 10
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	return io.ReadAll(io.LimitReader(f, maxSize))
}
