// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sandbox.internal/shim/pkg/internal/testx"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/cpuset"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/process/processtest"
	"sandbox.internal/shim/pkg/settings"
)

func TestCPUSet_RefusesSources(t *testing.T) {
	const source, mems = settings.Prefix + "cpuset.source", settings.Prefix + "cpuset.mems"
	v1 := func(m *Manager) { m.cgroups = cgroups.Hybrid }
	for name, tc := range map[string]struct {
		annotations map[string]string
		option      string
		machine     func(*Manager)
		class       error
		want        string
	}{
		"an unknown annotation":      {map[string]string{source + "s": "x"}, "", nil, errdefs.ErrInvalidArgument, `config.json: annotations: "` + source + `s": unknown`},
		"cgroup v1":                  {map[string]string{source: "/shared"}, "", v1, errdefs.ErrFailedPrecondition, `config.json: annotations: ` + source + ` "/shared": needs a machine with cgroup v2`},
		"a source that is not there": {map[string]string{source: "/gone", mems: "true"}, "", nil, errdefs.ErrNotFound, `config.json: annotations: ` + source + `: cpuset source "/gone": cgroup `},
		"sources that are not there": {map[string]string{source: "/gone, /{id}"}, "", nil, errdefs.ErrNotFound, `config.json: annotations: ` + source + ` "/gone, /{id}": none exists, the last: cpuset source "/c1": cgroup `},
		"sources for Nomad's tasks":  {nil, "{alloc}", nil, errdefs.ErrNotFound, `runtime options: CpusetSource: cpuset source "{alloc}": none of the list applies to container "c1"`},
	} {
		t.Run(name, func(t *testing.T) {
			m, r, _ := newFollowed(t)
			if tc.machine != nil {
				tc.machine(m)
			}
			destroyed := 0
			r.Do("destroy", func(process.Config) error { destroyed++; return nil })
			spec := goodSpec()
			spec.Annotations = tc.annotations
			bundle := testx.NewBundle(t, spec)
			before := testx.Files(t, bundle)
			o := allowing(options.Options{Settings: map[string]string{"CpusetSource": tc.option}})
			if tc.option == "" {
				o.Settings = nil
			}
			_, err := m.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle, Options: o})
			testx.WantError(t, err, tc.class, `container "c1": `+tc.want)
			if got := testx.Files(t, bundle); got != before {
				t.Errorf("files = %q, want %q", got, before)
			}
			if made := len(r.Containers()); destroyed != made {
				t.Errorf("%d containers made, %d destroyed", made, destroyed)
			}
		})
	}
}

// newFollowed is a sandbox on a tree of directories in place of cgroups, where /shared has the CPUs 0-1 and the container is
// /pod/c1. Nothing tells it of changes.
func newFollowed(t *testing.T) (m *Manager, r *processtest.Runtime, root string) {
	t.Helper()
	root = t.TempDir()
	for dir, cpus := range map[string]string{"": "0-3", "shared": "0-1", "pod": "0-3", "pod/c1": "0-3"} {
		testx.Must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
		for file, text := range map[string]string{
			"cpuset.cpus": "", "cpuset.cpus.effective": cpus, "cpuset.mems": "", "cpuset.mems.effective": "0",
		} {
			testx.Must(t, os.WriteFile(filepath.Join(root, dir, file), []byte(text+"\n"), 0o600))
		}
	}
	testx.Write(t, filepath.Join(root, "pod/c1/memory.events"), "oom_kill 0\n")
	r = newRuntime()
	r.Group = cgroup.New(map[string]string{"": filepath.Join(root, "pod/c1")})
	m = newManager(t, r)
	m.cgroups, m.cpusets = cgroups.Unified, cpuset.New(root, cpuset.Inotify)
	t.Cleanup(m.Close)
	return m, r, root
}

// createFollowed makes c1, which follows /shared.
func createFollowed(t *testing.T, s *Manager, checkpoint string) *Task {
	t.Helper()
	spec := goodSpec()
	spec.Annotations = map[string]string{settings.Prefix + "cpuset.source": "gone/{id}, shared", settings.Prefix + "cpuset.mems": "true"}
	c, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: testx.NewBundle(t, spec), Checkpoint: checkpoint, Options: allowing(options.Options{})})
	testx.Must(t, err)
	return c
}

func wantCPUSet(t *testing.T, when, root, want string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "pod/c1/cpuset.cpus"))
	if err != nil || string(text) != want+"\n" {
		t.Errorf("%s: cpuset.cpus = %q, %v, want %q", when, text, err, want)
	}
}

func TestCPUSet_FollowsFromCreateToDelete(t *testing.T) {
	s, r, root := newFollowed(t)
	c := createFollowed(t, s, "")
	wantCPUSet(t, "after Create", root, "0-1")
	if _, kept := r.Containers()[0].Written(); !slices.Equal(kept, []string{"0-1/0"}) {
		t.Errorf("kept %q, want 0-1/0", kept)
	}
	got := c.Inspect(0).CPUSet
	if got == nil || filepath.Base(got.Source) != "shared" || got.CPUs != "0-1" || got.Mems != "0" || got.Writes != 2 || got.Error != "" {
		t.Errorf("CPU set = %+v", got)
	}
	r.Do("destroy", func(process.Config) error {
		if c.CPUSet() != nil {
			t.Error("the container follows while its cgroup is removed")
		}
		return nil
	})
	remove(t, s, "c1")
}

func TestCPUSet_IsPinnedByUpdate(t *testing.T) {
	s, r, _ := newFollowed(t)
	c := createFollowed(t, s, "")
	testx.Must(t, c.Init().Start(t.Context()))
	pinned := func() bool {
		state := c.CPUSet()
		return state != nil && state.Pinned
	}
	during := false
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
		r.Do("update", func(process.Config) error { during = pinned(); return tc.refused })
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
	s, _, root := newFollowed(t)
	c := createFollowed(t, s, "/image")
	wantCPUSet(t, "after Create", root, "")
	testx.Must(t, c.Init().Start(t.Context()))
	wantCPUSet(t, "after Start", root, "0-1")
	end(t, s, c)
}

func TestCPUSet_RestoreFailsWithoutTheSource(t *testing.T) {
	s, _, root := newFollowed(t)
	c := createFollowed(t, s, "/image")
	testx.Must(t, os.RemoveAll(filepath.Join(root, "shared")))
	testx.WantError(t, c.Init().Start(t.Context()), errdefs.ErrNotFound, "cpuset.source", "shared")
	remove(t, s, "c1")
}
