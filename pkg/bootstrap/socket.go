// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/unixfile"
)

// defaultSocketDir is where containerd's shims keep their sockets.
const defaultSocketDir = "/run/containerd/s"

// MaxSocketPath is what sun_path holds besides its NUL (unix(7)). containerd lets socket_dir be 42 bytes long, which
// with a slash and the hash is exactly this.
const MaxSocketPath = 107

// socketPath names the socket of a group, as containerd's own shims do (pkg/shim/util_unix.go): containerd finds a
// leaked one, and two containerds with one state directory stay apart by their address.
func socketPath(dir, address, namespace, group string) (string, error) {
	sum := sha256.Sum256([]byte(filepath.Join(address, namespace, group)))
	p := filepath.Join(dir, fmt.Sprintf("%x", sum))
	if len(p) > MaxSocketPath {
		return "", fmt.Errorf("socket directory %q: socket path would be %d bytes, limit %d: %w",
			dir, len(p), MaxSocketPath, errdefs.ErrInvalidArgument)
	}
	return p, nil
}

// socketAddress is the form of path that containerd dials.
func socketAddress(path string) string { return "unix://" + path }

// socketDir makes and returns the directory for sockets. containerd 2.4 says one that its user owns.
func socketDir(wanted string) (string, error) {
	dir := cmp.Or(wanted, defaultSocketDir)
	if !filepath.IsAbs(dir) {
		return "", fmt.Errorf("socket directory %q: not an absolute path: %w", dir, errdefs.ErrInvalidArgument)
	}
	return dir, os.MkdirAll(dir, 0o700)
}

// addressFile is what start leaves in the bundle, for delete and for containerd: 1.x reads it after its restart
// (runtime/v2/shim.go), 2.x where there is no bootstrap.json.
const addressFile = "address"

// recordSocket writes the bundle's address file. It comes before the socket.
func recordSocket(bundle, path string) error {
	if err := unixfile.Write(filepath.Join(bundle, addressFile), []byte(socketAddress(path))); err != nil {
		return fmt.Errorf("record socket of bundle %s: %w", bundle, err)
	}
	return nil
}

// shimGroup names the shim that container id in bundle belongs to: a pod's id, or id itself. A bundle without
// config.json is a sandbox's (containerd's shim sandbox controller writes none) and is its own group.
func shimGroup(bundle, id string) (string, error) {
	file := filepath.Join(bundle, "config.json")
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return id, nil
	}
	if err != nil {
		return "", fmt.Errorf("find group of %q: %w", id, err)
	}
	var spec struct {
		Annotations map[string]string `json:"annotations"`
	}
	if err := json.Unmarshal(data, &spec); err != nil {
		return "", fmt.Errorf("decode %s: %w: %w", file, err, errdefs.ErrInvalidArgument)
	}
	// The order is that of containerd's runc shim (cmd/containerd-shim-runc-v2/manager).
	for _, key := range []string{"io.containerd.runc.v2.group", "io.kubernetes.cri.sandbox-id"} {
		g := spec.Annotations[key]
		if g == "" {
			continue
		}
		// The group becomes the tail of a path that is hashed. Were ".." allowed, a container could name the socket of
		// a shim in another namespace.
		if path.Clean("/"+g) != "/"+g {
			return "", fmt.Errorf("annotation %s = %q: must not hold empty, \".\" or \"..\" elements: %w",
				key, g, errdefs.ErrInvalidArgument)
		}
		return g, nil
	}
	return id, nil
}
