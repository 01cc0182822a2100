// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

// zombies are the children of this process that are dead and not waited for.
func zombies(t *testing.T) (dead []int) {
	t.Helper()
	lists, err := filepath.Glob("/proc/self/task/*/children")
	must(t, err)
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // the thread ended
		}
		for field := range bytes.FieldsSeq(text) {
			pid, err := strconv.Atoi(string(field))
			must(t, err)
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err == nil && bytes.Contains(stat, []byte(") Z ")) {
				dead = append(dead, pid)
			}
		}
	}
	return dead
}

// execAtOnce starts n execs of args at the same time and returns what they left.
func (b *box) execAtOnce(n int, args ...string) []result {
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	defer cancel()
	results := make([]result, n)
	var work sync.WaitGroup
	for i := range results {
		work.Go(func() { results[i] = b.exec(ctx, command(args...)) })
	}
	work.Wait()
	return results
}

// What libcontainer opens as its passwd file the container can make anything of.
func TestExec_APasswdThatIsNoRegularFileIsNone(t *testing.T) {
	for kind, put := range map[string]func(path string) error{
		"fifo":      func(path string) error { return unix.Mkfifo(path, 0o644) },
		"directory": func(path string) error { return os.Mkdir(path, 0o755) },
		"terminal":  func(path string) error { return os.Symlink("/dev/pts/ptmx", path) },
		"descriptor": func(path string) error {
			text := []byte("root:x:0:0:root:/secret:/bin/sh\n")
			//nolint:gosec // as in any system
			return errors.Join(os.WriteFile(path+"-", text, 0o644), os.Symlink("/proc/self/root/etc/passwd-", path))
		},
		"endless": func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o644), os.Truncate(path, 1<<40)) //nolint:gosec // as in any system
		},
	} {
		for _, pids := range []string{"own", "host's"} {
			t.Run(kind+", PIDs "+pids, func(t *testing.T) {
				wantNoLeaks(t)
				b := withProbe(t, func(c *process.Config) {
					if pids == "host's" {
						without(specs.PIDNamespace)(c)
					}
					c.Spec.Process.Env = append(c.Spec.Process.Env, "HOME=/") // init does not look for it
					passwd := filepath.Join(c.Rootfs, "etc/passwd")
					must(t, os.Remove(passwd))
					must(t, put(passwd))
				})
				for _, got := range b.execAtOnce(30, "sh", "-c", "echo $HOME") {
					if want := (result{out: "/\n"}); got != want {
						t.Fatalf("exec = %+v, want %+v", got, want)
					}
				}
				eventually(t, "the end of all children that are dead", func() bool { return len(zombies(t)) == 0 })
				wantOnlyInit(t, b)
			})
		}
	}
}

// A file of procfs has effects when it is read, and the launcher has rights that the container has not: /proc/kmsg.
// Here it is one that could name a directory.
func TestHome_IsNotReadFromProcfs(t *testing.T) {
	const line = "a:x:0:0::/e:"
	b := withProbe(t, func(c *process.Config) {
		c.Spec.Process.Args = []string{"sh", "-c", "printf %s " + line + " >/proc/self/comm; sleep 1000; true"}
		c.Spec.Process.Env = append(c.Spec.Process.Env, "HOME=/") // init does not look for it
		passwd := filepath.Join(c.Rootfs, "etc/passwd")
		must(t, os.Remove(passwd))
		must(t, os.Symlink("/proc/1/comm", passwd))
	})
	eventually(t, "the name of init", func() bool {
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", b.Init().Pid()))
		return err == nil && strings.TrimSpace(string(comm)) == line
	})
	for _, got := range b.execAtOnce(1, "sh", "-c", "cat /etc/passwd; echo $HOME") {
		if want := (result{out: line + "\n/\n"}); got != want {
			t.Errorf("exec = %+v, want %+v", got, want)
		}
	}
}

func TestHome_IsFoundWhateverTheLimitOfDescriptors(t *testing.T) {
	limit := func(p *specs.Process) *specs.Process {
		p.Args = []string{"sh", "-c", "echo $HOME"}
		p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 3, Hard: 3}}
		return p
	}
	seen, launched := runInit(t, testRuntime, func(c *process.Config) { limit(c.Spec.Process) })
	if seen.Err != "" || !launched || !slices.Equal(seen.Stdout, []string{"/root\n", ""}) {
		t.Errorf("init: %q, %s, launched %t", seen.Stdout, seen.Err, launched)
	}
	b := withProbe(t, nil)
	if got, want := b.exec(t.Context(), limit(command())), (result{out: "/root\n"}); got != want {
		t.Errorf("exec = %+v, want %+v", got, want)
	}
}

// It is read to its end, as libcontainer does, but not for as long as the container likes.
func TestExec_APasswdThatIsTooLargeIsNone(t *testing.T) {
	b := withProbe(t, nil)
	passwd := filepath.Join(b.config.Rootfs, "etc/passwd")
	for size, want := range map[int]string{1 << 20: "/root\n", 33 << 20: "/\n"} {
		text := "root:x:0:0::/root:/bin/sh\n" + strings.Repeat("# a comment\n", size/12)
		must(t, os.WriteFile(passwd, []byte(text), 0o644)) //nolint:gosec // as in any system
		if got, want := b.exec(t.Context(), command("sh", "-c", "echo $HOME")), (result{out: want}); got != want {
			t.Errorf("exec with a passwd file of %d bytes = %+v, want %+v", size, got, want)
		}
	}
}

// impatient is a Runtime whose execs have to be set up within a moment.
func impatient() *Runtime {
	return &Runtime{reaper: testReaper, launcher: testRuntime.launcher, execTimeout: 200 * time.Millisecond}
}

// Whatever the container keeps the launcher from, and however long its caller would wait.
func TestExec_SettingUpHasABound(t *testing.T) {
	for _, tc := range []struct {
		name string
		hold func(t *testing.T, b *box) (args []string, release func())
		want string
	}{
		{"a file that is not opened", func(t *testing.T, b *box) ([]string, func()) {
			t.Helper()
			return []string{"true"}, holdAt(t, filepath.Join(b.config.Rootfs, "etc/passwd"), opening).letGo
		}, `openat2 "/etc/passwd"`},
		{"a program that is not run", func(t *testing.T, b *box) ([]string, func()) {
			t.Helper()
			program, file := b.own("true")
			return []string{program}, holdAt(t, file, running).letGo
		}, `execve "/opt/true"`},
		{"a cgroup that is frozen", func(t *testing.T, b *box) ([]string, func()) {
			t.Helper()
			must(t, b.Pause())
			return []string{"true"}, func() { must(t, b.Resume()) }
		}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wantNoLeaks(t)
			b := withProbe(t, nil)
			b.RuntimeContainer.(*container).runtime = impatient()
			args, release := tc.hold(t, b)
			got := b.exec(t.Context(), command(args...))
			if !errdefs.IsDeadlineExceeded(got.err) {
				t.Errorf("exec = %+v, want deadline exceeded", got)
			}
			wantText(t, got.err, "the process was not set up within 200ms", tc.want)
			wantOnlyInit(t, b)
			eventually(t, "the end of all children that are dead", func() bool { return len(zombies(t)) == 0 })
			release()
			b.RuntimeContainer.(*container).runtime = testRuntime
			if got := b.exec(t.Context(), command(args...)); got != (result{}) {
				t.Errorf("exec afterwards = %+v, want success", got)
			}
		})
	}
}

// libcontainer opens whatever is called passwd, and waits.
func TestExec_SettingUpByLibcontainerHasABound(t *testing.T) {
	wantNoLeaks(t)
	b := withProbe(t, func(c *process.Config) {
		c.Spec.Linux.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux} // the launcher does not cover it
		without(specs.PIDNamespace)(c)
	})
	// A child that is adopted, and no stage of an exec.
	stray := command("sh", "-c", "sleep 1000 >/dev/null 2>&1 &")
	stray.Env = append(stray.Env, "HOME=/")
	b.RuntimeContainer.(*container).runtime = testRuntime
	if got := b.exec(t.Context(), stray); got != (result{}) {
		t.Fatalf("exec = %+v, want success", got)
	}
	alive := func() int {
		pids := members(t, b.config) // of each hierarchy
		slices.Sort(pids)
		return len(slices.Compact(pids))
	}
	before := alive()
	passwd := filepath.Join(b.config.Rootfs, "etc/passwd")
	must(t, os.Remove(passwd))
	must(t, unix.Mkfifo(passwd, 0o644))
	b.RuntimeContainer.(*container).runtime = impatient()
	for _, got := range b.execAtOnce(3, "true") {
		if !errdefs.IsDeadlineExceeded(got.err) {
			t.Errorf("exec = %+v, want deadline exceeded", got)
		}
		wantText(t, got.err, "the process was not set up within")
	}
	eventually(t, "the end of all stages, and of nothing else", func() bool { return alive() == before && len(zombies(t)) == 0 })
	must(t, os.Remove(passwd))
	b.RuntimeContainer.(*container).runtime = testRuntime
	if got := b.exec(t.Context(), command("true")); got != (result{}) {
		t.Errorf("exec afterwards = %+v, want success", got)
	}
	must(t, b.Cgroup().Kill(t.Context(), unix.SIGKILL))
}

// Go makes libcontainer's process in the cgroup, on v2. If it were frozen there, nothing of this program would run.
func TestExec_ByLibcontainerWaitsForAThaw(t *testing.T) {
	if !cgroups.IsCgroup2UnifiedMode() {
		t.Skip("SKIPPED: on cgroup v1 the process is made outside of the cgroup: make test-v2")
	}
	wantNoLeaks(t)
	b := withProbe(t, func(c *process.Config) {
		c.Spec.Linux.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux} // the launcher does not cover it
	})
	b.RuntimeContainer.(*container).runtime = impatient()
	must(t, b.Pause())
	got := b.exec(t.Context(), command("true"))
	if !errdefs.IsDeadlineExceeded(got.err) {
		t.Errorf("exec = %+v, want deadline exceeded", got)
	}
	wantText(t, got.err, "is frozen", "the process was not set up within 200ms")
	wantOnlyInit(t, b)
	must(t, b.Resume())
	b.RuntimeContainer.(*container).runtime = testRuntime
	if got := b.exec(t.Context(), command("true")); got != (result{}) {
		t.Errorf("exec afterwards = %+v, want success", got)
	}
}

// Nobody is kept from reaping what a container without PIDs of its own left, while one sets up its exec.
func TestExec_SettingUpDoesNotHoldTheReaper(t *testing.T) {
	b := withProbe(t, without(specs.PIDNamespace))
	home := holdAt(t, filepath.Join(b.config.Rootfs, "etc/passwd"), opening)
	ended := make(chan result, 1)
	go func() { ended <- b.exec(t.Context(), command("true")) }()
	home.wait()
	p := command("sh", "-c", "sleep 0.01 &") // whose parent is gone when it dies
	p.Env = append(p.Env, "HOME=/")
	if got := b.exec(t.Context(), p); got != (result{}) {
		t.Errorf("exec = %+v, want success", got)
	}
	// Only init and the one that is held are left, dead or alive.
	eventually(t, "that the orphan is reaped", func() bool {
		pids := members(t, b.config) // of each hierarchy
		slices.Sort(pids)
		return len(slices.Compact(pids)) == 2 && len(zombies(t)) == 0
	})
	home.letGo()
	if got := <-ended; got != (result{}) {
		t.Errorf("exec = %+v, want success", got)
	}
}
