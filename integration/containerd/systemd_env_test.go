// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"

	"sandbox.internal/shim/integration/harness"
)

// newSystemdEnv is newEnv for a test that has systemd make the cgroups.
func newSystemdEnv(t *testing.T) *env {
	t.Helper()
	return newSystemdEnvOn(t, shared)
}

// newSystemdEnvOn is the same on a containerd of the test's own.
func newSystemdEnvOn(t *testing.T, c *harness.Containerd) *env {
	t.Helper()
	if _, err := os.Stat("/run/systemd/system"); err != nil { // sd_booted(3)
		lacking(t, "systemd", "systemd as pid 1 (make test-systemd)")
	}
	e := newEnvOn(t, c)
	e.Cleanup(func() {
		harness.Eventually(e, "all scopes are forgotten", func() error {
			if text := systemctl(e, "list-units", "--all", "--plain", "--no-legend",
				"*"+e.namespace+"*.scope"); strings.TrimSpace(text) != "" {
				return fmt.Errorf("there are\n%s", text)
			}
			return nil
		})
		systemctl(e, "stop", e.slice())
	})
	return e
}

// needCgroup2 skips a test where cgroup v2 is not the only one.
func needCgroup2(tb testing.TB) {
	tb.Helper()
	if !unified() {
		lacking(tb, "cgroup2", "cgroup v2 alone (make test-v2)")
	}
}

func unified() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err == nil
}

// needGuest skips a test that takes D-Bus away from everybody on the machine.
func needGuest(tb testing.TB) {
	tb.Helper()
	if _, err := os.Stat("/run/guest"); err != nil {
		lacking(tb, "guest", "a virtual machine of its own (make test-systemd)")
	}
}

// slice is of the test's own. Systemd makes it with the first unit in it.
func (e *env) slice() string { return e.namespace + ".slice" }

// scoped puts a container into a scope.
func (e *env) scoped(id string) oci.SpecOpts {
	return oci.WithCgroup(e.slice() + ":test:" + e.namespace + "-" + id)
}

// scope is the name of that scope.
func (e *env) scopeOf(id string) string { return "test-" + e.namespace + "-" + id + ".scope" }

// systemctl runs systemctl and returns what it says; that it says no is for the caller to see.
func systemctl(tb testing.TB, args ...string) string {
	tb.Helper()
	out, err := exec.Command("systemctl", args...).CombinedOutput()
	var status *exec.ExitError
	if err != nil && !errors.As(err, &status) {
		tb.Fatalf("systemctl %s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

// systemdVersion is the number that systemd has for a version.
func systemdVersion(tb testing.TB) int {
	tb.Helper()
	text := property(tb, "", "Version") // "247.3-7+deb11u8", "257.13-1~deb13u1"
	var version int
	if _, err := fmt.Sscanf(text, "%d", &version); err != nil {
		tb.Fatalf("version %q of systemd: %v", text, err)
	}
	return version
}

// property asks systemd for one property of a unit.
func property(tb testing.TB, unit, name string) string {
	tb.Helper()
	args := []string{"show", "--value", "--property", name}
	if unit != "" { // else it is systemd's own
		args = append(args, unit)
	}
	return strings.TrimSpace(systemctl(tb, args...))
}

// wantProperty compares a property of a unit.
func wantProperty(tb testing.TB, unit, name, want string) {
	tb.Helper()
	wantProperties(tb, unit, map[string]string{name: want})
}

// wantProperties compares several, which systemd is asked for at once.
func wantProperties(tb testing.TB, unit string, want map[string]string) {
	tb.Helper()
	names := slices.Sorted(maps.Keys(want))
	got := map[string]string{}
	for line := range strings.Lines(systemctl(tb, "show", "--property", strings.Join(names, ","), unit)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		got[name] = value
	}
	for _, name := range names {
		if got[name] != want[name] {
			tb.Errorf("%s of %s = %q, want %q", name, unit, got[name], want[name])
		}
	}
}

// wantNoUnit checks that systemd has forgotten a unit and that its cgroup is gone.
func wantNoUnit(tb testing.TB, unit, dir string) {
	tb.Helper()
	harness.Eventually(tb, unit+" is forgotten", func() error {
		if state := property(tb, unit, "LoadState"); state != "not-found" {
			return fmt.Errorf("it is %s", state)
		}
		return nil
	})
	if dir == "" {
		return
	}
	roots, err := harness.CgroupRoots()
	if err != nil {
		tb.Fatal(err)
	}
	for _, root := range roots {
		dir := filepath.Join(root, strings.TrimPrefix(dir, memoryRoot()))
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			tb.Errorf("cgroup %s of %s: %v, want it gone", dir, unit, err)
		}
	}
}

// memoryRoot is where the hierarchy of the memory controller is mounted.
func memoryRoot() string {
	if unified() {
		return "/sys/fs/cgroup"
	}
	return "/sys/fs/cgroup/memory"
}

// cgroupOf is the directory of a unit that runs, on cgroup v1 the one for its memory.
func cgroupOf(tb testing.TB, unit string) string {
	tb.Helper()
	path := property(tb, unit, "ControlGroup")
	if path == "" {
		tb.Fatalf("%s has no cgroup: %s", unit, systemctl(tb, "status", unit))
	}
	return filepath.Join(memoryRoot(), path)
}

// control reads a control file.
func control(tb testing.TB, dir, file string) string {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		tb.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// writeControl writes to a control file.
func writeControl(tb testing.TB, dir, file, text string) {
	tb.Helper()
	if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0); err != nil {
		tb.Fatal(err)
	}
}
