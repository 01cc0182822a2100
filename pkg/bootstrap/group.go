// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"github.com/containerd/errdefs"
)

// groupKeys are the annotations whose value joins containers in one shim, in order of precedence (the order of
// containerd's runc shim, cmd/containerd-shim-runc-v2/manager).
func groupKeys() []string {
	return []string{"io.containerd.runc.v2.group", "io.kubernetes.cri.sandbox-id"}
}

// group names the shim that container id in bundle belongs to: a pod's id, or id itself. A bundle without config.json
// is a sandbox's (containerd's shim sandbox controller writes none) and is its own group.
func group(bundle, id string) (string, error) {
	file := filepath.Join(bundle, "config.json")
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return id, nil
	}
	if err != nil {
		return "", fmt.Errorf("find group of %q: %w", id, err)
	}
	defer func() { _ = f.Close() }() // opened for reading only
	var spec struct {
		Annotations map[string]string `json:"annotations"`
	}
	if err := json.NewDecoder(f).Decode(&spec); err != nil {
		return "", fmt.Errorf("decode %s: %w: %w", file, err, errdefs.ErrInvalidArgument)
	}
	for _, key := range groupKeys() {
		g := spec.Annotations[key]
		if g == "" {
			continue
		}
		// The group becomes the tail of a path that is hashed. Were ".." allowed, a container could name the socket of
		// a shim in another namespace.
		if path.Clean("/"+g) != "/"+g {
			return "", fmt.Errorf("annotation %s = %q: must not hold empty, \".\" or \"..\" elements: %w", key, g, errdefs.ErrInvalidArgument)
		}
		return g, nil
	}
	return id, nil
}
