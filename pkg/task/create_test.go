// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sandbox.internal/shim/pkg/internal/testx"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cleanup"
	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
)

func TestCreate_FailureLeavesNothing(t *testing.T) {
	broken := errors.New("broken")
	invalid := errdefs.ErrInvalidArgument
	for _, tc := range []struct {
		name   string
		spec   func(*specs.Spec)
		bundle func(t *testing.T, bundle string) string // the bundle that is asked for
		change func(*CreateRequest)
		engine func(process.Config) error
		ended  bool // the context
		class  error
		want   []string
	}{
		{name: "a bundle that is not there", bundle: func(_ *testing.T, b string) string { return b + "-not" }, class: invalid, want: []string{"config.json", "-not"}},
		{name: "a relative bundle", bundle: func(*testing.T, string) string { return "bundle" }, class: invalid, want: []string{"bundle", `"bundle"`, "absolute"}},
		{name: "a configuration that is refused", spec: func(s *specs.Spec) { s.Process.Cwd = "x" }, class: invalid, want: []string{"config.json", "process.cwd", `"x"`}},
		{name: "a terminal in the request alone", change: func(r *CreateRequest) { r.IO.Terminal = true }, class: invalid, want: []string{"terminal", "true", "process.terminal", "false"}},
		{name: "a state that cannot be written", bundle: func(t *testing.T, b string) string {
			t.Helper()
			testx.Must(t, os.MkdirAll(filepath.Join(b, "shim.json", "in the way"), 0o700))
			return b
		}, want: []string{"shim.json"}},
		{name: "a mount of an unknown type", change: func(r *CreateRequest) {
			r.Rootfs = []mount.Mount{{Type: "nosuchfs", Source: "src", Options: []string{"ro", "x=1"}}}
		}, want: []string{"root file system", "nosuchfs", "src", "ro x=1"}},
		{name: "the second of two mounts", change: func(r *CreateRequest) {
			r.Rootfs = append(tmpfs(), mount.Mount{Type: "bind", Source: "/nowhere", Options: []string{"bind"}})
		}, want: []string{"/nowhere"}},
		{name: "a stdout that is not there", change: func(r *CreateRequest) { r.Rootfs, r.IO.Stdout = tmpfs(), "/nowhere/fifo" }, want: []string{"stdout", "/nowhere/fifo"}},
		{name: "a stdout of an unknown scheme", change: func(r *CreateRequest) { r.IO.Stdout = "http://x/y" }, class: invalid, want: []string{"stdout", "http"}},
		{name: "an engine that fails", change: func(r *CreateRequest) { r.Rootfs = tmpfs() }, engine: func(process.Config) error { return broken }, class: broken, want: []string{"c1"}},
		{name: "an id that is a path", change: func(r *CreateRequest) { r.ID = "../../etc" }, class: invalid, want: []string{"id", "../../etc"}},
		{name: "a context that has ended", change: func(r *CreateRequest) { r.Rootfs = tmpfs() }, ended: true, class: context.Canceled},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := goodSpec()
			if tc.spec != nil {
				tc.spec(spec)
			}
			bundle := testx.NewBundle(t, spec)
			r := CreateRequest{ID: "c1", Bundle: bundle}
			if tc.bundle != nil {
				r.Bundle = tc.bundle(t, bundle)
			}
			if tc.change != nil {
				tc.change(&r)
			}
			before := testx.Files(t, bundle) // as containerd, or another client, left it
			engine := newRuntime()
			engine.Do("create", tc.engine)
			s := newManager(t, engine)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tc.ended {
				cancel()
			}
			_, err := s.Create(ctx, r)
			if err == nil || tc.class != nil && !errors.Is(err, tc.class) {
				t.Errorf("Create = %v, want one of class %v", err, tc.class)
			}
			testx.WantText(t, err, tc.want...)
			if got := testx.Files(t, bundle); got != before {
				t.Errorf("files = %q, want %q", got, before)
			}
			if left := testx.MountsBelow(t, bundle); len(left) > 0 {
				t.Errorf("mounts left: %v", left)
			}
			_, err = s.Container("c1")
			testx.WantError(t, err, errdefs.ErrNotFound)
			engine.Do("create", nil)
			create(t, s, "c1", goodSpec())
			remove(t, s, "c1")
		})
	}
}

func TestCreate_AsksTheRuntime(t *testing.T) {
	mapped := func(s *specs.Spec) {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
		s.Linux.UIDMappings = []specs.LinuxIDMapping{{HostID: 100000, Size: 65536}}
		s.Linux.GIDMappings = []specs.LinuxIDMapping{{HostID: 200000, Size: 65536}}
	}
	for _, tc := range []struct {
		name    string
		spec    func(*specs.Spec)
		options options.Options
		want    process.Options
		rootfs  string // empty: in the bundle
	}{
		{"defaults", func(*specs.Spec) {}, options.Options{}, process.Options{Root: options.DefaultRoot + "/ns"}, ""},
		{
			"all options", func(s *specs.Spec) { s.Root.Path = "/abs" },
			options.Options{Root: "/r", NoPivotRoot: true, NoNewKeyring: true, IoUid: 3, IoGid: 4, SystemdCgroup: true},
			process.Options{Root: "/r/ns", NoPivotRoot: true, NoNewKeyring: true, SystemdCgroup: true, IOOwner: idmap.Owner{UID: 3, GID: 4}},
			"/abs",
		},
		{
			"a user namespace",
			mapped,
			options.Options{},
			process.Options{Root: options.DefaultRoot + "/ns", IOOwner: idmap.Owner{UID: 100000, GID: 200000}},
			"",
		},
		{
			"a user namespace, and owners of the output",
			mapped,
			options.Options{IoGid: 7},
			process.Options{Root: options.DefaultRoot + "/ns", IOOwner: idmap.Owner{GID: 7}},
			"",
		},
		{"a cgroup of systemd's", func(s *specs.Spec) { s.Linux.CgroupsPath = "a.slice:b:c" }, options.Options{}, process.Options{Root: options.DefaultRoot + "/ns", SystemdCgroup: true}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := goodSpec()
			tc.spec(spec)
			bundle := testx.NewBundle(t, spec)
			engine := newRuntime()
			s := newManager(t, engine)
			_, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle, Options: tc.options})
			testx.Must(t, err)
			got := engine.Containers()[0].Config
			if got.Options != tc.want {
				t.Errorf("options = %+v, want %+v", got.Options, tc.want)
			}
			if tc.rootfs == "" {
				tc.rootfs = filepath.Join(bundle, rootfsDir)
			}
			if got.Rootfs != tc.rootfs || got.Bundle != bundle || got.ID != "c1" {
				t.Errorf("id, bundle, rootfs = %q, %q, %q, want c1, %q, %q", got.ID, got.Bundle, got.Rootfs, bundle, tc.rootfs)
			}
			rec, err := cleanup.ReadState(bundle)
			if err != nil || rec.Root != tc.want.Root || rec.SystemdCgroup != tc.want.SystemdCgroup || rec.Pid != 101 || rec.Exit != nil {
				t.Errorf("state = %+v, %v", rec, err)
			}
			remove(t, s, "c1")
			if got := testx.Files(t, bundle); got != "config.json rootfs" {
				t.Errorf("files after Delete = %q", got)
			}
		})
	}
}

// cleanUp is the delete command for container c1 of a dead shim.
func cleanUp(t *testing.T, bundle string) (int, process.Exit, error) {
	t.Helper()
	container := func(context.Context, process.Config) error { return nil }
	return cleanup.Request{Namespace: "ns", ID: "c1", Bundle: bundle, Container: container, Extensions: extensions}.Run(t.Context())
}

// The shim writes init's exit before it tells it, so that a delete command that
// comes after its death answers with it.
func TestExit_IsOnDisk(t *testing.T) {
	engine := newRuntime()
	engine.Fail("destroy", errors.New("the shim dies here"))
	c := create(t, newManager(t, engine), "c1", goodSpec())
	testx.Must(t, c.Init().Start(t.Context()))
	testx.Must(t, c.Init().Kill(15))
	want, err := c.Init().Wait(t.Context())
	testx.Must(t, err)
	pid, got, err := cleanUp(t, c.Init().Status().Bundle)
	if err != nil || pid != 101 || got.Status != 128+15 || !got.At.Equal(want.At) {
		t.Errorf("Remove = %d, %+v, %v, want 101, %+v", pid, got, err, want)
	}
}

func TestCreate_FailsWhereItCannotBeListed(t *testing.T) {
	engine := newRuntime()
	s := newManager(t, engine)
	home, bundle := testx.NewBundle(t, nil), testx.NewBundle(t, goodSpec())
	s.KeepIndex("home", home, "/the/socket", nil)
	testx.Must(t, os.Mkdir(filepath.Join(home, "shim.json"), 0o700)) // the name is taken
	_, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle})
	testx.WantText(t, err, `"c1"`, "shim.json")
	if len(engine.Containers()) > 0 {
		t.Error("the container was made all the same")
	}
	if got, want := testx.Files(t, bundle), "config.json"+" "+"rootfs"; got != want {
		t.Errorf("files = %q, want %q", got, want)
	}
}

// A client may have its own directory for the state of containers. The delete command finds what is left there only by
// what the shim has written.
func TestCreate_WhatIsLeftIsFoundByTheDeleteCommand(t *testing.T) {
	broken := fmt.Errorf("broken: %w", errdefs.ErrFailedPrecondition)
	bundle := testx.NewBundle(t, goodSpec())
	r := CreateRequest{ID: "c1", Bundle: bundle, Options: options.Options{Root: "/run/client"}}
	engine := newRuntime()
	engine.Fail("create", errors.Join(broken, process.ErrLeft))
	s := newManager(t, engine)
	_, err := s.Create(t.Context(), r)
	if !errors.Is(err, broken) {
		t.Errorf("Create = %v, want %v", err, broken)
	}
	testx.WantText(t, err, "left")
	if state, err := cleanup.ReadState(bundle); err != nil || state.Root != "/run/client/ns" {
		t.Errorf("state in the bundle = %+v, %v, want one with the root /run/client/ns", state, err)
	}
	if _, err := s.Container("c1"); !errdefs.IsNotFound(err) {
		t.Errorf("Container = %v, want not found", err)
	}
}
