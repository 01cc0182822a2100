// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// needNode skips a test that changes settings of the machine where that is not a guest which such tests have for
// themselves: some settings stay until it is off.
func needNode(t *testing.T) {
	t.Helper()
	harness.OursOnly(t, "is what the settings are tried with")
	for name := range strings.SplitSeq(os.Getenv("SHIM_TEST_REQUIRE"), ",") {
		if name == "node" {
			return
		}
	}
	lacking(t, "node", "a virtual machine of its own (make test-node)")
}

// sysctl sets a kernel parameter until the test ends, and skips the test where the kernel has none of that name.
func sysctl(t *testing.T, name, value string) {
	t.Helper()
	file := "/proc/sys/" + name
	before, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("SKIPPED: this kernel has no %s", name)
	}
	if err == nil {
		err = os.WriteFile(file, []byte(value), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(file, before, 0); err != nil {
			t.Error(err)
		}
	})
}

// remount changes the flags of a mount until the test ends.
func remount(t *testing.T, dir, options, before string) {
	t.Helper()
	set := func(options string) error {
		out, err := exec.Command("mount", "-o", "remount,"+options, dir).CombinedOutput()
		if err != nil {
			return errors.New(string(out))
		}
		return nil
	}
	if err := set(options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := set(before); err != nil {
			t.Error(err)
		}
	})
}

// A container runs with each setting of a node, and execs in it, of users too.
func TestNode_SettingsStopNothing(t *testing.T) {
	needNode(t)
	for _, tt := range []struct {
		name string
		set  func(t *testing.T)
	}{
		{"no setting", func(*testing.T) {}},
		{"noexec /run", func(t *testing.T) { t.Helper(); remount(t, "/run", "noexec", "exec") }},
		{"read-only /usr", func(t *testing.T) {
			t.Helper()
			if err := unix.Mount("/usr", "/usr", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := unix.Unmount("/usr", unix.MNT_DETACH); err != nil {
					t.Error(err)
				}
			})
			if err := unix.Mount("", "/usr", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
				t.Fatal(err)
			}
		}},
		{"hidepid", func(t *testing.T) { t.Helper(); remount(t, "/proc", "hidepid=2", "hidepid=0") }},
		{"fs.suid_dumpable=0", func(t *testing.T) { t.Helper(); sysctl(t, "fs/suid_dumpable", "0") }},
		{"vm.memfd_noexec=1", func(t *testing.T) { t.Helper(); sysctl(t, "vm/memfd_noexec", "1") }},
		{"vm.memfd_noexec=2", func(t *testing.T) { t.Helper(); sysctl(t, "vm/memfd_noexec", "2") }},
		// These two stay until the machine is off.
		{"kernel.yama.ptrace_scope=3", func(t *testing.T) { t.Helper(); forever(t, "/proc/sys/kernel/yama/ptrace_scope", "3") }},
		{"lockdown", func(t *testing.T) { t.Helper(); forever(t, "/sys/kernel/security/lockdown", "confidentiality") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t)
			tt.set(t)
			c := e.run("c1", config{}, "sleep", "1000")
			x := c.exec("x1", config{}, nil, "echo", "hello")
			e.must(x.Start(e.ctx), "start the exec")
			x.wantExit(0)
			if got := x.out.String(); got != "hello\n" {
				t.Errorf("the exec prints %q, want hello", got)
			}
			c.kill()
		})
	}
}

// forever writes a file whose value nobody can take back.
func forever(t *testing.T, file, value string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
}

// A node whose namespaces are used up says so, and runs containers again when there are some.
func TestNode_NamespacesUsedUpAreNamed(t *testing.T) {
	needNode(t)
	for _, kind := range []string{"pid", "mnt", "ipc", "uts"} {
		t.Run(kind, func(t *testing.T) {
			e := newEnv(t)
			t.Run("none is left", func(t *testing.T) {
				sysctl(t, "user/max_"+kind+"_namespaces", "0")
				_, err := e.tryCreate("c1", config{}, "true")
				if err == nil || !strings.Contains(strings.ToLower(err.Error()), "no space left on device") {
					t.Errorf("create = %v, want the kernel's reason", err)
				}
			})
			e.run("c2", config{}, "true").wantExit(0)
		})
	}
}
