// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// fakeCriu puts a program of that name first in PATH.
func fakeCriu(t *testing.T) (path string) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, criu)
	must(t, os.WriteFile(path, []byte("#!/bin/sh\nexit 1\n"), 0o755)) //nolint:gosec // a program is executable
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return path
}

func TestCriu_Find(t *testing.T) {
	path := fakeCriu(t)
	for _, want := range []string{"", path} {
		if err := findCriu(want); err != nil {
			t.Errorf("findCriu(%q) = %v, want none", want, err)
		}
	}
	err := findCriu("/opt/criu")
	wantError(t, err, errdefs.ErrInvalidArgument, "/opt/criu", path)
	t.Setenv("PATH", t.TempDir())
	wantError(t, findCriu(""), errdefs.ErrNotImplemented, `"criu"`, "PATH", "package")
}

func TestCheckpoint_Options(t *testing.T) {
	image := t.TempDir()
	must(t, os.Mkdir(filepath.Join(image, "parent"), 0o700))
	for _, tc := range []struct {
		name string
		in   process.CheckpointRequest
		want libcontainer.CriuOpts
	}{
		{"no options leave the container running", process.CheckpointRequest{Path: image}, libcontainer.CriuOpts{LeaveRunning: true}},
		{"exit", process.CheckpointRequest{Path: image, Exit: true}, libcontainer.CriuOpts{}},
		{"every option", process.CheckpointRequest{
			Path: image, ParentPath: "parent", CgroupsMode: "full", EmptyNamespaces: []string{"network"},
			OpenTCP: true, ExternalUnixSockets: true, Terminal: true, FileLocks: true,
		}, libcontainer.CriuOpts{
			ParentImage: "parent", ManageCgroupsMode: "full", LeaveRunning: true,
			TcpEstablished: true, ExternalUnixConnections: true, ShellJob: true, FileLocks: true,
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.want.ImagesDirectory, tc.want.EmptyNs, tc.want.StatusFd = image, unix.CLONE_NEWNET, -1
			got, err := dumpOpts(tc.in)
			must(t, err)
			if diff := cmp.Diff(tc.want, *got); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCheckpoint_RefusesOptions(t *testing.T) {
	image := t.TempDir()
	for _, tc := range []struct {
		name string
		in   process.CheckpointRequest
		want []string
	}{
		{"a relative path", process.CheckpointRequest{Path: "image"}, []string{"path", `"image"`, "absolute"}},
		{"no path", process.CheckpointRequest{}, []string{"path", `""`, "absolute"}},
		{"an absolute parent", process.CheckpointRequest{Path: image, ParentPath: "/p"}, []string{"parent_path", `"/p"`, "relative"}},
		{"a parent that is not there", process.CheckpointRequest{Path: image, ParentPath: "p"}, []string{"parent_path", `"p"`, image}},
		{"an unknown cgroups mode", process.CheckpointRequest{Path: image, CgroupsMode: "some"}, []string{"cgroups_mode", `"some"`, "soft, full, strict, ignore"}},
		{"a namespace that cannot be empty", process.CheckpointRequest{Path: image, EmptyNamespaces: []string{"ipc"}}, []string{"empty_namespaces", `"ipc"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := dumpOpts(tc.in)
			wantError(t, err, errdefs.ErrInvalidArgument, tc.want...)
		})
	}
}

func TestCreate_RefusesWhatIsNoCheckpoint(t *testing.T) {
	fakeCriu(t)
	c := newConfig(t, "true")
	c.Checkpoint = t.TempDir()
	_, err := New(testReaper).Create(t.Context(), c, nil)
	wantError(t, err, errdefs.ErrInvalidArgument, c.Checkpoint, "inventory.img")
	wantNothingLeft(t, c)
}

// A criu that fails stands for one that the kernel is too new for.
func TestRestore_FailureLeavesNothing(t *testing.T) {
	fakeCriu(t)
	c := image(t)
	r, err := New(testReaper).Create(t.Context(), c, nil)
	must(t, err)
	streams, err := stdio.Open(t.Context(), c.IO, c.IOOwner)
	must(t, err)
	t.Cleanup(func() { must(t, streams.Close()) })
	if _, err := r.Restore(t.Context(), streams); err == nil {
		t.Error("Restore with a criu that fails = nil, want an error")
	}
	must(t, r.Destroy())
	must(t, r.Destroy())
	if left, _ := filepath.Glob(filepath.Join(c.Bundle, "criu-*")); len(left) > 0 { // the pattern is well formed
		t.Errorf("left in the bundle: %v", left)
	}
	wantNothingLeft(t, c)
}

// The context ends when the restore is as good as done, and nothing is left that
// would make libcontainer give up. The race detector sees in every other round
// what is shared with who kills the members meanwhile.
func TestRestore_IsUndoneWhenItsContextEndedMeanwhile(t *testing.T) {
	wantNoLeaks(t)
	for range 3 {
		restored, let := restoringCriu(t)
		c := image(t)
		r, err := testRuntime.Create(t.Context(), c, nil)
		must(t, err)
		streams, err := stdio.Open(t.Context(), c.IO, c.IOOwner)
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := r.Restore(ctx, streams)
			done <- err
		}()
		eventually(t, "what is restored", func() bool {
			_, err := os.Stat(restored)
			return err == nil || len(done) > 0 // it failed early
		})
		cancel()
		let()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Restore = %v, want %v", err, context.Canceled)
		}
		must(t, r.Destroy())
		must(t, streams.Close())
		wantNothingLeft(t, c)
	}
}

func TestCriu_CauseIsTheFirstErrorOfTheLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dump.log")
	if got := criuCause(path); got != "" {
		t.Errorf("cause without a log = %q, want none", got)
	}
	log := "(00.001) Warn  (criu/x.c:1): minor\n(00.002) Error (criu/tty.c:9): no master\n(00.003) Error (criu/cr-dump.c:2): Dumping FAILED.\n"
	must(t, os.WriteFile(path, []byte(log), 0o600))
	if got, want := criuCause(path), "(criu/tty.c:9): no master"; got != want {
		t.Errorf("cause = %q, want %q", got, want)
	}
}

func TestCriu_LogIsKeptOnlyWithACause(t *testing.T) {
	failure := errors.New("criu failed")
	for _, tc := range []struct {
		name string
		err  error
		log  string
		kept bool
	}{
		{"success", nil, "Error (x.c:1): not so bad\n", false},
		{"a failure without a log", failure, "", false},
		{"a failure with a cause", failure, "Error (x.c:1): bad\n", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &container{config: process.Config{Bundle: t.TempDir()}}
			err := c.withLog("", "dump.log", func(dir string) error {
				if tc.log != "" {
					must(t, os.WriteFile(filepath.Join(dir, "dump.log"), []byte(tc.log), 0o600))
				}
				return tc.err
			})
			if !errors.Is(err, tc.err) {
				t.Errorf("error = %v, want %v", err, tc.err)
			}
			left, _ := filepath.Glob(filepath.Join(c.config.Bundle, "criu-*/dump.log")) // the pattern is well formed
			if (len(left) > 0) != tc.kept {
				t.Errorf("logs in the bundle: %v, want one: %t", left, tc.kept)
			}
			if tc.kept && (!strings.Contains(err.Error(), "(x.c:1): bad") || !strings.Contains(err.Error(), left[0])) {
				t.Errorf("error = %q, want the cause and the path of the log", err)
			}
		})
	}
}

func wantError(t *testing.T, err, class error, words ...string) {
	t.Helper()
	if !errors.Is(err, class) {
		t.Fatalf("error = %v, want one of class %v", err, class)
	}
	wantText(t, err, words...)
}
