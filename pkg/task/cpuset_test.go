// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/shim/pkg/internal/testx"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cpuset"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/settings"
)

func TestCPUSet_RefusesSources(t *testing.T) {
	const source, mems = "io.containerd.sandbox.v1/cpuset.source", "io.containerd.sandbox.v1/cpuset.mems"
	v1 := func(s *Manager) { s.cgroups = cgroups.Hybrid }
	for _, tc := range []struct {
		name        string
		annotations map[string]string
		options     options.Options
		machine     func(*Manager)
		class       error
		want        string
	}{
		{"an unknown annotation", map[string]string{"io.containerd.sandbox.v1/cpuset.sauce": "x", "other/key": "x"}, options.Options{}, nil, errdefs.ErrInvalidArgument, `config.json: annotations: "io.containerd.sandbox.v1/cpuset.sauce": unknown; known with this prefix are ` + source + ", " + mems},
		{"an empty source", map[string]string{source: ""}, options.Options{Settings: map[string]string{"CpusetSource": "/all"}}, nil, errdefs.ErrInvalidArgument, `config.json: annotations: ` + source + ` "": must be parent or the path of a cgroup, or several with commas between them`},
		{"a value that is no bool", map[string]string{source: "/shared", mems: "yes"}, options.Options{}, nil, errdefs.ErrInvalidArgument, `config.json: annotations: ` + mems + ` "yes": must be true or false`},
		{"memory nodes of no source", map[string]string{mems: "true"}, options.Options{}, nil, errdefs.ErrInvalidArgument, `config.json: annotations: ` + mems + ` "true": has no effect without ` + source},
		{"cgroup v1", map[string]string{source: "/shared"}, options.Options{}, v1, errdefs.ErrFailedPrecondition, `config.json: annotations: ` + source + ` "/shared": needs a machine with cgroup v2 alone, the unified layout`},
		{"cgroup v1 and the option", nil, options.Options{Settings: map[string]string{"CpusetSource": "/shared"}}, v1, errdefs.ErrFailedPrecondition, `runtime options: CpusetSource "/shared": needs a machine with cgroup v2 alone, the unified layout`},
		{"a source that is not there", map[string]string{source: "/gone"}, options.Options{}, nil, errdefs.ErrNotFound, `config.json: annotations: ` + source + `: cpuset source "/gone": cgroup `},
		{"sources that are not there", map[string]string{source: "/gone, /{id}"}, options.Options{}, nil, errdefs.ErrNotFound, `config.json: annotations: ` + source + ` "/gone, /{id}": none exists, the last: cpuset source "/c1": cgroup `},
		{"sources for the tasks of Nomad alone", nil, options.Options{Settings: map[string]string{"CpusetSource": "{alloc}"}, File: "/etc/c.toml"}, nil, errdefs.ErrNotFound, `/etc/c.toml: CpusetSource: cpuset source "{alloc}": none of the list applies to container "c1"`},
		{"a source elsewhere", nil, options.Options{Settings: map[string]string{"CpusetSource": "../x"}}, nil, errdefs.ErrInvalidArgument, `runtime options: CpusetSource: cpuset source "../x": must not have an element ..`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, engine := newFollowed(t)
			if tc.machine != nil {
				tc.machine(s)
			}
			destroyed := 0
			engine.destroy = func() error { destroyed++; return nil }
			spec := goodSpec()
			spec.Annotations = tc.annotations
			bundle := testx.NewBundle(t, spec)
			before := testx.Files(t, bundle)
			_, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle, Options: allowing(tc.options)})
			testx.WantError(t, err, tc.class, `container "c1": `+tc.want)
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("Create = %q, of which the second line is not the cause", err)
			}
			if got := testx.Files(t, bundle); got != before {
				t.Errorf("files = %q, want %q", got, before)
			}
			if destroyed != len(engine.made) {
				t.Errorf("%d containers made, %d destroyed", len(engine.made), destroyed)
			}
		})
	}
}

// newFollowed is a sandbox on a tree of directories in place of cgroups, where /shared has the CPUs 0-1 and the container is
// /pod/c1. Nothing tells it of changes.
func newFollowed(t *testing.T) (*Manager, *fakeEngine) {
	t.Helper()
	root := t.TempDir()
	for dir, cpus := range map[string]string{"": "0-3", "shared": "0-1", "pod": "0-3", "pod/c1": "0-3"} {
		testx.Must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
		for file, text := range map[string]string{
			"cpuset.cpus": "", "cpuset.cpus.effective": cpus, "cpuset.mems": "", "cpuset.mems.effective": "0",
		} {
			testx.Must(t, os.WriteFile(filepath.Join(root, dir, file), []byte(text+"\n"), 0o600))
		}
	}
	engine := &fakeEngine{cgroup: filepath.Join(root, "pod/c1")}
	s := newManager(t, engine)
	s.cgroups, s.cpusets = cgroups.Unified, cpuset.New(root, cpuset.Inotify)
	t.Cleanup(s.Close)
	return s, engine
}

// createFollowed makes c1, which follows /shared.
func createFollowed(t *testing.T, s *Manager, checkpoint string) *Task {
	t.Helper()
	spec := goodSpec()
	spec.Annotations = map[string]string{settings.Prefix + "cpuset.source": "shared", settings.Prefix + "cpuset.mems": "true"}
	c, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: testx.NewBundle(t, spec), Checkpoint: checkpoint, Options: allowing(options.Options{})})
	testx.Must(t, err)
	return c
}

func wantCPUSet(t *testing.T, when string, e *fakeEngine, want string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(e.cgroup, "cpuset.cpus"))
	if err != nil || string(text) != want+"\n" {
		t.Errorf("%s: cpuset.cpus = %q, %v, want %q", when, text, err, want)
	}
}

func TestCPUSet_FollowsFromCreateToDelete(t *testing.T) {
	s, engine := newFollowed(t)
	c := createFollowed(t, s, "")
	wantCPUSet(t, "after Create", engine, "0-1")
	if want := []string{"0-1/0"}; !slices.Equal(engine.kept, want) {
		t.Errorf("kept %q, want %q", engine.kept, want)
	}
	state := c.CPUSet()
	if state == nil || filepath.Base(state.Source) != "shared" || state.CPUs.String() != "0-1" ||
		state.Mems.String() != "0" || state.Writes != 2 || state.Err != nil {
		t.Errorf("CPUSet = %+v", state)
	}
	engine.destroy = func() error {
		if c.CPUSet() != nil {
			t.Error("the container follows while its cgroup is removed")
		}
		return nil
	}
	remove(t, s, "c1")
}

func TestCPUSet_IsPinnedByUpdate(t *testing.T) {
	s, engine := newFollowed(t)
	c := createFollowed(t, s, "")
	testx.Must(t, c.Init().Start(t.Context()))
	pinned := func() bool {
		state := c.CPUSet()
		return state != nil && state.Pinned
	}
	during := false
	engine.update = func() error { during = pinned(); return nil }
	for _, tc := range []struct {
		name    string
		r       specs.LinuxResources
		refused error
		during  bool // pinned
		after   bool
	}{
		{"other resources", specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: new(uint64(7)), Cpus: "", Mems: ""}}, nil, false, false},
		{"CPUs that are refused", specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: "9"}}, errdefs.ErrInvalidArgument, true, false},
		{"CPUs", specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: "2"}}, nil, true, true},
		{"other resources again", specs.LinuxResources{}, nil, true, true},
		{"other CPUs, which are refused", specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: "9"}}, errdefs.ErrInvalidArgument, true, true},
	} {
		engine.update = func() error { during = pinned(); return tc.refused }
		if err := c.Update(t.Context(), &tc.r); !errors.Is(err, tc.refused) {
			t.Errorf("%s: Update = %v, want %v", tc.name, err, tc.refused)
		}
		if during != tc.during || pinned() != tc.after {
			t.Errorf("%s: pinned %v during, %v after, want %v, %v", tc.name, during, pinned(), tc.during, tc.after)
		}
	}
	_, err := s.Delete(t.Context(), "c1", "")
	testx.WantText(t, err, "running")
	end(t, s, c)
}

// There is no cgroup before the processes are there.
func TestCPUSet_OfARestoredContainerFollowsFromStart(t *testing.T) {
	s, engine := newFollowed(t)
	c := createFollowed(t, s, "/image")
	wantCPUSet(t, "after Create", engine, "")
	testx.Must(t, c.Init().Start(t.Context()))
	wantCPUSet(t, "after Start", engine, "0-1")
	end(t, s, c)
}

func TestCPUSet_RestoreFailsWithoutTheSource(t *testing.T) {
	s, engine := newFollowed(t)
	c := createFollowed(t, s, "/image")
	testx.Must(t, os.RemoveAll(filepath.Join(filepath.Dir(filepath.Dir(engine.cgroup)), "shared")))
	testx.WantError(t, c.Init().Start(t.Context()), errdefs.ErrNotFound, "cpuset.source", "shared")
	remove(t, s, "c1")
}

// Nomad has one cgroup for all tasks that reserve no cores, and one with all cores that tasks reserve, below which each
// of these has a scope without a list of its own (Nomad 1.7, client/lib/cgroupslib). Its tasks share, or have a list.
func TestCPUSet_InNomadsCgroups(t *testing.T) {
	const alloc = "0f5ad3c0-1234-5678-9abc-def012345678"
	s, engine := newFollowed(t)
	root := filepath.Dir(filepath.Dir(engine.cgroup))
	assign := func(dir, cpus string) {
		t.Helper()
		testx.Must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
		for file, text := range map[string]string{"cpuset.mems": "", "cpuset.mems.effective": "0", "cpuset.cpus.effective": cpus, "cpuset.cpus": cpus} {
			testx.Must(t, os.WriteFile(filepath.Join(root, dir, file), []byte(text+"\n"), 0o600))
		}
	}
	assign("nomad.slice", "0-3")
	assign("nomad.slice/share.slice", "0,2-3")
	assign("nomad.slice/reserve.slice", "1")
	assign("nomad.slice/reserve.slice/"+alloc+".db.scope", "")
	for _, tc := range []struct {
		name, id, source, own, want string
	}{
		{"a task that shares", "web-" + alloc, "nomad.slice/{id}, nomad.slice/share.slice", "", "0,2-3"},
		{"a task that reserves a core", "db-" + alloc, "nomad.slice/share.slice", "1", ""}, // which the runtime writes
		{"the parts of an id", "reserve.slice-" + alloc, "nomad.slice/{alloc}, nomad.slice/{task}, nomad.slice/share.slice", "", "1"},
		{"no task of Nomad's", "c1", "nomad.slice/{task}, nomad.slice/share.slice", "", "0,2-3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			assign("pod/c1", "")
			testx.Must(t, os.WriteFile(filepath.Join(engine.cgroup, "cpuset.cpus.effective"), []byte("0-3\n"), 0o600))
			spec := goodSpec()
			spec.Linux.Resources = &specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: tc.own}}
			_, err := s.Create(t.Context(), CreateRequest{ID: tc.id, Bundle: testx.NewBundle(t, spec), Options: options.Options{Settings: map[string]string{"CpusetSource": tc.source}}})
			testx.Must(t, err)
			wantCPUSet(t, "after Create", engine, tc.want)
			remove(t, s, tc.id)
		})
	}
}
