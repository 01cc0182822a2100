// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/internal/testx"
)

func TestShimGroup(t *testing.T) {
	tests := []struct {
		name, spec string // no spec: no file
		want       string
		bad        bool
	}{
		{name: "no config.json is a group of its own", want: "c1"},
		{name: "no annotations", spec: `{"ociVersion":"1.2.0"}`, want: "c1"},
		{name: "a pod", spec: `{"annotations":{"io.kubernetes.cri.sandbox-id":"pod"}}`, want: "pod"},
		{name: "runc's label goes first", spec: `{"annotations":{"io.kubernetes.cri.sandbox-id":"pod","io.containerd.runc.v2.group":"g"}}`, want: "g"},
		{name: "an empty label is none", spec: `{"annotations":{"io.containerd.runc.v2.group":""}}`, want: "c1"},
		{name: "a label that leaves the namespace", spec: `{"annotations":{"io.containerd.runc.v2.group":"../other/c"}}`, bad: true},
		{name: "a label with an empty element", spec: `{"annotations":{"io.containerd.runc.v2.group":"a//b"}}`, bad: true},
		{name: "no JSON", spec: `{`, bad: true},
		{name: "annotations of another type", spec: `{"annotations":["x"]}`, bad: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.spec != "" {
				testx.Must(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(tt.spec), 0o600))
			}
			got, err := ShimGroup(dir, "c1")
			if got != tt.want || errdefs.IsInvalidArgument(err) != tt.bad {
				t.Errorf("ShimGroup with %q = %q, %v, want %q, invalid %t", tt.spec, got, err, tt.want, tt.bad)
			}
		})
	}
}

func TestRemoveSocket_OfNoStart(t *testing.T) {
	bundle := t.TempDir()
	if err := RemoveSocket(t.Context(), bundle); err != nil {
		t.Errorf("RemoveSocket without an address file = %v", err)
	}
	testx.Must(t, os.WriteFile(filepath.Join(bundle, addressFile), []byte("unix://x"), 0o600))
	if err := RemoveSocket(t.Context(), bundle); !errdefs.IsInvalidArgument(err) {
		t.Errorf("RemoveSocket with a relative path in the address file = %v, want ErrInvalidArgument", err)
	}
}

func TestRemoveSocket_KeepsThatOfALivingShim(t *testing.T) {
	dir := shortDir(t)
	bundle := filepath.Join(dir, "c1")
	testx.Must(t, os.Mkdir(bundle, 0o700))
	a := Args{Namespace: "ns", ID: "c1", Address: "/a"}
	r := request{Daemon: Daemon{Args: a, Bundle: bundle}, socketDir: dir}
	testx.Must(t, r.recordSocket())
	path := r.SocketPath
	l, err := listen(t.Context(), path)
	testx.Must(t, err)
	for _, step := range []struct {
		name string
		left bool
	}{{"the shim lives", true}, {"the shim is dead", false}, {"the second time", false}} {
		if err := RemoveSocket(t.Context(), bundle); err != nil {
			t.Fatalf("%s: RemoveSocket = %v", step.name, err)
		}
		if _, err := os.Lstat(path); (err == nil) != step.left {
			t.Errorf("%s: socket left = %t, want %t", step.name, err == nil, step.left)
		}
		if step.left {
			die(t, l)
		}
	}
}

func TestServes(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	is := func(want bool, what string) {
		t.Helper()
		if got, err := Serves(t.Context(), path, "c1"); err != nil || got != want {
			t.Errorf("%s: serves = %t, %v, want %t", what, got, err, want)
		}
	}
	is(false, "no socket")
	l, err := listen(t.Context(), path)
	testx.Must(t, err)
	is(true, "a shim that hangs")
	setBacklog(t, l, 0)
	is(true, "a shim that hangs, with no place for another connection")
	setBacklog(t, l, 128)
	dead := make(chan struct{})
	go func() { // a shim that dies once it has been connected to
		defer close(dead)
		conn, err := l.Accept()
		die(t, l)
		if err == nil {
			_ = conn.Close()
		}
	}()
	is(false, "a shim that dies")
	<-dead
	is(false, "a dead socket")
}

// A shim that cannot take a connection into its poller, for lack of memory say, hangs up: that is not death.
func TestServes_AShimThatHangsUpIsNotDead(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	l, err := listen(t.Context(), path)
	testx.Must(t, err)
	const enough = 5
	ctx, cancel := context.WithCancel(t.Context())
	accepted, ended := 0, make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed below
			}
			_ = conn.Close()
			if accepted++; accepted == enough {
				cancel() // the time of the command is over
			}
		}
	}()
	alive, err := Serves(ctx, path, "c1")
	_ = l.Close()
	<-ended
	if alive || !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), path) {
		t.Errorf("serves = %t, %v, want ErrUnavailable that names %s", alive, err, path)
	}
	if accepted < enough {
		t.Errorf("it was asked %d times, want %d", accepted, enough)
	}
}
