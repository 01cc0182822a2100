// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/integration/fakecontainerd"
	"sandbox.internal/shim/integration/harness"
)

// invalid is the class of most of these errors. The runc shim has Unknown for them.
var invalid = errdefs.ErrInvalidArgument

func TestCreate_WrongSpecIsRefusedByNameAndLeavesNothing(t *testing.T) {
	harness.OursOnly(t, "errors of a class that name field and value")
	for _, tt := range []struct {
		name   string
		change func(*specs.Spec)
		class  error
		words  []string
	}{
		{"no process", func(s *specs.Spec) { s.Process = nil }, invalid, []string{"process"}},
		{"no root", func(s *specs.Spec) { s.Root = nil }, invalid, []string{"root"}},
		{"empty args", func(s *specs.Spec) { s.Process.Args = []string{} }, invalid, []string{"args"}},
		{"an empty program name", func(s *specs.Spec) { s.Process.Args = []string{""} }, invalid, []string{"args[0]", `""`}},
		{"a relative cwd", func(s *specs.Spec) { s.Process.Cwd = "tmp/x" }, invalid, []string{"cwd", `"tmp/x"`}},
		{"an empty cwd", func(s *specs.Spec) { s.Process.Cwd = "" }, invalid, []string{"cwd"}},
		{"an unknown namespace type", func(s *specs.Spec) {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: "flavour"})
		}, invalid, []string{"namespaces", `"flavour"`}},
		{"an unknown resource limit", func(s *specs.Spec) {
			s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_PATIENCE", Hard: 1, Soft: 1}}
		}, invalid, []string{"rlimits", "RLIMIT_PATIENCE"}},
		{"a mount whose source is absent", func(s *specs.Spec) {
			s.Mounts = append(s.Mounts,
				specs.Mount{Destination: "/mnt", Type: "bind", Source: "/no/such/source", Options: []string{"rbind"}})
		}, nil, []string{"/no/such/source"}},
		{"a namespace path that is absent", func(s *specs.Spec) {
			s.Linux.Namespaces = []specs.LinuxNamespace{{Type: "mount"}, {Type: "network", Path: "/no/such/netns"}}
		}, nil, []string{"/no/such/netns"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(t)
			b := f.Bundle("c1", tt.change, "sleep", "1000")
			wantRefused(f, b, tt.class, tt.words...)
		})
	}
}

// wantRefused starts a shim, wants Create to fail, and wants nothing left of it; the shim works on.
func wantRefused(f *fakecontainerd.Fake, b *fakecontainerd.Bundle, class error, words ...string) {
	f.Helper()
	s := f.Shim(b)
	_, err := s.Create(f.Ctx, b.CreateRequest())
	f.WantError(err, class, words...)
	wantNothingOf(f, s, b)
	s.End()
}

// wantNothingOf checks that a container whose Create failed is unknown, that only the shim is left of it, and that its
// id can be used again.
func wantNothingOf(f *fakecontainerd.Fake, s *fakecontainerd.Shim, b *fakecontainerd.Bundle) {
	f.Helper()
	_, err := s.State(f.Ctx, &task.StateRequest{ID: b.ID})
	f.WantError(err, errdefs.ErrNotFound)
	for _, leak := range f.Scope().Leaks() {
		if !strings.Contains(leak, "-namespace "+f.Namespace) && !strings.Contains(leak, f.Sockets) {
			f.Errorf("after a Create that failed: %s", leak)
		}
	}
	good := f.Bundle(b.ID, nil, "sleep", "1000")
	s.Run(good)
	s.KillAndDelete(good)
}

func TestCreate_UnreadableConfigIsRefused(t *testing.T) {
	harness.OursOnly(t, "errors of a class that name field and value")
	t.Run("missing", func(t *testing.T) {
		f := newFake(t)
		wantRefused(f, f.BundleWith("c1", nil), invalid, "config.json")
	})
	t.Run("malformed", func(t *testing.T) {
		f := newFake(t)
		b := f.BundleWith("c1", []byte(`{"process": [`))
		// Start reads the annotations for the group already, so it may be the one to refuse.
		a, err := f.Start(b, fakecontainerd.Params, nil)
		if err == nil {
			_, err = f.Connect(b, a).Create(f.Ctx, b.CreateRequest())
			f.WantError(err, invalid, "config.json")
		} else if !strings.Contains(err.Error(), "config.json") {
			t.Errorf("start = %v, want config.json in it", err)
		}
	})
}

func TestCreate_ProgramNotInTheRootfsIsNamed(t *testing.T) {
	for _, program := range []string{"/no/such/program", "no-such-program", "/etc/passwd"} {
		t.Run(filepath.Base(program), func(t *testing.T) {
			f := newFake(t)
			b := f.Bundle("c1", nil, program)
			s := f.Shim(b)
			_, err := s.Create(f.Ctx, b.CreateRequest())
			if err == nil { // a runtime may find out when it starts the program
				_, err = s.Start(f.Ctx, &task.StartRequest{ID: "c1"})
				defer s.KillAndDelete(b)
			} else {
				defer f.Remove(b)
			}
			f.WantError(err, nil, program)
			s.End()
		})
	}
}

func TestCreate_RootfsThatCannotBeMountedIsNamed(t *testing.T) {
	f := newFake(t)
	b := f.Bundle("c1", nil, "sleep", "1000")
	b.Mounts = append(b.Mounts, &types.Mount{Type: "bind", Source: "/no/such/layer", Options: []string{"rbind"}})
	s := f.Shim(b)
	_, err := s.Create(f.Ctx, b.CreateRequest())
	f.WantError(err, nil, "/no/such/layer")
	wantNothingOf(f, s, b)
	s.End()
}

func TestCreate_IDThatIsAPathIsRefused(t *testing.T) {
	harness.OursOnly(t, "ids are checked")
	f := newFake(t)
	first := f.Bundle("c1", nil, "sleep", "1000")
	s := f.Shim(first)
	for _, id := range []string{"", ".", "..", "../c1", "a/b", "/etc", "a b", "a\nb", strings.Repeat("x", 77)} {
		r := first.CreateRequest()
		r.ID = id
		_, err := s.Create(f.Ctx, r)
		f.WantError(err, invalid, "id")
		b := &fakecontainerd.Bundle{ID: id, Path: first.Path}
		if _, err := f.Start(b, fakecontainerd.Plain, nil); err == nil {
			t.Errorf("start with id %q = nil, want an error", id)
		}
	}
	s.Run(first)
	for _, id := range []string{"..", "a/b", "../../x"} {
		_, err := s.Exec(f.Ctx, &task.ExecProcessRequest{ID: "c1", ExecID: id, Spec: f.ProcessSpec(nil, "true")})
		f.WantError(err, invalid, "id", id)
	}
	s.KillAndDelete(first)
	s.End()
}

func TestExec_WrongOneIsRefusedByName(t *testing.T) {
	harness.OursOnly(t, "errors of a class that name field and value")
	f := newFake(t)
	b := f.Bundle("c1", nil, "sleep", "1000")
	s := f.Shim(b)
	s.Run(b)
	for _, tt := range []struct {
		name  string
		spec  *anypb.Any
		words []string
	}{
		{"no spec", nil, []string{"spec"}},
		{"a spec that is no JSON", &anypb.Any{TypeUrl: f.ProcessSpec(nil, "x").GetTypeUrl(), Value: []byte("{")}, []string{"spec"}},
		{"a spec of another type", &anypb.Any{TypeUrl: "example.com/Something", Value: []byte("{}")}, []string{"example.com/Something"}},
		{"empty args", f.ProcessSpec(func(p *specs.Process) { p.Args = nil }), []string{"args"}},
		{"a relative cwd", f.ProcessSpec(func(p *specs.Process) { p.Cwd = "x" }, "true"), []string{"cwd", `"x"`}},
	} {
		_, err := s.Exec(f.Ctx, &task.ExecProcessRequest{ID: "c1", ExecID: "e1", Spec: tt.spec})
		if err == nil {
			t.Errorf("%s: Exec = nil, want an error", tt.name)
			continue
		}
		f.WantError(err, invalid, tt.words...)
	}
	s.KillAndDelete(b)
	s.End()
}

func TestOptions_NotUnderstoodAreRefusedByName(t *testing.T) {
	harness.OursOnly(t, "errors of a class that name field and value")
	generic := func(body string) *anypb.Any {
		return anyOf(t, &runtimeoptions.Options{TypeUrl: "x", ConfigBody: []byte(body)})
	}
	for _, tt := range []struct {
		name    string
		options *anypb.Any
		words   []string
	}{
		{"a type that is not known", &anypb.Any{TypeUrl: "example.com/Options"}, []string{"example.com/Options"}},
		{"bytes that are no message", &anypb.Any{TypeUrl: "containerd.runc.v1.Options", Value: []byte{0xff}}, []string{"containerd.runc.v1.Options"}},
		{"an unknown key", generic("Flavour = \"sweet\"\n"), []string{"Flavour"}},
		{"text that is no TOML", generic("Root = "), []string{"TOML"}},
		{"a value of the wrong type", generic("NoNewKeyring = \"yes\"\n"), []string{"NoNewKeyring"}},
		{"a relative root", anyOf(t, &options.Options{Root: "some/where"}), []string{"Root", `"some/where"`}},
		{"a file that is absent", anyOf(t, &runtimeoptions.Options{ConfigPath: "/no/such/file.toml"}), []string{"/no/such/file.toml"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(t)
			b := f.Bundle("c1", nil, "sleep", "1000")
			s := f.Shim(b)
			r := b.CreateRequest()
			r.Options = tt.options
			_, err := s.Create(f.Ctx, r)
			f.WantError(err, invalid, tt.words...)
			wantNothingOf(f, s, b)
			s.End()
		})
	}
}

func TestOptions_ReachTheContainer(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(root string) *anypb.Any
	}{
		{"as a message", func(root string) *anypb.Any { return anyOf(t, &options.Options{Root: root}) }},
		{"as TOML", func(root string) *anypb.Any {
			return anyOf(t, &runtimeoptions.Options{
				TypeUrl:    "containerd.runc.v1.Options",
				ConfigBody: []byte("Root = \"" + root + "\"\n"),
			})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.name == "as TOML" {
				harness.OursOnly(t, "options as TOML")
			}
			f := newFake(t)
			root := filepath.Join(f.Dir, "states")
			b := f.Bundle("c1", nil, "sleep", "1000")
			s := f.Shim(b)
			r := b.CreateRequest()
			r.Options = tt.make(root)
			_, err := s.Create(f.Ctx, r)
			f.Must(err, "create")
			state := filepath.Join(root, f.Namespace, "c1")
			if _, err := os.Stat(filepath.Join(state, "state.json")); err != nil {
				t.Errorf("state of the container: %v, want it below Root", err)
			}
			_, err = s.Start(f.Ctx, &task.StartRequest{ID: "c1"})
			f.Must(err, "start")
			s.KillAndDelete(b)
			if _, err := os.Stat(state); err == nil {
				t.Errorf("%s is left after Delete", state)
			}
			s.End()
		})
	}
}

// anyOf packs m as containerd does, without a host in front of the type's name.
func anyOf(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return &anypb.Any{TypeUrl: string(m.ProtoReflect().Descriptor().FullName()), Value: data}
}
