// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"sandbox.internal/shim/pkg/bootstrap"
	"sandbox.internal/shim/pkg/cleanup"
	"sandbox.internal/shim/pkg/process"
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func TestDeleteBundle(t *testing.T) {
	bundle := filepath.Join(t.TempDir(), "c1")
	must(t, os.Mkdir(bundle, 0o700))
	f := flags{Args: bootstrap.Args{Namespace: "ns", ID: "c1", Address: "/a"}, bundle: bundle}
	at := time.Unix(1700000000, 5).UTC()
	state := cleanup.State{Root: "/r", Pid: 42, Exit: &process.Exit{Status: 137, At: at}}
	must(t, state.Write(bundle))
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
	if err := deleteBundle(f, &stdout, r); err != nil {
		t.Fatalf("deleteBundle = %v", err)
	}
	var got task.DeleteResponse
	must(t, proto.Unmarshal(stdout.Bytes(), &got))
	want := &task.DeleteResponse{Pid: 42, ExitStatus: 137, ExitedAt: timestamppb.New(at)}
	if !proto.Equal(&got, want) {
		t.Errorf("answer = %v, want %v", &got, want)
	}
}

func TestDeleteBundle_ReportsWhatCleanupSays(t *testing.T) {
	f := flags{Args: bootstrap.Args{Namespace: "ns", ID: "c1"}, bundle: "/nowhere/c1"}
	var stdout bytes.Buffer
	err := deleteBundle(f, &stdout, cleanup.Request{
		Container: func(context.Context, process.Config) error { return errdefs.ErrUnavailable },
	})
	if !errors.Is(err, errdefs.ErrUnavailable) || !strings.Contains(err.Error(), `"c1"`) || stdout.Len() > 0 {
		t.Errorf("deleteBundle = %v with answer %q, want cleanup's error, the id and no answer", err, stdout.String())
	}
}

// containerd removes the bundle of a create that failed also when the delete command fails. Nobody finds the socket then.
func TestDeleteBundle_RemovesTheSocketAlsoWhenTheRestFails(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	must(t, err)
	l.SetUnlinkOnClose(false)
	_ = l.Close() // as when its shim was killed
	must(t, os.WriteFile(filepath.Join(dir, "address"), []byte("unix://"+socket), 0o600))
	f := flags{Args: bootstrap.Args{Namespace: "ns", ID: "c1"}, bundle: dir}
	err = deleteBundle(f, io.Discard, cleanup.Request{
		Container: func(context.Context, process.Config) error { return errdefs.ErrUnavailable },
	})
	if !errors.Is(err, errdefs.ErrUnavailable) {
		t.Errorf("deleteBundle = %v, want cleanup's error", err)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket: %v, want it gone", err)
	}
}

func TestBundleOf_WorkingDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c1")
	must(t, os.Mkdir(dir, 0o700))
	t.Chdir(dir)
	if got, err := bundleOf(flags{Args: bootstrap.Args{ID: "c1"}}); err != nil || got != dir {
		t.Errorf("bundleOf = %q, %v, want %q", got, err, dir)
	}
	if _, err := bundleOf(flags{Args: bootstrap.Args{ID: "c2"}}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("bundleOf in another container's bundle = %v, want ErrInvalidArgument", err)
	}
}
