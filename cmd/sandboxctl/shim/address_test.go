// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bundle makes a state directory with a bundle in it, and a socket.
func bundle(t *testing.T, files map[string]string) (state, socket string) {
	t.Helper()
	state, err := os.MkdirTemp("", "s") // a socket's path is limited to 107 bytes
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(state)) })
	socket = filepath.Join(state, "socket")
	l, err := net.Listen("unix", socket)
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	dir := filepath.Join(state, tasks, "ns", "c1")
	must(t, os.MkdirAll(dir, 0o700))
	for name, text := range files {
		must(t, os.WriteFile(filepath.Join(dir, name), fmt.Appendf(nil, text, socket), 0o600))
	}
	return state, socket
}

func TestFind_ReadsWhatContainerdWrote(t *testing.T) {
	for name, tc := range map[string]struct {
		files   map[string]string
		version int
	}{
		"containerd 2":   {map[string]string{"bootstrap.json": `{"version":3,"address":"unix://%s","protocol":"ttrpc"}`, "address": "unix:///old%.0s"}, 3},
		"containerd 1.7": {map[string]string{"address": "unix://%s"}, 2},
	} {
		state, socket := bundle(t, tc.files)
		got, err := Find(state, "ns", "c1")
		if want := (Address{Path: socket, Version: tc.version}); err != nil || got != want {
			t.Errorf("%s: Find = %+v, %v, want %+v", name, got, err, want)
		}
	}
}

func TestFind_RefusesWhatLeadsElsewhere(t *testing.T) {
	state, socket := bundle(t, map[string]string{"address": "unix://%s"})
	for _, id := range []string{"..", "../c1", "c1/..", "", "/", "c1/"} {
		if a, err := Find(state, "ns", id); err == nil {
			t.Errorf("Find of id %q = %+v", id, a)
		}
		if a, err := Find(state, id, "c1"); err == nil {
			t.Errorf("Find in namespace %q = %+v", id, a)
		}
	}
	if _, err := Find(state, "ns", "c2"); !errors.Is(err, ErrNoBundle) {
		t.Errorf("Find of an unknown id: %v, want %v", err, ErrNoBundle)
	}
	file := filepath.Join(state, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	link := filepath.Join(state, "link")
	must(t, os.Symlink(socket, link))
	for _, address := range []string{
		"", "relative", "unix://relative", "unix://" + file, "unix://" + link, "unix://" + state + "/../" + filepath.Base(state) + "/socket",
		"vsock://3:1024", "unix://" + state + "/none",
	} {
		if a, err := checkAddress(address, 3); err == nil {
			t.Errorf("checkAddress(%q) = %+v", address, a)
		}
	}
	if os.Geteuid() == 0 {
		must(t, os.Chown(socket, 1000, 1000))
		if a, err := Find(state, "ns", "c1"); err == nil {
			t.Errorf("Find of a socket of another user = %+v", a)
		}
	}
}

// Shims are written in other languages, too.
func TestInspect_OfAShimThatDoesNotKnowIt(t *testing.T) {
	for name, answer := range map[string]error{
		"Go": nil, "Rust": status.Error(codes.InvalidArgument, "/io.containerd.sandbox.v1.Inspect/Inspect service does not exist"),
	} {
		server, err := ttrpc.NewServer()
		must(t, err)
		if answer != nil {
			server.RegisterService("io.containerd.sandbox.v1.Inspect", &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
				"Inspect": func(context.Context, func(any) error) (any, error) { return nil, answer },
			}})
		}
		dir, err := os.MkdirTemp("", "s")
		must(t, err)
		t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
		socket := filepath.Join(dir, "socket")
		l, err := net.Listen("unix", socket)
		must(t, err)
		done := make(chan struct{})
		go func() { defer close(done); _ = server.Serve(context.Background(), l) }() // ends with the server
		t.Cleanup(func() { _ = server.Close(); <-done })
		client, err := Dial(t.Context(), Address{Path: socket})
		must(t, err)
		t.Cleanup(client.Close)
		if _, err := client.Inspect(t.Context(), ""); !errdefs.IsNotImplemented(err) {
			t.Errorf("%s: Inspect = %v, want %v", name, err, errdefs.ErrNotImplemented)
		}
	}
}

func FuzzCheckAddress(f *testing.F) {
	f.Add("unix:///run/containerd/s/1")
	f.Fuzz(func(t *testing.T, address string) {
		if a, err := checkAddress(address, 3); err == nil && !filepath.IsAbs(a.Path) {
			t.Errorf("checkAddress(%q) = %+v", address, a)
		}
	})
}
