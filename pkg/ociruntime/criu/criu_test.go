// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package criu

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/shim/pkg/internal/testx"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

func TestFind(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, Program)
	testx.Must(t, os.WriteFile(path, []byte("#!/bin/sh\nexit 1\n"), 0o755)) //nolint:gosec // a program is executable
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for _, want := range []string{"", path} {
		if err := Find(want); err != nil {
			t.Errorf("Find(%q) = %v, want none", want, err)
		}
	}
	err := Find("/opt/criu")
	testx.WantError(t, err, errdefs.ErrInvalidArgument, "/opt/criu", path)
	t.Setenv("PATH", t.TempDir())
	testx.WantError(t, Find(""), errdefs.ErrNotImplemented, `"criu"`, "PATH", "package")
}

func TestDumpOptions(t *testing.T) {
	image := t.TempDir()
	testx.Must(t, os.Mkdir(filepath.Join(image, "parent"), 0o700))
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
			got, err := DumpOptions(tc.in)
			testx.Must(t, err)
			if diff := cmp.Diff(tc.want, *got); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDumpOptions_Refuses(t *testing.T) {
	image := t.TempDir()
	for _, tc := range []struct {
		name string
		in   process.CheckpointRequest
		want []string
	}{
		{"a relative path", process.CheckpointRequest{Path: "image"}, []string{"path", `"image"`, "absolute"}},
		{"no path", process.CheckpointRequest{}, []string{"path", `""`, "absolute"}},
		{"an absolute parent", process.CheckpointRequest{Path: image, ParentPath: "/p"}, []string{"parent_path", `"/p"`, "relative"}},
		{"an unknown cgroups mode", process.CheckpointRequest{Path: image, CgroupsMode: "some"}, []string{"cgroups_mode", `"some"`, "soft, full, strict, ignore"}},
		{"a namespace that cannot be empty", process.CheckpointRequest{Path: image, EmptyNamespaces: []string{"ipc"}}, []string{"empty_namespaces", `"ipc"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := DumpOptions(tc.in)
			testx.WantError(t, err, errdefs.ErrInvalidArgument, tc.want...)
		})
	}
}

func TestCheckNamespaces(t *testing.T) {
	dir := t.TempDir()
	other := filepath.Join(dir, "other")
	testx.Must(t, os.WriteFile(other, nil, 0o600))
	for _, tc := range []struct {
		name string
		list configs.Namespaces
		want string // in the error; empty for none
	}{
		{"none by path", configs.Namespaces{{Type: configs.NEWNET}, {Type: configs.NEWPID}}, ""},
		{"as they were", configs.Namespaces{{Type: configs.NEWNET, Path: "/proc/self/ns/net"}, {Type: configs.NEWPID, Path: "/proc/self/ns/pid"}}, ""},
		{"a file", configs.Namespaces{{Type: configs.NEWNET, Path: other}}, other},
		{"another namespace", configs.Namespaces{{Type: configs.NEWPID, Path: "/proc/self/ns/net"}}, "/proc/self/ns/net"},
		{"nothing", configs.Namespaces{{Type: configs.NEWNET, Path: dir + "/gone"}}, dir + "/gone"},
		{"one that is not asked for again", configs.Namespaces{{Type: configs.NEWIPC, Path: dir + "/gone"}}, ""},
	} {
		err := CheckNamespaces(tc.list, os.Getpid())
		if tc.want == "" {
			testx.Must(t, err)
		} else {
			testx.WantError(t, err, errdefs.ErrFailedPrecondition, tc.want)
		}
	}
}

func TestCause_IsTheFirstErrorOfTheLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dump.log")
	if got := cause(path); got != "" {
		t.Errorf("cause without a log = %q, want none", got)
	}
	log := "(00.001) Warn  (criu/x.c:1): minor\n(00.002) Error (criu/tty.c:9): no master\n(00.003) Error (criu/cr-dump.c:2): Dumping FAILED.\n"
	testx.Must(t, os.WriteFile(path, []byte(log), 0o600))
	if got, want := cause(path), "(criu/tty.c:9): no master"; got != want {
		t.Errorf("cause = %q, want %q", got, want)
	}
}

func TestWithLog(t *testing.T) {
	failure := errors.New("criu failed")
	bundle := t.TempDir()
	run := func(log string) error {
		return WithLog(bundle, "", "dump.log", func(dir string) error {
			if log != "" {
				testx.Must(t, os.WriteFile(filepath.Join(dir, "dump.log"), []byte(log), 0o600))
			}
			return failure
		})
	}
	testx.WantError(t, run("Error (x.c:1): bad\n"), failure, "(x.c:1): bad", filepath.Join(bundle, "criu-log/dump.log"))
	if err := run(""); !errors.Is(err, failure) || strings.Contains(err.Error(), "bad") {
		t.Errorf("error = %v, want none of the former log", err)
	}
}
