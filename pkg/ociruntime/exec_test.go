// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/process"
)

func TestExec_UnsupportedByTheLauncher(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*configs.Config, *libcontainer.Process)
		want   string
	}{
		{"an ordinary process", func(*configs.Config, *libcontainer.Process) {}, ""},
		{"a rootless shim", func(c *configs.Config, _ *libcontainer.Process) {
			c.RootlessEUID = true
		}, "the shim is not root"},
		{"a personality", func(c *configs.Config, _ *libcontainer.Process) {
			c.Personality = &configs.LinuxPersonality{}
		}, "personality"},
		{"a memory policy", func(c *configs.Config, _ *libcontainer.Process) {
			c.MemoryPolicy = &configs.LinuxMemoryPolicy{}
		}, "memory policy"},
		{"RDT", func(c *configs.Config, _ *libcontainer.Process) { c.IntelRdt = &configs.IntelRdt{} }, "Intel RDT"},
		{"an agent", func(c *configs.Config, _ *libcontainer.Process) {
			c.Seccomp = &configs.Seccomp{Syscalls: []*configs.Syscall{{Action: configs.Notify}}}
		}, "seccomp agent"},
		{"the host's mounts", func(c *configs.Config, _ *libcontainer.Process) { c.Namespaces = nil }, "no mount namespace"},
		{"a scheduler that a fork resets", func(c *configs.Config, p *libcontainer.Process) {
			c.Scheduler = &configs.Scheduler{Policy: specs.SchedBatch}
			p.Scheduler = &configs.Scheduler{
				Policy: specs.SchedBatch, Flags: []specs.LinuxSchedulerFlag{specs.SchedFlagResetOnFork},
			}
		}, "scheduler that a fork changes"},
		{"a scheduler that cannot fork", func(c *configs.Config, _ *libcontainer.Process) {
			c.Scheduler = &configs.Scheduler{Policy: specs.SchedDeadline}
		}, "scheduler that a fork changes"},
		{"a zero byte", func(_ *configs.Config, p *libcontainer.Process) {
			p.Args = []string{"a\x00b"}
		}, "zero byte in a string"},
	} {
		config := &configs.Config{Namespaces: configs.Namespaces{{Type: configs.NEWNS}}}
		p := &libcontainer.Process{Args: []string{"true"}}
		tc.change(config, p)
		if got := unsupportedReason(config, p); got != tc.want {
			t.Errorf("%s: unsupportedReason = %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestExec_WhatTheLauncherDoesNotSupport(t *testing.T) {
	wantNoLeaks(t)
	c := newConfig(t, "sleep", "1000")
	c.Spec.Linux.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux}
	b := create(t, c).start()
	lp := &libcontainer.Process{Args: []string{"true"}}
	if _, err := b.RuntimeContainer.(*container).command(lp, noStreams(t)); !errors.As(err, &unsupported{}) {
		t.Errorf("command with a personality = %v, want not covered", err)
	}
	if got, want := b.exec(t.Context(), command("sh", "-c", "exit 4")), (result{4, "", nil}); got != want {
		t.Errorf("exec = %+v, want %+v", got, want)
	}
}

// wantOnlyInit fails when a failed exec left a process in the container.
func wantOnlyInit(t *testing.T, b *box) {
	t.Helper()
	eventually(t, "the end of all but init", func() bool {
		return !slices.ContainsFunc(members(t, b.config), func(pid int) bool { return pid != b.Init().Pid() })
	})
}

func TestExec_InAFrozenContainerEndsWithItsContext(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		t.Run(fmt.Sprintf("terminal %v", terminal), func(t *testing.T) {
			wantNoLeaks(t)
			b := create(t, newConfig(t, "sleep", "1000")).start()
			must(t, b.Pause())
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			p := command("true")
			p.Terminal = terminal
			if got := b.exec(ctx, p); !errdefs.IsDeadlineExceeded(got.err) {
				t.Errorf("exec = %v, want deadline exceeded", got.err)
			}
			wantOnlyInit(t, b)
			must(t, b.Resume())
			if got := b.exec(t.Context(), command("true")); got != (result{}) {
				t.Errorf("exec after the thaw = %+v, want success", got)
			}
		})
	}
}

func TestExec_InADeadContainer(t *testing.T) {
	wantNoLeaks(t)
	b := create(t, newConfig(t, "sleep", "1000")).start()
	must(t, b.Init().Signal(syscall.SIGKILL))
	b.wait()
	if got := b.exec(t.Context(), command("true")); got.err == nil {
		t.Errorf("exec = %+v, want an error", got)
	}
}

// Init dies at any moment of an exec. Whatever comes of the exec, it does not
// hang, and leaves nothing.
func TestExec_WhileInitDies(t *testing.T) {
	wantNoLeaks(t)
	for range 20 {
		b := create(t, newConfig(t, "sleep", "1000")).start()
		begun := make(chan struct{})
		go func() { close(begun); _ = b.Init().Signal(syscall.SIGKILL) }() // wait collects it
		<-begun
		got := b.exec(t.Context(), command("true"))
		if got.err == nil && got.status != 0 && got.status != 128+9 {
			t.Errorf("exec = %+v, want an error, success or SIGKILL", got)
		}
		b.wait()
	}
}

func TestExec_Interrupted(t *testing.T) {
	wantNoLeaks(t)
	b := create(t, newConfig(t, "sleep", "1000")).start()
	for i := range 30 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*50*time.Microsecond)
		got := b.exec(ctx, command("true"))
		cancel()
		if got.err != nil && !errdefs.IsDeadlineExceeded(got.err) {
			t.Errorf("exec within %d µs = %v, want deadline exceeded or success", i*50, got.err)
		}
	}
	wantOnlyInit(t, b)
}

// A process that is moved into a cgroup is counted, but never refused.
func TestExec_AtTheLimitOfProcesses(t *testing.T) {
	for name, change := range map[string]func(*process.Config){
		"in the container's cgroup": func(*process.Config) {},
		"with limits":               func(c *process.Config) { c.ExecLimits = &limit.Limits{Pids: 5} },
		"with a terminal":           func(c *process.Config) { c.Spec.Process.Terminal, c.IO.Terminal = true, true },
	} {
		t.Run(name, func(t *testing.T) {
			wantNoLeaks(t)
			c := newConfig(t, "sh", "-c", "sleep 1000 & sleep 1000 & wait")
			c.Spec.Linux.Resources = &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: new(int64(3))}}
			change(&c)
			b := create(t, c).start()
			exec := func() string {
				p := command("cat", "/proc/self/cgroup")
				p.Terminal = c.IO.Terminal
				got := b.exec(t.Context(), p)
				if got.err != nil || got.status != 0 || got.out == "" {
					t.Errorf("exec = %d, %q, %v, want success", got.status, got.out, got.err)
				}
				return regexp.MustCompile(`exec-\d+`).ReplaceAllString(got.out, "exec")
			}
			must(t, b.Update(&specs.LinuxResources{Pids: &specs.LinuxPids{Limit: new(int64(20))}}))
			want := exec()
			must(t, b.Update(c.Spec.Linux.Resources))
			eventually(t, "the limit", func() bool {
				n, err := os.ReadFile(b.Cgroup().File("pids.current"))
				return err == nil && string(n) == "3\n"
			})
			var probes sync.WaitGroup
			for range 4 {
				probes.Go(func() {
					for range max(1, 5/slowness()) {
						if got := exec(); got != want {
							t.Errorf("cgroups of an exec at the limit:\n%s, want those below it:\n%s", got, want)
						}
					}
				})
			}
			probes.Wait()
		})
	}
}

// haproxy and others change their root, which is not that of the container.
func TestExec_BesideAnInitThatChangedItsRoot(t *testing.T) {
	b := withProbe(t, func(c *process.Config) {
		must(t, os.Symlink("busybox", filepath.Join(c.Rootfs, "bin/chroot")))
		must(t, os.MkdirAll(filepath.Join(c.Rootfs, "tmp/bin"), 0o755))
		must(t, os.Link(filepath.Join(c.Rootfs, "bin/busybox"), filepath.Join(c.Rootfs, "tmp/bin/sleep")))
		c.Spec.Process.Args = []string{"chroot", "/tmp", "/bin/sleep", "1000"}
	})
	eventually(t, "the change of the root", func() bool {
		root, err := os.Readlink(fmt.Sprintf("/proc/%d/root", b.Init().Pid()))
		return err == nil && strings.HasSuffix(root, "/tmp")
	})
	for _, terminal := range []bool{false, true} {
		p := probed(user(1000))
		p.Terminal = terminal
		if got := b.wantSame(p); got.Status != 7 {
			t.Errorf("libcontainer: %+v, want the probe's status 7", got)
		}
	}
}

// Whatever the container makes the launcher run instead of a program of its
// own, it is not the shim's executable (CVE-2019-5736).
func TestExec_OfOurOwnExecutable(t *testing.T) {
	before := ownHash(t)
	b := withProbe(t, func(c *process.Config) {
		must(t, os.Symlink("/proc/self/exe", filepath.Join(c.Rootfs, "bin/self")))
		script := filepath.Join(c.Rootfs, "bin/script")
		must(t, os.WriteFile(script, []byte("#!/proc/self/exe\n"), 0o755)) //nolint:gosec // executable
	})
	if got := b.outcome(byLauncher, command("script", "-v")); got.Status != 255 || strings.Join(got.Stdout, "") != "" {
		t.Errorf("exec of a script of it = %+v, want status 255 of the launcher, which finds no request", got)
	}
	for _, name := range []string{"self", "/proc/self/exe"} { // in no /proc of the container while it is looked for
		got := b.outcome(byLauncher, command(name, "-v"))
		if !strings.Contains(got.Err, "not found") && !strings.Contains(got.Err, "no such file") {
			t.Errorf("exec of %s = %+v, want that it is not found", name, got)
		}
	}
	if after := ownHash(t); after != before {
		t.Errorf("our executable changed from %s to %s", before, after)
	}
}
