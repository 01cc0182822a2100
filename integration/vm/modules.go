// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// early lists the modules without which the guest cannot reach its root.
func early() []string {
	return []string{"virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"}
}

// loadOrder reads a modules.dep and returns the files of the named modules and of those that they need, in the order in
// which they can be loaded. A name that is not there is built into the kernel.
func loadOrder(dep string, names []string) []string {
	needs := map[string][]string{}
	files := map[string]string{}
	for line := range strings.Lines(dep) {
		file, rest, _ := strings.Cut(line, ":")
		needs[file] = strings.Fields(rest)
		files[moduleName(file)] = file
	}
	var order []string
	var put func(file string)
	put = func(file string) {
		if slices.Contains(order, file) {
			return
		}
		for _, need := range slices.Backward(needs[file]) {
			put(need)
		}
		order = append(order, file)
	}
	for _, name := range names {
		if file, ok := files[name]; ok {
			put(file)
		}
	}
	return order
}

// moduleName is the name that a module has once it is loaded.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".")
	return strings.ReplaceAll(name, "-", "_")
}

// readModule returns a module as the kernel takes it.
func readModule(ctx context.Context, name string) ([]byte, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	switch filepath.Ext(name) {
	case ".ko":
		return data, nil
	case ".xz":
		return unxz(ctx, data)
	}
	return nil, fmt.Errorf("module %s: its compression is not known: %w", name, errdefs.ErrNotImplemented)
}

// unxz returns all that could be unpacked, also beside an error.
func unxz(ctx context.Context, data []byte) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "xz", "-dc")
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("xz -dc: %w", err)
	}
	return out, err
}
