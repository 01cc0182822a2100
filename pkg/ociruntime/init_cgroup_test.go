// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"bytes"
	"errors"
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

func TestInitCgroup_InitEntersByItself(t *testing.T) {
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

// Linux 6.18 kills what is cloned into it at birth (initreexec/join.c).
func TestInitCgroup_InWhichAllWereKilled(t *testing.T) {
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
		t.Errorf("exec = %d, %q, %v, want %q in its output", got.status, got.out, got.err, in)
	}
	must(t, b.Init().Signal(unix.SIGKILL))
	b.wait()
}

func TestInitCgroup_WhoEntersByItself(t *testing.T) {
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
		if got := canEnter(tc.config); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// The next version of libcontainer may have its manager elsewhere.
func TestInitCgroup_LibcontainersManagerIsFound(t *testing.T) {
	if managerOf(&libcontainer.Container{}) == nil {
		t.Error("no field cgroupManager of type cgroups.Manager in libcontainer.Container")
	}
}

func TestInitCgroup_InitThatCannotEnterIsMoved(t *testing.T) {
	absent := filepath.Join(t.TempDir(), "absent")
	for name, paths := range map[string]map[string]string{
		"version 1":       {"memory": absent},
		"version 2":       {"": absent},
		"a path too long": {"memory": strings.Repeat("/x", unix.PathMax)},
	} {
		t.Run(name, func(t *testing.T) {
			logged := captureLog(t)
			group := &fakeManager{paths: paths}
			i := requested(t, group)
			init := beginInit(t, i)
			must(t, i.Apply(init.Process.Pid))
			if want := []int{-1, init.Process.Pid}; !slices.Equal(group.applied, want) {
				t.Errorf("Apply of the manager with %v, want %v", group.applied, want)
			}
			if text := logged.String(); !strings.Contains(text, moved) {
				t.Errorf("log = %q, want %q in it", text, moved)
			}
		})
	}
}

func TestInitCgroup_ARequestThatIsTooLongIsNotSent(t *testing.T) {
	many := map[string]string{}
	for n := range initreexec.V1Max + 1 {
		many[strconv.Itoa(n)] = "/" + strconv.Itoa(n)
	}
	for name, paths := range map[string]map[string]string{
		"bytes":       {"memory": strings.Repeat("/x", initreexec.RequestMax)},
		"directories": many,
	} {
		i, err := newInitCgroup(&fakeManager{paths: paths})
		must(t, err)
		if err := i.sendRequest(); !errors.Is(err, unix.E2BIG) {
			t.Errorf("%s: sendRequest = %v, want %v", name, err, unix.E2BIG)
		}
		i.close()
	}
}

// requested is an initCgroup that has sent its request.
func requested(t *testing.T, m cgroups.Manager) *initCgroup {
	t.Helper()
	i, err := newInitCgroup(m)
	must(t, err)
	t.Cleanup(i.close)
	must(t, i.sendRequest())
	return i
}

// beginInit starts a first stage that ends when it is in its cgroup: libcontainer finds no pipe of its own. It has no
// context: the reaper may collect it first, and where two calls of Wait hear so the second would never end with one.
func beginInit(t *testing.T, i *initCgroup) *exec.Cmd {
	t.Helper()
	init := exec.Command("/proc/self/exe", "init")
	init.Env, init.ExtraFiles = []string{"_LIBCONTAINER_PIDFD_SOCK=3"}, []*os.File{i.initSocket}
	must(t, init.Start())
	t.Cleanup(func() { _ = init.Wait() })
	return init
}

// fakeManager makes cgroups, and moves nobody.
type fakeManager struct {
	cgroups.Manager
	paths   map[string]string
	made    []string // by Apply
	applied []int
}

func (m *fakeManager) GetPaths() map[string]string { return m.paths }

func (m *fakeManager) Apply(pid int) error {
	m.applied = append(m.applied, pid)
	for _, dir := range m.made {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// v1Cgroups are directories of cgroups of version 1 that do not exist.
func v1Cgroups(t *testing.T) map[string]string {
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

// One exists before init runs, the other is made by the manager.
func TestInitCgroup_InitEntersVersion1(t *testing.T) {
	logged := captureLog(t)
	group := &fakeManager{paths: v1Cgroups(t)}
	must(t, os.Mkdir(group.paths["memory"], 0o755))
	group.made = []string{group.paths["pids"]}
	i := requested(t, group)
	must(t, i.Apply(beginInit(t, i).Process.Pid))
	if want := []int{-1}; !slices.Equal(group.applied, want) || strings.Contains(logged.String(), moved) {
		t.Errorf("Apply of the manager with %v, want %v; log %q", group.applied, want, logged)
	}
}

// A shim may be killed while its container's init enters what exists.
func TestInitCgroup_InitEndsWithItsParent(t *testing.T) {
	group := &fakeManager{paths: v1Cgroups(t)}
	for _, dir := range group.paths {
		must(t, os.Mkdir(dir, 0o755))
	}
	i := requested(t, group)
	init := beginInit(t, i)
	for name, dir := range group.paths {
		eventually(t, "init enters its cgroup of "+name, func() bool {
			procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			return err == nil && strings.TrimSpace(string(procs)) == strconv.Itoa(init.Process.Pid)
		})
	}
	i.close()
	_ = init.Wait() // with libcontainer's error
	for name, dir := range group.paths {
		eventually(t, "the cgroup of "+name+" is empty", func() bool { return os.Remove(dir) == nil })
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
