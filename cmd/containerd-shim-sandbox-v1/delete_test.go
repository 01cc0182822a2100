// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go/features"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"sandbox.internal/shim/pkg/bootstrap"
	"sandbox.internal/shim/pkg/cleanup"
	"sandbox.internal/shim/pkg/process"
)

func TestDeleteBundle(t *testing.T) {
	bundle := filepath.Join(t.TempDir(), "c1")
	if err := os.Mkdir(bundle, 0o700); err != nil {
		t.Fatal(err)
	}
	f := flags{Args: bootstrap.Args{Namespace: "ns", ID: "c1", Address: "/a"}, bundle: bundle}
	at := time.Unix(1700000000, 5).UTC()
	state := cleanup.State{Root: "/r", Pid: 42, Exit: &process.Exit{Status: 137, At: at}}
	if err := state.Write(bundle); err != nil {
		t.Fatal(err)
	}
	r := cleanup.Request{Container: func(ctx context.Context, c process.Config) error {
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > 5*time.Second {
			t.Errorf("the container has until %v, want less than containerd's 5 s", deadline)
		}
		if c.ID != "c1" || c.Bundle != bundle {
			t.Errorf("removes %q in %q, want c1 in %q", c.ID, c.Bundle, bundle)
		}
		return nil
	}}
	var stdout bytes.Buffer
	if err := deleteBundle(f, &stdout, deleteTimeout, r); err != nil {
		t.Fatalf("deleteBundle = %v", err)
	}
	var got task.DeleteResponse
	if err := proto.Unmarshal(stdout.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := &task.DeleteResponse{Pid: 42, ExitStatus: 137, ExitedAt: timestamppb.New(at)}
	if !proto.Equal(&got, want) {
		t.Errorf("answer = %v, want %v", &got, want)
	}
}

func TestDeleteBundle_ReportsWhatCleanupSays(t *testing.T) {
	f := flags{Args: bootstrap.Args{Namespace: "ns", ID: "c1"}, bundle: "/nowhere/c1"}
	var stdout bytes.Buffer
	err := deleteBundle(f, &stdout, deleteTimeout, cleanup.Request{
		Container: func(context.Context, process.Config) error { return errdefs.ErrUnavailable },
	})
	if !errors.Is(err, errdefs.ErrUnavailable) || !strings.Contains(err.Error(), `"c1"`) || stdout.Len() > 0 {
		t.Errorf("deleteBundle = %v with answer %q, want cleanup's error, the id and no answer", err, stdout.String())
	}
}

// containerd would kill the process a moment later, and log nothing but that.
func TestDeleteBundle_SaysWhichStepDoesNotEnd(t *testing.T) {
	f := flags{Args: bootstrap.Args{Namespace: "ns", ID: "c1"}, bundle: "/nowhere/c1"}
	end := make(chan struct{})
	defer close(end)
	var stdout bytes.Buffer
	err := deleteBundle(f, &stdout, time.Millisecond, cleanup.Request{
		Container: func(context.Context, process.Config) error { <-end; return nil },
	})
	const step = "TestDeleteBundle_SaysWhichStepDoesNotEnd.func" // the one above
	if err == nil || !strings.Contains(err.Error(), `"c1"`) || !strings.Contains(err.Error(), step) || stdout.Len() > 0 {
		t.Errorf("deleteBundle = %v with answer %q, want the id, the step and no answer", err, stdout.String())
	}
}

// containerd removes the bundle of a create that failed also when the delete command fails. Nobody finds the socket then.
func TestDeleteBundle_RemovesTheSocketAlsoWhenTheRestFails(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close() // as when its shim was killed
	if err := os.WriteFile(filepath.Join(dir, "address"), []byte("unix://"+socket), 0o600); err != nil {
		t.Fatal(err)
	}
	f := flags{Args: bootstrap.Args{Namespace: "ns", ID: "c1"}, bundle: dir}
	err = deleteBundle(f, io.Discard, deleteTimeout, cleanup.Request{
		Container: func(context.Context, process.Config) error { return errdefs.ErrUnavailable },
	})
	if !errors.Is(err, errdefs.ErrUnavailable) {
		t.Errorf("deleteBundle = %v, want cleanup's error", err)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket: %v, want it gone", err)
	}
}

func TestAge(t *testing.T) {
	if first := age(); first <= 0 || first > time.Hour {
		t.Errorf("age = %v, want that of this process", first)
	}
	before := age()
	at := time.Now()
	for time.Since(at) < 20*time.Millisecond {
		runtime.Gosched()
	}
	if grown := age() - before; grown < 20*time.Millisecond || grown > 10*time.Second {
		t.Errorf("age grew by %v in 20ms", grown)
	}
}

func TestBundleOf_WorkingDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c1")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	if got, err := bundleOf(flags{Args: bootstrap.Args{ID: "c1"}}); err != nil || got != dir {
		t.Errorf("bundleOf = %q, %v, want %q", got, err, dir)
	}
	if _, err := bundleOf(flags{Args: bootstrap.Args{ID: "c2"}}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("bundleOf in another container's bundle = %v, want ErrInvalidArgument", err)
	}
}

func TestInfo(t *testing.T) {
	options, err := os.ReadFile("../../pkg/bootstrap/testdata/stdin-1.7.35.bin")
	if err != nil {
		t.Fatal(err)
	}
	enabled := true
	want := &features.Features{OCIVersionMin: "1.0.0", Linux: &features.Linux{Namespaces: []string{"user"}, Cgroup: &features.Cgroup{V2: &enabled}}}
	stdin, err := os.Open("../../pkg/bootstrap/testdata/stdin-1.7.35.bin")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stdin.Close() }() // opened for reading only
	var stdout bytes.Buffer
	if err := info(stdin, &stdout, want); err != nil {
		t.Fatal(err)
	}
	var got types.RuntimeInfo
	if err := proto.Unmarshal(stdout.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.GetName() != "io.containerd.sandbox.v1" {
		t.Errorf("name = %q", got.GetName())
	}
	if back, err := proto.Marshal(got.GetOptions()); err != nil || !bytes.Equal(back, options) {
		t.Errorf("options = %x, %v, want %x", back, err, options)
	}
	if got := got.GetFeatures().GetTypeUrl(); got != "types.containerd.io/opencontainers/runtime-spec/1/features/Features" {
		t.Errorf("features have type URL %q", got)
	}
	var back features.Features
	if err := json.Unmarshal(got.GetFeatures().GetValue(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, &back); diff != "" {
		t.Errorf("features (-want +got):\n%s", diff)
	}
}

func TestVersionText(t *testing.T) {
	got := versionText("2.5.4")
	for _, want := range []string{"containerd-shim-sandbox-v1:\n  Version:  ", "\n  Revision: ", "\n  Go version: go1.", "\n  libcontainer: v1.", "\n  seccomp: 2.5.4\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("versionText = %q, want %q in it", got, want)
		}
	}
	if got := versionText(""); !strings.Contains(got, "seccomp: off\n") {
		t.Errorf("versionText without seccomp = %q, want seccomp off", got)
	}
}

// withoutDescriptors calls f while this process cannot get another descriptor.
func withoutDescriptors(t *testing.T, f func()) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	f()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
}

// What -info says places tasks on nodes, so that it cannot look must not read as that there is nothing.
func TestInfo_FailsWithoutDescriptors(t *testing.T) {
	stdin, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	var stdout bytes.Buffer
	withoutDescriptors(t, func() { err = info(stdin, &stdout, nil) })
	if !errors.Is(err, unix.EMFILE) || stdout.Len() > 0 {
		t.Errorf("info without descriptors = %v, %d bytes, want %v and nothing", err, stdout.Len(), unix.EMFILE)
	}
}
