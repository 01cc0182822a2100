// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package hostrootfs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/process"
)

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
			c := process.Config{Bundle: t.TempDir(), Rootfs: t.TempDir(), Spec: &specs.Spec{Linux: &specs.Linux{}}, Mounts: make([]event.Mount, 1)}
			left := filepath.Join(c.Bundle, skeletons)
			must(t, leave(h, left))
			t.Cleanup(func() { _ = unix.Unmount(left+"/0", unix.MNT_DETACH) }) // one of them has a mount
			before := files(t, h+"/opt")
			info, err := os.Stat(h + "/opt")
			must(t, err)
			rootfs := parsed(t, h+"/etc:/etc", h+"/etc/shadow")
			mounted := name == "a mount"
			if err := rootfs.Prepare(t.Context(), &c); !errors.Is(err, os.ErrExist) {
				t.Errorf("Prepare = %v, want an error of a directory that exists", err)
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
