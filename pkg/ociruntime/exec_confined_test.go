// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runc/libcontainer/apparmor"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/selinux/go-selinux"
	libseccomp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

// confinement is a way to confine containers, and what the kernel says of a process that is confined so.
type confinement struct {
	prepare   func(*process.Config) // a container in which /forbidden is forbidden to what is confined
	set       func(*specs.Process)
	other     func(*specs.Process) // in another way
	current   string
	inherited bool // an exec that asks for nothing has what the container has
}

// confinedVariants are those that change the order of what the launcher does.
func confinedVariants() []variant {
	names := []string{
		"nothing asked for", "a user with groups", "capabilities of a user", "ambient capabilities", "no new privileges",
		"no new privileges of a user", "limits", "a terminal", "a terminal with a size", "a directory of root's",
	}
	return slices.DeleteFunc(slices.Clone(variants), func(v variant) bool { return !slices.Contains(names, v.name) })
}

// wantConfined compares the launcher with libcontainer in containers that are confined, and in those where only the
// exec is.
func wantConfined(t *testing.T, by confinement) {
	t.Helper()
	for i, w := range []configVariant{
		{"plain", nil},
		{"no new keyring", func(c *process.Config) { c.NoNewKeyring = true }},
		{"user namespace", inUserNamespace},
		{"seccomp", filtered(t, nil)},
		{"seccomp that forbids terminals", filtered(t, deny("ioctl"))},
	} {
		t.Run(w.name, func(t *testing.T) {
			prepare := func(c *process.Config) {
				if w.change != nil {
					w.change(c)
				}
				by.prepare(c)
			}
			confined := withProbe(t, func(c *process.Config) { prepare(c); by.set(c.Spec.Process) })
			free := withProbe(t, prepare)
			for j, v := range confinedVariants() {
				if (i+j)%slowness() != 0 {
					continue // as in TestLauncher_DoesWhatLibcontainerDoes
				}
				t.Run(v.name, func(t *testing.T) {
					by.wantProbe(t, confined, v)
					by.wantProbe(t, free, v)
				})
			}
			if got := by.confines(confined.wantSame(probed(nil))); got != by.inherited {
				t.Errorf("an exec that asks for no confinement has the container's: %v, want %v", got, by.inherited)
			}
			if by.confines(confined.wantSame(probed(by.other))) {
				t.Error("an exec that asks for another confinement has that of the container")
			}
		})
	}
	t.Run("another /proc", func(t *testing.T) {
		b := withProbe(t, func(c *process.Config) {
			by.prepare(c)
			by.set(c.Spec.Process)
			c.Spec.Process.Args = []string{"sh", "-c", "busybox mount -t tmpfs tmpfs /proc && >/mounted && exec sleep 1000"}
		})
		b.awaitFile("mounted")
		for _, terminal := range []bool{false, true} {
			p := probed(by.set)
			p.Terminal = terminal
			if got := b.wantSame(p); !got.has(forbidden) {
				t.Errorf("the probe, with a terminal: %v, is not confined: %v", terminal, got)
			}
		}
	})
}

// awaitFile waits until the container has made a file in its root.
func (b *box) awaitFile(name string) {
	b.t.Helper()
	eventually(b.t, name, func() bool {
		_, err := os.Stat(filepath.Join(b.config.Rootfs, name))
		return err == nil
	})
}

// has reports whether the probe wrote the line.
func (o outcome) has(line string) bool {
	return slices.ContainsFunc(o.Stdout, func(l string) bool { return strings.TrimRight(l, "\r\n") == line })
}

const forbidden = `open("/forbidden", O_RDONLY): error 13`

// confines reports whether the probe had this confinement.
func (by confinement) confines(o outcome) bool {
	return o.has("/proc/self/attr/current: " + by.current)
}

func (by confinement) wantProbe(t *testing.T, b *box, v variant) {
	t.Helper()
	p := probed(v.change)
	by.set(p)
	on := *b
	on.t = t
	got := on.wantSame(p)
	if !by.confines(got) || !got.has(forbidden) {
		t.Errorf("status %d, error %s, want the confinement %s, which forbids /forbidden:\n%s",
			got.Status, got.Err, by.current, strings.Join(got.Stdout, ""))
	}
}

func TestLauncher_ConfinesByAppArmor(t *testing.T) {
	if !apparmor.IsEnabled() {
		lacking(t, "apparmor", "a kernel with AppArmor")
	}
	name := fmt.Sprintf("shim-test-%d", os.Getpid())
	loadProfile(t, name, "deny /forbidden r,")
	loadProfile(t, name+"-other", "")
	set := func(name string) func(*specs.Process) { return func(p *specs.Process) { p.ApparmorProfile = name } }
	wantConfined(t, confinement{
		prepare: func(*process.Config) {}, set: set(name), other: set(name + "-other"), current: name + " (enforce)",
	})
}

// needSELinux skips the test, or fails it, where there is no SELinux with the policy of integration/vm/guest.
func needSELinux(t *testing.T) {
	t.Helper()
	if !selinux.GetEnabled() || selinux.SecurityCheckContext(fileLabel("forbidden_t")) != nil {
		lacking(t, "selinux", "SELinux with the policy of make test-selinux")
	}
}

func processLabel(name string) string { return "system_u:system_r:" + name + ":s0:c1,c2" }

func fileLabel(name string) string { return "system_u:object_r:" + name + ":s0" }

func TestLauncher_ConfinesBySELinux(t *testing.T) {
	needSELinux(t)
	set := func(name string) func(*specs.Process) {
		return func(p *specs.Process) { p.SelinuxLabel = processLabel(name) }
	}
	by := confinement{
		prepare: func(c *process.Config) {
			must(t, selinux.SetFileLabel(filepath.Join(c.Rootfs, "forbidden"), fileLabel("forbidden_t")))
			c.Spec.Linux.MountLabel = fileLabel("container_file_t")
		},
		set: set("container_t"), other: set("other_t"), current: processLabel("container_t"), inherited: true,
	}
	wantConfined(t, by)
	t.Run("keyring", func(t *testing.T) {
		b := withProbe(t, func(c *process.Config) {
			by.prepare(c)
			by.set(c.Spec.Process)
			c.Spec.Process.Args = []string{"probe", "leave keyring"} // so that each exec makes it
		})
		b.awaitFile("left")
		if got := b.wantSame(probed(by.set)); !slices.ContainsFunc(got.Stdout, func(line string) bool {
			return strings.HasSuffix(line, ";_ses."+b.config.ID+"\n")
		}) {
			t.Errorf("the exec may not use its keyring, which must have its label:\n%s", strings.Join(got.Stdout, ""))
		}
	})
	t.Run("refused", func(t *testing.T) {
		b := withProbe(t, by.prepare)
		got := b.wantSame(probed(set("refused_t")))
		if want := "exec /bin/probe: permission denied\n"; got.Status != 255 || !slices.Contains(got.Stderr, want) {
			t.Errorf("an exec with a label that it may not have = %+v, want status 255 and %q", got, want)
		}
	})
}

// loadProfile loads a profile that allows all but what its rules deny.
func loadProfile(t *testing.T, name, rules string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "profile")
	text := fmt.Sprintf(`profile %s flags=(attach_disconnected,mediate_deleted) {
  capability, dbus, file, mount, network, pivot_root, ptrace, signal, umount, unix,
  %s
}
`, name, rules)
	must(t, os.WriteFile(file, []byte(text), 0o600))
	parser := func(action string) error {
		defer testReaper.Suspend()() // a child that only we wait for
		out, err := exec.Command("/sbin/apparmor_parser", "--skip-cache", action, file).CombinedOutput()
		if err != nil {
			return fmt.Errorf("apparmor_parser %s: %w: %s", action, err, out)
		}
		return nil
	}
	must(t, parser("--replace"))
	t.Cleanup(func() { must(t, parser("--remove")) })
}

// On any kernel: where there is no SELinux, all labels are refused.
func TestLauncher_RefusesTheLabelThatLibcontainerRefuses(t *testing.T) {
	b, keyring := withProbe(t, nil), withProbe(t, func(c *process.Config) { c.NoNewKeyring = true })
	const failed = "write /proc/self/attr/keycreate: invalid argument"
	label := func(p *specs.Process) { p.SelinuxLabel = "nonsense" }
	b.wantRefused(t, label, failed)
	b.wantRefused(t, func(p *specs.Process) { label(p); p.Terminal = true }, failed)
	keyring.wantRefused(t, label, "write /proc/thread-self/attr/exec: invalid argument")
}

func TestLauncher_RefusesTheProfileThatLibcontainerRefuses(t *testing.T) {
	if !apparmor.IsEnabled() {
		lacking(t, "apparmor", "a kernel with AppArmor")
	}
	b := withProbe(t, nil)
	const failed = "apparmor failed to apply profile: write /proc/thread-self/attr/apparmor/exec: " +
		"no such file or directory"
	profile := func(p *specs.Process) { p.ApparmorProfile = "shim-test-no-such-profile" }
	b.wantRefused(t, profile, failed)
	b.wantRefused(t, func(p *specs.Process) { profile(p); p.Terminal = true }, failed)
	b.wantRefused(t, func(p *specs.Process) { profile(p); p.NoNewPrivileges = true }, failed)
	b.wantRefused(t, func(p *specs.Process) { profile(p); p.Args = []string{"nope"} }, failed)
	b.wantRefused(t, func(p *specs.Process) { profile(p); p.Cwd = "/nope" }, "no such file or directory")
}

// wantRefused compares what both say of an exec that neither starts.
func (b *box) wantRefused(t *testing.T, change func(*specs.Process), want string) {
	t.Helper()
	on := *b
	on.t = t
	if got := on.wantSame(probed(change)); !strings.HasSuffix(got.Err, want) {
		t.Errorf("libcontainer: status %d, error %q, want one that ends with %q", got.Status, got.Err, want)
	}
}

// everySyscall are the names of all system calls but those of no use in a container, as a profile allows them.
func everySyscall(tb testing.TB) []string {
	tb.Helper()
	const beyondAll = 1000 // numbers of this processor; other processors have some of their own
	var names []string
	for number := range libseccomp.ScmpSyscall(beyondAll) {
		name, err := number.GetName()
		if err == nil && !slices.Contains([]string{"bpf", "unshare", "mount", "clone3", "keyctl", "add_key", "kcmp"}, name) {
			names = append(names, name)
		}
	}
	return names
}

// architectures are those of a profile for this processor.
func architectures() []specs.Arch {
	if runtime.GOARCH == "arm64" {
		return []specs.Arch{specs.ArchAARCH64, specs.ArchARM}
	}
	return []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32}
}

func filtered(tb testing.TB, change func(*specs.LinuxSeccomp)) func(*process.Config) {
	tb.Helper()
	return func(c *process.Config) {
		eperm := uint(unix.EPERM)
		c.Spec.Linux.Seccomp = &specs.LinuxSeccomp{
			DefaultAction: specs.ActErrno, DefaultErrnoRet: &eperm,
			Architectures: architectures(),
			Syscalls: []specs.LinuxSyscall{
				{Names: everySyscall(tb), Action: specs.ActAllow},
				{Names: []string{"clone3"}, Action: specs.ActErrno, ErrnoRet: new(uint(unix.ENOSYS))},
				{
					Names: []string{"kcmp"}, Action: specs.ActAllow,
					Args: []specs.LinuxSeccompArg{{Index: 2, Value: 1, Op: specs.OpEqualTo}},
				},
			},
		}
		if change != nil {
			change(c.Spec.Linux.Seccomp)
		}
	}
}

// deny takes calls from those that the profile allows.
func deny(calls ...string) func(*specs.LinuxSeccomp) {
	return func(s *specs.LinuxSeccomp) {
		s.Syscalls[0].Names = slices.DeleteFunc(s.Syscalls[0].Names,
			func(name string) bool { return slices.Contains(calls, name) })
	}
}
