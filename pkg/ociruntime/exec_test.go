// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/ociruntime/translate"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

func TestExec_UnsupportedByTheLauncher(t *testing.T) {
	agent := &configs.Seccomp{Syscalls: []*configs.Syscall{{Action: configs.Notify}}}
	const scheduling = "scheduler, IO priority or CPU affinity"
	for _, tc := range []struct {
		want   string
		change func(*configs.Config, *libcontainer.Process)
	}{
		{"", func(*configs.Config, *libcontainer.Process) {}},
		{"the shim is not root", func(c *configs.Config, _ *libcontainer.Process) { c.RootlessEUID = true }},
		{"personality", func(c *configs.Config, _ *libcontainer.Process) { c.Personality = &configs.LinuxPersonality{} }},
		{"memory policy", func(c *configs.Config, _ *libcontainer.Process) { c.MemoryPolicy = &configs.LinuxMemoryPolicy{} }},
		{"Intel RDT", func(c *configs.Config, _ *libcontainer.Process) { c.IntelRdt = &configs.IntelRdt{} }},
		{"seccomp agent", func(c *configs.Config, _ *libcontainer.Process) { c.Seccomp = agent }},
		{"no mount namespace", func(c *configs.Config, _ *libcontainer.Process) { c.Namespaces = nil }},
		{scheduling, func(_ *configs.Config, p *libcontainer.Process) { p.Scheduler = &configs.Scheduler{} }},
		{scheduling, func(c *configs.Config, _ *libcontainer.Process) { c.IOPriority = &configs.IOPriority{} }},
		{scheduling, func(c *configs.Config, _ *libcontainer.Process) { c.ExecCPUAffinity = &configs.CPUAffinity{} }},
	} {
		config := &configs.Config{Namespaces: configs.Namespaces{{Type: configs.NEWNS}}}
		p := &libcontainer.Process{Args: []string{"true"}}
		tc.change(config, p)
		if got := translate.UnsupportedProcess(config, p); got != tc.want {
			t.Errorf("UnsupportedProcess = %q, want %q", got, tc.want)
		}
	}
}

// wantOnlyInit fails when a failed exec left a process in the container, or one that is not waited for.
func wantOnlyInit(t *testing.T, b *box) {
	t.Helper()
	testx.Eventually(t, "the end of all but init", func() bool {
		return len(zombies(t)) == 0 && !slices.ContainsFunc(members(t, b.config), func(pid int) bool { return pid != b.Init().Pid() })
	})
}

// wantRuns executes a command that prints nothing.
func (b *box) wantRuns(args ...string) {
	b.t.Helper()
	if got := b.exec(b.t.Context(), command(args...)); got != (result{}) {
		b.t.Errorf("exec of %q = %+v, want success", args, got)
	}
}

// Init dies at any moment of an exec. The exec does not hang, and leaves nothing.
func TestExec_WhileInitDies(t *testing.T) {
	wantNoLeaks(t)
	for range 10 {
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

// haproxy and others change their root, which is not that of the container.
func TestExec_BesideAnInitThatChangedItsRoot(t *testing.T) {
	b := withProbe(t, func(c *process.Config) {
		testx.Must(t, os.Symlink("busybox", filepath.Join(c.Rootfs, "bin/chroot")))
		testx.Must(t, os.MkdirAll(filepath.Join(c.Rootfs, "tmp/bin"), 0o755))
		testx.Must(t, os.Link(filepath.Join(c.Rootfs, "bin/busybox"), filepath.Join(c.Rootfs, "tmp/bin/sleep")))
		c.Spec.Process.Args = []string{"chroot", "/tmp", "/bin/sleep", "1000"}
	})
	testx.Eventually(t, "the change of the root", func() bool {
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
		testx.Must(t, os.Symlink("/proc/self/exe", filepath.Join(c.Rootfs, "bin/self")))
		script := filepath.Join(c.Rootfs, "bin/script")
		testx.Must(t, os.WriteFile(script, []byte("#!/proc/self/exe\n"), 0o755)) //nolint:gosec // executable
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

// zombies are the children of this process that are dead and not waited for.
func zombies(t *testing.T) (dead []int) {
	t.Helper()
	lists, err := filepath.Glob("/proc/self/task/*/children")
	testx.Must(t, err)
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // the thread ended
		}
		for field := range bytes.FieldsSeq(text) {
			pid, err := strconv.Atoi(string(field))
			testx.Must(t, err)
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err == nil && bytes.Contains(stat, []byte(") Z ")) {
				dead = append(dead, pid)
			}
		}
	}
	return dead
}

// execAtOnce starts n execs at the same time.
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

// replacePasswd puts another file in place of the container's passwd, for execs alone: init has a home.
func replacePasswd(t *testing.T, put func(path string) error) func(*process.Config) {
	t.Helper()
	return func(c *process.Config) {
		c.Spec.Process.Env = append(c.Spec.Process.Env, "HOME=/")
		passwd := filepath.Join(c.Rootfs, "etc/passwd")
		testx.Must(t, errors.Join(os.Remove(passwd), put(passwd)))
	}
}

// The container chooses what libcontainer opens as its passwd file.
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
		for pids, change := range map[string]func(*process.Config){"own": func(*process.Config) {}, "host's": without(specs.PIDNamespace)} {
			t.Run(kind+", PIDs "+pids, func(t *testing.T) {
				wantNoLeaks(t)
				b := withProbe(t, func(c *process.Config) { change(c); replacePasswd(t, put)(c) })
				for _, got := range b.execAtOnce(10, "sh", "-c", "echo $HOME") {
					if want := (result{out: "/\n"}); got != want {
						t.Fatalf("exec = %+v, want %+v", got, want)
					}
				}
				wantOnlyInit(t, b)
			})
		}
	}
}

// A file of procfs has effects when it is read, and the launcher has rights that the container has not: /proc/kmsg.
// Here the file could name a directory.
func TestHome_IsNotReadFromProcfs(t *testing.T) {
	const line = "a:x:0:0::/e:"
	b := withProbe(t, func(c *process.Config) {
		c.Spec.Process.Args = []string{"sh", "-c", "printf %s " + line + " >/proc/self/comm; sleep 1000; true"}
		replacePasswd(t, func(path string) error { return os.Symlink("/proc/1/comm", path) })(c)
	})
	testx.Eventually(t, "the name of init", func() bool {
		return testx.Read(t, fmt.Sprintf("/proc/%d/comm", b.Init().Pid())) == line+"\n"
	})
	got := b.exec(t.Context(), command("sh", "-c", "cat /etc/passwd; echo $HOME"))
	if want := (result{out: line + "\n/\n"}); got != want {
		t.Errorf("exec = %+v, want %+v", got, want)
	}
}

// impatiently runs f while execs of b have to be set up within a moment.
func (b *box) impatiently(f func()) {
	c := b.RuntimeContainer.(*container)
	c.runtime = &Runtime{reaper: testReaper, launcher: testRuntime.launcher, execTimeout: time.Duration(slowness()) * 200 * time.Millisecond}
	defer func() { c.runtime = testRuntime }()
	f()
}

// wantLate fails the test unless n execs at once are given up after the time of impatiently.
func (b *box) wantLate(n int, words string, args ...string) {
	b.t.Helper()
	b.impatiently(func() {
		b.t.Helper()
		for _, got := range b.execAtOnce(n, args...) {
			testx.WantError(b.t, got.err, context.DeadlineExceeded, "the process was not set up within "+(time.Duration(slowness())*200*time.Millisecond).String(), words)
		}
	})
}

// It is read to its end, as libcontainer does, but not for as long as the container likes.
func TestExec_APasswdThatIsTooLargeIsNone(t *testing.T) {
	b := withProbe(t, nil)
	passwd := filepath.Join(b.config.Rootfs, "etc/passwd")
	for size, want := range map[int]string{1 << 20: "/root\n", 33 << 20: "/\n"} {
		text := "root:x:0:0::/root:/bin/sh\n" + strings.Repeat("# a comment\n", size/12)
		testx.Must(t, os.WriteFile(passwd, []byte(text), 0o644)) //nolint:gosec // as in any system
		if got, want := b.exec(t.Context(), command("sh", "-c", "echo $HOME")), (result{out: want}); got != want {
			t.Errorf("exec with a passwd file of %d bytes = %+v, want %+v", size, got, want)
		}
	}
}

// The bound holds whatever the container keeps the launcher from, and however long its caller would wait.
func TestExec_SettingUpHasABound(t *testing.T) {
	for _, tc := range []struct {
		name string
		hold func(t *testing.T, b *box) (program string, release func())
		want string
	}{
		{"a file that is not opened", func(t *testing.T, b *box) (string, func()) {
			t.Helper()
			return "true", holdAt(t, filepath.Join(b.config.Rootfs, "etc/passwd"), opening).letGo
		}, ""},
		{"a program that is not run", func(t *testing.T, b *box) (string, func()) {
			t.Helper()
			program, file := b.own("true")
			return program, holdAt(t, file, running).letGo
		}, ""},
		{"a cgroup that is frozen", func(t *testing.T, b *box) (string, func()) {
			t.Helper()
			testx.Must(t, b.Pause())
			return "true", func() { testx.Must(t, b.Resume()) }
		}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wantNoLeaks(t)
			b := withProbe(t, nil)
			program, release := tc.hold(t, b)
			b.wantLate(2, tc.want, program)
			wantOnlyInit(t, b)
			release()
			b.wantRuns(program)
		})
	}
}

// alive counts the processes of the container.
func (b *box) alive() int {
	pids := members(b.t, b.config) // of each hierarchy
	slices.Sort(pids)
	return len(slices.Compact(pids))
}

// libcontainer opens whatever is called passwd, and waits.
func TestExec_SettingUpByLibcontainerHasABound(t *testing.T) {
	wantNoLeaks(t)
	b := withProbe(t, func(c *process.Config) { byPersonality(c); without(specs.PIDNamespace)(c) })
	// A child that is adopted, and no stage of an exec.
	b.wantRuns("sh", "-c", "sleep 1000 >/dev/null 2>&1 &")
	before := b.alive()
	passwd := filepath.Join(b.config.Rootfs, "etc/passwd")
	testx.Must(t, os.Remove(passwd))
	testx.Must(t, unix.Mkfifo(passwd, 0o644))
	b.wantLate(2, "", "true")
	testx.Eventually(t, "the end of all stages, and of nothing else", func() bool { return b.alive() == before && len(zombies(t)) == 0 })
	testx.Must(t, os.Remove(passwd))
	b.wantRuns("true")
	testx.Must(t, b.Cgroup().Kill(t.Context()))
}

// Go makes libcontainer's process in the cgroup, on v2. If it were frozen there, nothing of this program would run.
func TestExec_ByLibcontainerWaitsForAThaw(t *testing.T) {
	if !unified() {
		t.Skip("SKIPPED: on cgroup v1 the process is made outside of the cgroup: make test-v2")
	}
	wantNoLeaks(t)
	b := withProbe(t, byPersonality)
	testx.Must(t, b.Pause())
	b.wantLate(1, "is frozen", "true")
	b.wantLate(2, "", "true") // one may wait for the other until its time is over
	wantOnlyInit(t, b)
	testx.Must(t, b.Resume())
	b.wantRuns("true")
}

// The reaper collects what a container without PIDs of its own left, while an exec is set up.
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
	testx.Eventually(t, "that the orphan is reaped", func() bool { return b.alive() == 2 && len(zombies(t)) == 0 })
	home.letGo()
	if got := <-ended; got != (result{}) {
		t.Errorf("exec = %+v, want success", got)
	}
}

// begin starts an exec whose streams end with the test.
func (b *box) begin(args ...string) (process.Handle, process.ExecCgroup) {
	b.t.Helper()
	streams, err := stdio.Open(b.t.Context(), stdio.Config{Stdout: "file:///dev/null"}, idmap.Owner{})
	testx.Must(b.t, err)
	b.t.Cleanup(func() { testx.Must(b.t, streams.Close()) })
	h, own, err := b.Exec(b.t.Context(), command(args...), b.config.ExecLimits, streams)
	testx.Must(b.t, err)
	return h, own
}

// withDaemons is a container that has setsid.
func withDaemons(t *testing.T) process.Config {
	t.Helper()
	c := newConfig(t, "sleep", "1000")
	testx.Must(t, os.Symlink("busybox", filepath.Join(c.Rootfs, "bin", "setsid")))
	return c
}

// daemon is a process that its parent left, in a session of its own.
const daemon = "(setsid sleep 1000 &); "

// nestDirs are the directories of the execs' cgroups of a container, but for the one that it has itself.
func nestDirs(t *testing.T, c process.Config) (found []string) {
	t.Helper()
	for _, dir := range cgroupDirs(t, c) {
		below, err := filepath.Glob(dir + "/exec-*")
		testx.Must(t, err)
		found = append(found, slices.DeleteFunc(below, func(dir string) bool { return filepath.Base(dir) == "exec-1" })...)
	}
	return found
}

// in is the container for a subtest.
func (b *box) in(t *testing.T) *box {
	t.Helper()
	on := *b
	on.t = t
	return &on
}

// own is a program that no other process of the container runs.
func (b *box) own(name string) (inside, outside string) {
	b.t.Helper()
	inside = "/opt/" + name
	outside = filepath.Join(b.config.Rootfs, inside)
	testx.Must(b.t, os.MkdirAll(filepath.Dir(outside), 0o755))
	copyBusybox(b.t, outside)
	return inside, outside
}

// What the shim ignores a process of a container does not: the Go runtime of libcontainer's first stage sees to that.
// It leaves SIGHUP and SIGINT as they are, which are not tried, since Go cannot end that it ignores them.
func TestExec_WithSignalsThatTheShimIgnores(t *testing.T) {
	ignored := []os.Signal{syscall.SIGUSR1, syscall.SIGPIPE}
	signal.Ignore(ignored...)
	t.Cleanup(func() {
		c := make(chan os.Signal, 1)
		signal.Notify(c, ignored...) // Reset leaves them ignored in the kernel
		signal.Stop(c)
	})
	withProbe(t, nil).wantSame(probed(nil))
}

// A probe that takes too long is killed with all processes of its session. A daemon with a session of its own is not,
// nor is anything that an exec leaves which ends by itself or by another signal.
func TestExec_KillReachesItsSession(t *testing.T) {
	ways := maps.Clone(execWays)
	ways["the host's PIDs"] = without(specs.PIDNamespace)
	for name, change := range ways {
		t.Run(name, func(t *testing.T) {
			wantNoLeaks(t)
			config := withDaemons(t)
			change(&config)
			b := create(t, config).start()
			wantSleeping := func(want int, when string) { // no shell that still forks, nor setsid
				t.Helper()
				testx.Eventually(t, fmt.Sprintf("the time when %d processes sleep %s", want, when), func() bool {
					pids, err := b.Cgroup().Procs()
					testx.Must(t, err)
					return len(slices.DeleteFunc(pids, func(pid int) bool {
						args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
						return err != nil || !strings.HasPrefix(string(args), "sleep\x00")
					})) == want
				})
			}
			for _, tt := range []struct {
				script        string
				sig           unix.Signal
				during, after int // processes, with init and what the former ones have left
			}{
				{"sleep 1000 & (sleep 1001 &); sleep 1002; true", unix.SIGKILL, 4, 1},
				{"sleep 1000 & exit 0", 0, 0, 2},
				{"sleep 1000 & sleep 1001; true", unix.SIGTERM, 4, 4},
				{daemon + "sleep 1000; true", unix.SIGKILL, 6, 5},
			} {
				h, _ := b.begin("sh", "-c", tt.script)
				if tt.sig != 0 {
					wantSleeping(tt.during, "before the signal to "+tt.script)
					testx.Must(t, h.Signal(tt.sig))
				}
				if exit := h.Wait(); exit.Signal != tt.sig {
					t.Errorf("exit = %+v, want %v", exit, tt.sig)
				}
				wantSleeping(tt.after, "after "+tt.script)
			}
		})
	}
}

func TestExec_WithACgroupOfItsOwn(t *testing.T) {
	ways := maps.Clone(execWays)
	ways["in its namespace"] = withCgroupNamespace
	for name, change := range ways {
		t.Run(name, func(t *testing.T) {
			wantNoLeaks(t)
			config := withDaemons(t)
			config.ExecLimits = &limit.Limits{}
			change(&config)
			b := create(t, config).start()
			processes := func() int { // on v2 those of execs are in nested cgroups
				pids, err := b.Cgroup().Procs()
				testx.Must(t, err)
				return len(pids)
			}
			// A name that the container has taken.
			for _, dir := range cgroupDirs(t, config) {
				testx.Must(t, os.Mkdir(filepath.Join(dir, "exec-1"), 0o755))
			}
			for _, tc := range []struct {
				what, script string
				end          func(pid int, h process.Handle) error // nil: by itself
				status       int
			}{
				{"by the shim", daemon + "x=0; while [ $x -lt 20000 ]; do x=$((x+1)); done; sleep 1000", func(_ int, h process.Handle) error { return h.Signal(unix.SIGKILL) }, 137},
				{"by somebody else", daemon + "sleep 1000", func(pid int, _ process.Handle) error { return unix.Kill(pid, unix.SIGKILL) }, 137},
				{"by itself", daemon + "exit 3", nil, 3}, // the daemon ends with it
			} {
				h, own := b.begin("sh", "-c", tc.script)
				if tc.end != nil {
					testx.Eventually(t, "the time when the exec has a daemon, and all are listed", func() bool { return processes() == 3 })
					testx.Must(t, tc.end(h.Pid(), h))
				}
				exit := h.Wait()
				if left := processes(); tc.end != nil && left != 1 {
					t.Errorf("ended %s: %d processes live on when the exit is told, want init alone", tc.what, left)
				}
				own.Release()
				if exit.Status != tc.status {
					t.Errorf("ended %s: status %d, want %d", tc.what, exit.Status, tc.status)
				}
				if u := own.Account(); tc.what == "by the shim" && (u.CPU <= 0 || u.CPU > time.Minute || u.Memory < 100<<10) {
					t.Errorf("Account = %+v", u)
				}
				testx.Eventually(t, "the end of its daemon", func() bool { return processes() == 1 })
				if left := nestDirs(t, config); len(left) > 0 {
					t.Errorf("ended %s: cgroups of execs %v", tc.what, left)
				}
			}
			if got := b.exec(t.Context(), command("/no/such/program")); got.err == nil {
				t.Errorf("exec = %+v, want an error", got)
			}
			if left := nestDirs(t, config); len(left) > 0 {
				t.Errorf("cgroups of an exec that was not started: %v", left)
			}
		})
	}
}

// It is alive when its terminal is refused, and so is what it has started.
func TestExec_FailureAfterItsProgramBeganLeavesNoProcess(t *testing.T) {
	for name, change := range execWays {
		t.Run(name, func(t *testing.T) {
			wantNoLeaks(t)
			config := newConfig(t, "sleep", "1000")
			config.ExecLimits = &limit.Limits{}
			change(&config)
			b := create(t, config).start()
			c := b.RuntimeContainer.(*container)
			n, err := c.newExecGroup(config.ExecLimits)
			testx.Must(t, err)
			// One that it has started: to start one itself it would have to win a race.
			child := exec.Command("sleep", "1000")
			testx.Must(t, child.Start())
			for _, dir := range n.paths {
				testx.Must(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(child.Process.Pid)), 0))
			}
			dead := make(chan struct{})
			go func() { _ = child.Wait(); close(dead) }() // that it was killed is looked up below
			streams, err := stdio.Open(t.Context(), stdio.Config{Terminal: true, Stdout: "file:///dev/null"}, idmap.Owner{})
			testx.Must(t, err)
			defer streams.Close()
			null, err := os.Open(os.DevNull)
			testx.Must(t, err)
			defer null.Close()
			// Before the terminal comes something else.
			testx.Must(t, unix.Sendmsg(int(streams.ConsoleSocket().Fd()), []byte("x"), unix.UnixRights(int(null.Fd())), nil, 0))
			p := command("sleep", "1000")
			p.Terminal = true
			lp, err := translate.Process(p, streams)
			testx.Must(t, err)
			h, err := c.execIn(t.Context(), lp, streams, n)
			if err == nil {
				testx.Must(t, h.Signal(unix.SIGKILL))
				h.Wait()
			}
			if err == nil || !strings.Contains(err.Error(), "terminal") {
				t.Errorf("exec = %v, want an error about its terminal", err)
			}
			pids, err := b.Cgroup().Procs()
			testx.Must(t, err)
			if !slices.Equal(pids, []int{b.Init().Pid()}) {
				t.Errorf("%v live on, want init alone", pids)
				testx.Must(t, child.Process.Kill())
			}
			testx.Within(t, "its death", dead)
			if left := nestDirs(t, config); len(left) > 0 {
				t.Errorf("cgroups left: %v", left)
			}
		})
	}
}

// The launcher has the user already when it forks, and so counts for a moment. libcontainer's threads do too.
func TestExec_TheLimitOfProcessesOfItsUserHolds(t *testing.T) {
	const nobodyElse = 54321
	b := withProbe(t, func(c *process.Config) { user(nobodyElse)(c.Spec.Process) })
	for limit, refused := range map[uint64]bool{1: true, 3: false} { // init is the one other process of the user
		p := command("true")
		user(nobodyElse)(p)
		p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NPROC", Soft: limit, Hard: limit}}
		got := b.exec(t.Context(), p)
		if refused {
			testx.WantText(t, got.err, "resource temporarily unavailable")
		} else if got != (result{}) {
			t.Errorf("exec with a limit of %d = %+v, want success", limit, got)
		}
	}
}

// alike is a command with what the container's configuration grants no exec by itself.
func (b *box) alike(args ...string) *specs.Process {
	p := command(args...)
	p.NoNewPrivileges = b.config.Spec.Process.NoNewPrivileges
	return p
}

// tracing is a container of few rights whose init may trace.
func tracing(t *testing.T, change func(*process.Config), args ...string) *box {
	t.Helper()
	return withProbe(t, func(c *process.Config) {
		code, err := compiled("tracer.c")
		testx.Must(t, err)
		testx.Must(t, os.WriteFile(filepath.Join(c.Rootfs, "bin/tracer"), code, 0o755)) //nolint:gosec // a program is executable
		caps := append([]string{"CAP_SYS_PTRACE"}, few...)
		c.Spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
		c.Spec.Process.Args = args
		change(c)
	})
}

// tracingVariants are containers in which an exec gets its rights in different ways.
func tracingVariants(t *testing.T) []configVariant {
	t.Helper()
	confined := func(c *process.Config) { c.Spec.Process.NoNewPrivileges = true }
	return []configVariant{
		{"capabilities", func(*process.Config) {}},
		{"seccomp", filtered(t, nil)},
		{"seccomp and no new privileges", func(c *process.Config) { filtered(t, nil)(c); confined(c) }},
	}
}

// traceable are the execs that are tried: with and without a user, a terminal, and limits.
var traceable = []func(*specs.Process){
	nil,
	user(1000),
	func(p *specs.Process) { p.Terminal = true },
	func(p *specs.Process) {
		p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NPROC", Soft: 1000, Hard: 1000}}
		user(1000)(p)
	},
}

// CAP_SYS_PTRACE is over whatever is in the PID namespace, dumpable or not.
func TestExec_AProcessThatTracesTheLauncherGetsNoRights(t *testing.T) {
	for _, w := range tracingVariants(t) {
		t.Run(w.name, func(t *testing.T) {
			b := tracing(t, w.change, "tracer")
			told := func() string {
				text, err := os.ReadFile(strings.TrimPrefix(b.config.IO.Stdout, "file://"))
				testx.Must(t, err)
				return string(text)
			}
			lines := func(prefix string) int { return strings.Count(told(), prefix) }
			testx.Eventually(t, "the tracer", func() bool { return lines("ready") == 1 })
			for lines("traced")+lines("excess") < 20 {
				for _, change := range traceable {
					p := b.alike("true")
					if change != nil {
						change(p)
					}
					if got := b.exec(t.Context(), p); got.err != nil {
						t.Fatalf("exec: %v", got.err)
					}
				}
			}
			if n := lines("excess"); n > 0 {
				_, first, _ := strings.Cut(told(), "excess")
				first, _, _ = strings.Cut(first, "\n")
				t.Errorf("%d of %d processes that were traced had more rights than the container, the first%s", n, n+lines("traced"), first)
			}
		})
	}
}

// What waits for the container's files is not yet in its PID namespace, and what is there has only its rights.
func TestExec_IsInThePIDNamespaceWithTheRightsOfItsProgram(t *testing.T) {
	for _, w := range tracingVariants(t) {
		t.Run(w.name, func(t *testing.T) {
			b := tracing(t, w.change, "sleep", "1000")
			program, file := b.own("true")
			home, run := holdAt(t, filepath.Join(b.config.Rootfs, "etc/passwd"), opening), holdAt(t, file, running)
			ended := make(chan result, 1)
			go func() { ended <- b.exec(t.Context(), b.alike(program)) }()

			if ids := status(t, home.wait(), "NSpid"); len(ids) != 1 {
				t.Errorf("while the home directory is looked for the process has the ids %q, want none in the container", ids)
			}
			home.letGo()
			pid := run.wait()
			if ids := status(t, pid, "NSpid"); len(ids) != 2 {
				t.Errorf("while the program is run the process has the ids %q, want one in the container", ids)
			}
			for _, field := range []string{"CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters"} {
				got, want := status(t, pid, field), status(t, b.Init().Pid(), field)
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("while the program is run %s is %s, want init's %s", field, got, want)
				}
			}
			run.letGo()
			if got := <-ended; got != (result{}) {
				t.Errorf("exec = %+v, want success", got)
			}
		})
	}
}

// status are the words of a field of /proc/PID/status.
func status(t *testing.T, pid int, field string) []string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	testx.Must(t, err)
	_, rest, ok := strings.Cut(string(text), "\n"+field+":")
	if !ok {
		t.Fatalf("/proc/%d/status has no %s", pid, field)
	}
	rest, _, _ = strings.Cut(rest, "\n")
	return strings.Fields(rest)
}

func TestLauncher_WhatTheContainerSees(t *testing.T) {
	b := withProbe(t, func(c *process.Config) {
		inUserNamespace(c)
		testx.Must(t, os.Symlink("busybox", filepath.Join(c.Rootfs, "bin/readlink")))
	})
	program, file := b.own("true")
	run := holdAt(t, file, running)
	ended := make(chan outcome, 1)
	go func() { ended <- b.outcome(byLauncher, command(program)) }()
	pid := run.wait()

	var open []string
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	testx.Must(t, err)
	for _, link := range links {
		target, err := os.Readlink(link)
		testx.Must(t, err)
		kind, _, _ := strings.Cut(target, ":[")
		open = append(open, filepath.Base(link)+" "+kind)
	}
	slices.Sort(open)
	if want := []string{"0 /dev/null", "1 pipe", "2 pipe", "3 socket"}; !slices.Equal(open, want) {
		t.Errorf("the launcher has %q open in the container, want %q", open, want)
	}

	ids := status(t, pid, "NSpid")
	inside := ids[len(ids)-1]
	for _, link := range []string{"exe", "cwd", "root", "fd/3", "ns/mnt"} {
		got := b.outcome(byLibcontainer, command("readlink", "/proc/"+inside+"/"+link))
		if got.Err != "" || got.Status != 1 || got.Stdout[0] != "" {
			t.Errorf("the container's root reads %s of the launcher: %+v, want a refusal", link, got)
		}
	}
	run.letGo()
	if got := <-ended; got.Status != 0 || got.Err != "" {
		t.Errorf("exec = %+v, want success", got)
	}
}

// As systemd does in a container: it leaves the cgroup of the container to controllers for those below.
func TestExec_JoinsInitInACgroupThatTheContainerMade(t *testing.T) {
	if !unified() {
		lacking(t, "cgroup2", "cgroup v2 alone")
	}
	wantNoLeaks(t)
	b := create(t, newConfig(t, "sleep", "1000")).start()
	dir := b.Cgroup().Path("")
	testx.Must(t, os.Mkdir(filepath.Join(dir, "inner"), 0o755))
	testx.Must(t, cgroup.Write(filepath.Join(dir, "inner/cgroup.procs"), fmt.Sprint(b.Init().Pid())))
	testx.Must(t, cgroup.Write(filepath.Join(dir, "cgroup.subtree_control"), "+pids"))
	got := b.exec(t.Context(), command("cat", "/proc/self/cgroup"))
	if where := b.config.Spec.Linux.CgroupsPath + "/inner\n"; got.err != nil || !strings.HasSuffix(got.out, where) {
		t.Errorf("exec = %d, %q, %v, want it in %q", got.status, got.out, got.err, where)
	}
	if l := b.Launch(); l.ExecsByLibcontainer > 0 {
		t.Errorf("%d execs by libcontainer: %s", l.ExecsByLibcontainer, l.ExecReason)
	}
}

// byPersonality makes libcontainer start the execs of a container.
func byPersonality(c *process.Config) {
	c.Spec.Linux.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux}
}

// execWays are containers whose execs the launcher starts, or libcontainer.
var execWays = map[string]func(*process.Config){"by the launcher": func(*process.Config) {}, "by libcontainer": byPersonality}

func TestExec_ByWhat(t *testing.T) {
	for _, tc := range []struct {
		name     string
		change   func(*process.Config)
		terminal bool
		reason   string // of libcontainer
	}{
		{"an ordinary container", func(*process.Config) {}, true, ""},
		{"a personality", byPersonality, false, "personality"},
		{"an ordinary filter", filtered(t, nil), true, ""},
		{"a filter without fork", filtered(t, deny("clone")), false, "filter"},
		{"a filter without sessions", filtered(t, deny("setsid")), false, "filter"},
		{"a filter without ioctl", filtered(t, deny("ioctl")), false, "filter"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := withProbe(t, tc.change)
			p := command("true")
			p.Terminal = tc.terminal
			_ = b.exec(t.Context(), p) // without fork libcontainer may fail too
			got := b.Launch()
			if (got.ExecsByLibcontainer > 0) != (tc.reason != "") || !strings.Contains(got.ExecReason, tc.reason) {
				t.Errorf("launch = %+v, want libcontainer for %q", got, tc.reason)
			}
		})
	}
}

func TestExecGroup_CPUTimeNeedsItsController(t *testing.T) {
	dir := t.TempDir()
	c := &container{cgroup: cgroup.New(map[string]string{"pids": dir})}
	_, err := c.newExecGroup(&limit.Limits{CPUTime: 1})
	testx.WantError(t, err, errdefs.ErrFailedPrecondition, "cpu-time", "cpuacct")
	if got := testx.Files(t, dir); got != "" {
		t.Errorf("files = %q, want none", got)
	}
}
