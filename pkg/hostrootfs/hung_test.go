// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package hostrootfs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
	"sandbox.internal/shim/pkg/unixfile/hungfs"
)

// A volume below one of the directories, or of the container, must not keep Create for as long as it does not answer.
func TestRootfs_DoesNotWaitForAFileSystemThatHangs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "volume")
	must(t, os.Mkdir(dir, 0o700))
	hungfs.Mount(t, dir)
	unanswered := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "host-rootfs") {
			t.Errorf("%s = %v, want %v and the setting", what, err, context.DeadlineExceeded)
		}
	}
	_, err := Parse(settings.Value{Key: "host-rootfs", Text: filepath.Join(dir, "programs")}, settings.Value{}, settings.Value{})
	unanswered("Parse", err)

	h, err := Parse(settings.Value{Key: "host-rootfs", Text: "/usr"}, settings.Value{}, settings.Value{})
	must(t, err)
	spec := &specs.Spec{Linux: &specs.Linux{}, Mounts: []specs.Mount{
		{Destination: "/usr/data", Type: "bind", Source: filepath.Join(dir, "data"), Options: []string{"bind"}},
	}}
	c := process.Config{Bundle: t.TempDir(), Rootfs: t.TempDir(), Spec: spec}
	unanswered("Prepare", h.Prepare(t.Context(), &c))
	if c.Spec != spec || len(spec.Mounts) != 1 {
		t.Errorf("the configuration was changed: %+v", c.Spec)
	}
	must(t, h.Removed())
}

// What was given up ends when the volume answers. By then containerd has removed the bundle, and may use it again.
func TestPrepare_ThatWasGivenUpDoesNotMakeTheBundleAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "volume")
	must(t, os.Mkdir(dir, 0o700))
	hungfs.Mount(t, dir)
	h, err := Parse(settings.Value{Key: "host-rootfs", Text: "/etc"}, settings.Value{}, settings.Value{})
	must(t, err)
	spec := &specs.Spec{Linux: &specs.Linux{}, Mounts: []specs.Mount{
		{Destination: "/etc/data", Type: "bind", Source: filepath.Join(dir, "data"), Options: []string{"bind"}},
	}}
	c := process.Config{Bundle: filepath.Join(t.TempDir(), "bundle"), Rootfs: t.TempDir(), Spec: spec}
	must(t, os.Mkdir(c.Bundle, 0o700))
	before := runtime.NumGoroutine()
	if err := h.Prepare(t.Context(), &c); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Prepare = %v, want %v", err, context.DeadlineExceeded)
	}
	must(t, os.RemoveAll(c.Bundle))
	must(t, unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH)) // the volume answers, with an error
	for ticks := time.NewTicker(time.Millisecond); runtime.NumGoroutine() > before; <-ticks.C {
	} // until what goes on has ended; go test has a limit
	if _, err := os.Stat(c.Bundle); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the bundle: %v, want it gone", err)
	}
}
