// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	cgroupmode "github.com/containerd/cgroups/v3"
	"github.com/containerd/log"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/ociruntime/initreexec"
)

const moved = "does not enter its cgroup by itself"

func TestInitEntersItsCgroupByItself(t *testing.T) {
	logged := captureLog(t)
	config := newConfig(t, "true")
	b := create(t, config)
	if text := logged.String(); strings.Contains(text, moved) {
		t.Error(text)
	}
	for _, dir := range cgroupDirs(t, config) {
		procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		must(t, err)
		if got, want := strings.Fields(string(procs)), strconv.Itoa(b.Init().Pid()); !slices.Equal(got, []string{want}) {
			t.Errorf("processes of %s = %v, want init alone, %s", dir, got, want)
		}
	}
}

// Linux 6.18 kills what is cloned into it at birth (reentry/join.c).
func TestACgroupInWhichAllWereKilled(t *testing.T) {
	config := newConfig(t, "sleep", "1000")
	root := "/sys/fs/cgroup"
	switch cgroupmode.Mode() {
	case cgroupmode.Hybrid:
		root = "/sys/fs/cgroup/unified"
	case cgroupmode.Legacy, cgroupmode.Unavailable:
		lacking(t, "cgroup2", "cgroup v2")
	case cgroupmode.Unified:
	}
	dir := filepath.Join(root, config.Spec.Linux.CgroupsPath)
	must(t, os.MkdirAll(dir, 0o755))
	if err := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0); err != nil {
		must(t, os.Remove(dir))
		lacking(t, "cgroup.kill", "Linux 5.14: "+err.Error())
	}
	b := create(t, config).start()
	got := b.exec(t.Context(), command("cat", "/proc/self/cgroup"))
	if in := "::" + config.Spec.Linux.CgroupsPath + "\n"; got.err != nil || !strings.Contains(got.out, in) {
		t.Errorf("exec = %+v, want %q in its output", got, in)
	}
	must(t, b.Init().Signal(unix.SIGKILL))
	b.wait()
}

func TestWhoEntersByItself(t *testing.T) {
	for _, tc := range []struct {
		name   string
		config configs.Config
		want   bool
	}{
		{"cgroupfs", configs.Config{Cgroups: &cgroups.Cgroup{}}, true},
		{"systemd", configs.Config{Cgroups: &cgroups.Cgroup{Systemd: true}}, false},
		{"rootless", configs.Config{Cgroups: &cgroups.Cgroup{}, RootlessCgroups: true}, false},
		{"Intel RDT", configs.Config{Cgroups: &cgroups.Cgroup{}, IntelRdt: &configs.IntelRdt{ClosID: "guaranteed"}}, false},
	} {
		if got := entersItself(tc.config); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// The next version of libcontainer may have its manager elsewhere.
func TestLibcontainersManagerIsFound(t *testing.T) {
	if managerOf(&libcontainer.Container{}) == nil {
		t.Error("no field cgroupManager of type cgroups.Manager in libcontainer.Container")
	}
}

func TestInitThatCannotEnterIsMoved(t *testing.T) {
	absent := filepath.Join(t.TempDir(), "absent")
	for name, paths := range map[string]map[string]string{
		"version 1":      {"memory": absent},
		"version 2":      {"": absent},
		"paths too long": {"memory": strings.Repeat("/x", 40000)},
	} {
		t.Run(name, func(t *testing.T) {
			logged := captureLog(t)
			group := &movedTo{paths: paths}
			b := newBirth(t, group)
			b.announce()
			init := beginInit(t, b)
			must(t, b.Apply(init.Process.Pid))
			if want := []int{-1, init.Process.Pid}; !slices.Equal(group.applied, want) {
				t.Errorf("Apply of the manager with %v, want %v", group.applied, want)
			}
			if text := logged.String(); !strings.Contains(text, moved) {
				t.Errorf("log = %q, want %q in it", text, moved)
			}
		})
	}
}

func newBirth(t *testing.T, m cgroups.Manager) *birth {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	return &birth{Manager: m, ours: os.NewFile(uintptr(pair[0]), "socket"), theirs: os.NewFile(uintptr(pair[1]), "socket")}
}

// beginInit starts a first stage that ends when it is in its cgroup: libcontainer finds no pipe of its own. It has no context: the reaper
// may collect it first, and where two calls of Wait hear so the second would never end with one.
func beginInit(t *testing.T, b *birth) *exec.Cmd {
	t.Helper()
	init := exec.Command("/proc/self/exe", "init")
	init.Env, init.ExtraFiles = []string{"_LIBCONTAINER_PIDFD_SOCK=3"}, []*os.File{b.theirs}
	must(t, init.Start())
	t.Cleanup(func() { _ = init.Wait() })
	return init
}

// movedTo is a cgroup into which its manager moves nobody.
type movedTo struct {
	cgroups.Manager
	paths   map[string]string
	parents []string // what the manager makes
	applied []int
}

func (m *movedTo) GetPaths() map[string]string { return m.paths }

func (m *movedTo) Apply(pid int) error {
	m.applied = append(m.applied, pid)
	for _, dir := range m.parents {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// twoOfVersion1 are directories of cgroups of version 1 that do not exist.
func twoOfVersion1(t *testing.T) map[string]string {
	t.Helper()
	if cgroupmode.Mode() == cgroupmode.Unified {
		lacking(t, "cgroup1", "cgroup v1")
	}
	paths := map[string]string{}
	for _, name := range []string{"memory", "pids"} {
		dir, err := os.MkdirTemp(filepath.Join("/sys/fs/cgroup", name), "shim-test-")
		must(t, err)
		must(t, os.Remove(dir))
		t.Cleanup(func() { _ = os.Remove(dir) })
		paths[name] = dir
	}
	return paths
}

func TestInitMakesItsCgroupsOfVersion1(t *testing.T) {
	logged := captureLog(t)
	group := &movedTo{paths: twoOfVersion1(t)}
	b := newBirth(t, group)
	b.announce()
	must(t, b.Apply(beginInit(t, b).Process.Pid))
	if want := []int{-1}; !slices.Equal(group.applied, want) || strings.Contains(logged.String(), moved) {
		t.Errorf("Apply of the manager with %v, want %v; log %q", group.applied, want, logged)
	}
	for name, dir := range group.paths {
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The first can be made at once, the second only when the manager has made what is above it.
func TestInitEntersWhatItCouldNotMake(t *testing.T) {
	logged := captureLog(t)
	group := &movedTo{paths: twoOfVersion1(t)}
	above := group.paths["pids"]
	group.paths["pids"] = filepath.Join(above, "below")
	group.parents = []string{group.paths["pids"]}
	t.Cleanup(func() { _ = os.Remove(filepath.Join(above, "below")) })
	b := newBirth(t, group)
	b.announce()
	must(t, b.Apply(beginInit(t, b).Process.Pid))
	if want := []int{-1}; !slices.Equal(group.applied, want) || strings.Contains(logged.String(), moved) {
		t.Errorf("Apply of the manager with %v, want %v; log %q", group.applied, want, logged)
	}
}

// Who cleans up after a shim that was killed may have done so before init made anything.
func TestInitWhoseParentIsGoneLeavesNothing(t *testing.T) {
	group := &movedTo{paths: twoOfVersion1(t)}
	b := newBirth(t, group)
	b.announce()
	init := beginInit(t, b)
	for name, dir := range group.paths {
		eventually(t, "init makes and enters its cgroup of "+name, func() bool {
			procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			return err == nil && strings.TrimSpace(string(procs)) == strconv.Itoa(init.Process.Pid)
		})
	}
	must(t, b.ours.Close())
	_ = init.Wait() // with libcontainer's error
	for name, dir := range group.paths {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %s is left: %v", name, dir, err)
		}
	}
}

// delete may also have done so when init was told to enter, and heard nothing of it yet.
func TestInitThatIsLateLeavesNothing(t *testing.T) {
	group := &movedTo{paths: twoOfVersion1(t)}
	made := slices.Collect(maps.Values(group.paths))
	group.paths["cpuset"] = filepath.Join(t.TempDir(), "absent")
	b := newBirth(t, group)
	b.announce()
	must(t, b.send(initreexec.Enter, entering(b.places())))
	must(t, b.ours.Close())
	_ = beginInit(t, b).Wait() // with libcontainer's error
	for _, dir := range made {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
}

// lines is a buffer that is written to and read at the same time.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// captureLog has what is logged during the test.
func captureLog(t *testing.T) *lines {
	t.Helper()
	var text lines
	logger := log.L.Logger
	out, level := logger.Out, logger.GetLevel()
	logger.SetOutput(&text)
	logger.SetLevel(log.DebugLevel)
	t.Cleanup(func() { logger.SetOutput(out); logger.SetLevel(level) })
	return &text
}
