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

	"sandbox.internal/shim/pkg/internal/hungfs"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
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
	for name, tt := range map[string]struct {
		volume string // below the directory that is shown
		mount  bool   // the configuration has a mount of the volume
	}{
		"a mount of the configuration": {"elsewhere/volume", true},
		"a volume of the host":         {"etc/volume", false},
	} {
		t.Run(name, func(t *testing.T) {
			h, spec := host(t), &specs.Spec{Linux: &specs.Linux{}}
			volume := filepath.Join(h, tt.volume)
			must(t, os.MkdirAll(volume, 0o700))
			rootfs := parsed(t, h+"/etc:/etc", h+"/etc/shadow")
			if tt.mount {
				spec.Mounts = []specs.Mount{
					{Destination: "/etc/data", Type: "bind", Source: filepath.Join(volume, "data"), Options: []string{"bind"}},
				}
			}
			hungfs.Mount(t, volume)
			c := process.Config{Bundle: filepath.Join(t.TempDir(), "bundle"), Rootfs: t.TempDir(), Spec: spec}
			must(t, os.Mkdir(c.Bundle, 0o700))
			before := runtime.NumGoroutine()
			if err := rootfs.Prepare(t.Context(), &c); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("Prepare = %v, want %v", err, context.DeadlineExceeded)
			}
			must(t, os.RemoveAll(c.Bundle))
			must(t, unix.Unmount(volume, unix.MNT_FORCE|unix.MNT_DETACH)) // the volume answers, with an error
			for ticks := time.NewTicker(time.Millisecond); runtime.NumGoroutine() > before; <-ticks.C {
			} // until what goes on has ended; go test has a limit
			if _, err := os.Stat(c.Bundle); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the bundle: %v, want it gone", err)
			}
		})
	}
}

// A shim that was killed, or somebody else, left directories in which a path leads to files of the host.
func TestPrepare_ChangesNothingThroughWhatWasLeft(t *testing.T) {
	for name, leave := range map[string]func(h, left string) error{
		"links": func(h, left string) error {
			return errors.Join(os.MkdirAll(left+"/0", 0o700), os.Symlink(h+"/opt/kept", left+"/0/passwd"),
				os.Symlink(h+"/opt", left+"/0/ssl"))
		},
		"a link in place of a directory": func(h, left string) error {
			return errors.Join(os.Mkdir(left, 0o700), os.Symlink(h+"/opt", left+"/0"))
		},
		"a link in place of all": func(h, left string) error { return os.Symlink(h+"/opt", left) },
		"a mount": func(h, left string) error {
			return errors.Join(os.MkdirAll(left+"/0", 0o700), unix.Mount(h+"/opt", left+"/0", "", unix.MS_BIND, ""))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := host(t)
			for _, file := range []string{"kept", "passwd"} {
				must(t, os.WriteFile(h+"/opt/"+file, []byte("kept"), 0o600))
			}
			c := process.Config{Bundle: t.TempDir(), Rootfs: t.TempDir(), Spec: &specs.Spec{Linux: &specs.Linux{}}}
			left := filepath.Join(c.Bundle, skeletons)
			must(t, leave(h, left))
			t.Cleanup(func() { _ = unix.Unmount(left+"/0", unix.MNT_DETACH) }) // one of them has a mount
			before := files(t, h+"/opt")
			info, err := os.Stat(h + "/opt")
			must(t, err)
			rootfs := parsed(t, h+"/etc:/etc", h+"/etc/shadow")
			mounted := name == "a mount"
			if err := rootfs.Prepare(t.Context(), &c); errors.Is(err, unix.EBUSY) != mounted || !mounted && err != nil {
				t.Errorf("Prepare = %v", err)
			}
			if err := rootfs.Removed(); errors.Is(err, unix.EBUSY) != mounted || !mounted && err != nil {
				t.Errorf("Removed = %v", err)
			}
			for _, file := range []string{"kept", "passwd"} {
				if got, err := os.ReadFile(h + "/opt/" + file); string(got) != "kept" {
					t.Errorf("%s of the host has %q, %v", file, got, err)
				}
			}
			now, err := os.Stat(h + "/opt")
			must(t, err)
			if got := files(t, h+"/opt"); got != before || now.Mode() != info.Mode() {
				t.Errorf("the directory of the host is %v with %s, want %v with %s", now.Mode(), got, info.Mode(), before)
			}
		})
	}
}
