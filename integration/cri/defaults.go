// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// SetDefaults gives the shims of a program that is isolated a default configuration file, until the test ends. What is
// in /etc of the machine stays as it is.
func SetDefaults(tb testing.TB, text string) {
	tb.Helper()
	mount := func(kind, target, options string) error {
		if err := unix.Mount(kind, target, kind, 0, options); err != nil {
			return fmt.Errorf("mount %s on %s: %w", kind, target, err)
		}
		tb.Cleanup(func() {
			if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
				tb.Errorf("unmount %s: %v", target, err)
			}
		})
		return nil
	}
	dir := tb.TempDir()
	upper, work := filepath.Join(dir, "upper"), filepath.Join(dir, "work")
	own := filepath.Join(upper, "containerd-shim-sandbox-v1")
	err := mount("tmpfs", dir, "mode=755")
	if err == nil {
		err = errors.Join(os.MkdirAll(own, 0o755), os.Mkdir(work, 0o755),
			os.WriteFile(filepath.Join(own, "config.toml"), []byte(text), 0o600))
	}
	if err == nil {
		err = mount("overlay", "/etc", "lowerdir=/etc,upperdir="+upper+",workdir="+work)
	}
	if err != nil {
		tb.Fatalf("default configuration of %s: %v", harness.Ours, err)
	}
}
