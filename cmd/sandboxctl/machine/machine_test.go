// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// commandLine makes that of process 7.
func commandLine(t *testing.T, text string) Root {
	t.Helper()
	root := Root(t.TempDir())
	err := errors.Join(os.MkdirAll(root.Path("proc/7"), 0o755), os.WriteFile(root.ProcFile(7, "cmdline"), []byte(text), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func TestCommandLine(t *testing.T) {
	const most = 64 << 10
	for _, tt := range []struct {
		text  string
		first []string
		args  int
		cut   bool
	}{
		{"shim\x00-id\x00c\x00", []string{"shim", "-id", "c"}, 3, false},
		{"shim\x00-id\x00", []string{"shim", "-id"}, 2, false},
		{"shim" + strings.Repeat("\x00", most-4), []string{"shim"}, most - 4, false},
		{"shim" + strings.Repeat("\x00", 1<<20), []string{"shim"}, most - 4, true},
	} {
		got, err := commandLine(t, tt.text).CommandLine(t.Context(), 7)
		args := got.Args()
		if err != nil || got.Cut != tt.cut || len(args) != tt.args || !slices.Equal(args[:len(tt.first)], tt.first) {
			t.Errorf("%d bytes: %d arguments %.20q, cut off: %t, %v, want %d %q, %t", len(tt.text), len(args), args, got.Cut, err,
				tt.args, tt.first, tt.cut)
		}
	}
	if _, err := Root(t.TempDir()).CommandLine(t.Context(), 7); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of a process that has ended: %v, want %v", err, os.ErrNotExist)
	}
}

// A process can keep the lock that the kernel takes for the command line.
func TestCommandLine_ThatIsWithheld(t *testing.T) {
	root := commandLine(t, "")
	path := root.ProcFile(7, "cmdline")
	if err := errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, ctx := range []context.Context{ended, t.Context()} {
		if got, err := root.CommandLine(ctx, 7); !errors.Is(err, ErrHidden) {
			t.Errorf("command line = %v, %v, want %v", got, err, ErrHidden)
		}
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0) // whoever waits reads its end
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestRoot_Resolve(t *testing.T) {
	root := t.TempDir()
	err := errors.Join(
		os.MkdirAll(filepath.Join(root, "run/containerd"), 0o755), os.Mkdir(filepath.Join(root, "var"), 0o755),
		os.Symlink("../run", filepath.Join(root, "var/run")), os.Symlink("../../..", filepath.Join(root, "var/out")),
	)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/run/containerd": "/run/containerd", "/var/run/containerd": "/run/containerd", "/none": "/none", "/var/run/none": "/var/run/none",
		"/var/out": "/var/out", // it leads out of the machine
	} {
		if got := Root(root).Resolve(path); got != want {
			t.Errorf("Resolve(%q) = %q, want %q", path, got, want)
		}
	}
}

func TestFlagValue(t *testing.T) {
	for _, args := range [][]string{{"x", "-id", "c"}, {"x", "--id", "c"}, {"x", "-id=c"}, {"x", "--id=c"}} {
		if got := FlagValue(args, "id"); got != "c" {
			t.Errorf("FlagValue(%q) = %q, want c", args, got)
		}
	}
	for _, args := range [][]string{nil, {"x", "id", "c"}, {"x", "-id"}, {"x", "-idd", "c"}} {
		if got := FlagValue(args, "id"); got != "" {
			t.Errorf("FlagValue(%q) = %q, want nothing", args, got)
		}
	}
}

func TestWithin(t *testing.T) {
	for _, tt := range []struct {
		dir, path string
		want      bool
	}{
		{"/a", "/a", true}, {"/a", "/a/b", true}, {"/a", "/ab", false}, {"/a", "/a/../b", false}, {"/a", "/", false}, {"/a", "/a/..b", true},
	} {
		if got := Within(tt.dir, tt.path); got != tt.want {
			t.Errorf("Within(%q, %q) = %t, want %t", tt.dir, tt.path, got, tt.want)
		}
	}
}
