// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// smallRun is a containerd whose bundles are in a file system of their own, and so are the state directories of the
// shims that have the options of the configuration.
func smallRun(t *testing.T) (e *env, cfg config, small string) {
	t.Helper()
	c, err := harness.NewContainerd(shared.Env)
	harness.Must(t, err)
	small = filepath.Join(c.Dir, "small")
	source, tasks := filepath.Join(small, "tasks"), filepath.Join(c.State, "io.containerd.runtime.v2.task")
	harness.AtEnd(t, func() error { return errors.Join(c.Kill(), unix.Unmount(tasks, 0), unix.Unmount(small, 0), c.Close()) })
	if err := errors.Join(
		os.Mkdir(small, 0o711), harness.Mount("tmpfs", small, "tmpfs", 0), os.Mkdir(source, 0o711),
		os.MkdirAll(tasks, 0o711), harness.Mount(source, tasks, "", unix.MS_BIND), c.Start(t.Context()),
	); err != nil {
		t.Fatalf("%v\n%s", err, c.LogFrom(0))
	}
	root := &options.Options{Root: filepath.Join(small, "runc")}
	cfg = config{new: []client.NewContainerOpts{client.WithRuntime(c.Env.Runtime, root)}}
	return newEnvOn(t, c), cfg, small
}

// files lists what is in a directory, and in those in it.
func files(e *env, dir string) (paths []string) {
	e.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if d == nil || err == nil && d.Name() != "rootfs" {
			paths = append(paths, path)
		}
		if errors.Is(err, fs.ErrNotExist) || err == nil && d.Name() == "rootfs" {
			return fs.SkipDir // it went meanwhile, or has the image in it
		}
		return err
	})
	e.must(err, "list "+dir)
	return paths
}

// leave makes a file system so small that so many pages of it are left.
func (e *env) leave(dir string, pages uint64) {
	e.Helper()
	var s unix.Statfs_t
	e.must(unix.Statfs(dir, &s), "statfs")
	size := (s.Blocks - s.Bfree + pages) * uint64(s.Bsize)
	e.must(unix.Mount("", dir, "", unix.MS_REMOUNT, fmt.Sprintf("size=%d", size)), "make the file system small")
}

// A container is made or not made, as space allows, and one that is not leaves nothing. What runs goes on and ends.
func TestWeather_FullRun(t *testing.T) {
	harness.OursOnly(t, "a container that is not made leaves nothing, and what runs ends")
	e, cfg, small := smallRun(t)
	running := e.run("running", cfg, "sleep", "1000")
	victim := e.run("victim", cfg, "sleep", "1000")
	before := files(e, small)
	failed := 0
	for pages := uint64(0); ; pages++ {
		e.leave(small, pages)
		id := fmt.Sprintf("c%d", pages)
		c, err := e.tryCreate(id, cfg, "true")
		if err == nil {
			e.must(c.process.Start(e.ctx), "start")
			c.wantExit(0)
			break
		}
		failed++
		if !strings.Contains(err.Error(), "no space left on device") {
			t.Errorf("create with %d pages = %v, want no space left", pages, err)
		}
		harness.Eventually(t, "all of a container that was not made is gone", func() error {
			if now := files(e, small); !slices.Equal(now, before) {
				return fmt.Errorf("with %d pages (%w): there are %q, before it were %q", pages, err, now, before)
			}
			return nil
		})
	}
	t.Logf("%d creates failed", failed)
	if failed < 5 {
		t.Errorf("%d creates failed, want some in containerd and some in the shim", failed)
	}

	e.leave(small, 0)
	running.runExec("x1", "echo", "hello")
	e.must(unix.Kill(e.shim("victim"), unix.SIGKILL), "kill a shim")
	e.waitEvents("victim", "exit victim 137 | delete victim")
	running.kill()
	victim.closeIO()
	e.leave(small, 1000)
	e.run("after", cfg, "true").wantExit(0)
}

// What is on a read-only file system stays there, but no process does, and its exit is told.
func TestWeather_ReadOnlyRun(t *testing.T) {
	harness.OursOnly(t, "what runs ends, and can be removed later")
	e, cfg, small := smallRun(t)
	c := e.run("c1", cfg, "sleep", "1000")
	created := e.create("created", cfg, "sleep", "1000")
	e.must(unix.Mount("", small, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""), "make it read-only")
	e.must(created.process.Start(e.ctx), "start what was created before")
	if status := created.status("created"); status.Status != client.Running {
		t.Errorf("created, and started = %+v, want running", status)
	}
	if _, err := e.tryCreate("c2", cfg, "true"); err == nil || !strings.Contains(err.Error(), "read-only file system") {
		t.Errorf("create = %v, want that the file system is read-only", err)
	}
	c.runExec("x1", "echo", "hello")
	e.must(c.process.Kill(e.ctx, unix.SIGKILL), "kill")
	if got := c.exit(); got != 137 {
		t.Errorf("exit status = %d, want 137", got)
	}
	if _, err := c.process.Delete(e.ctx); err == nil || !strings.Contains(err.Error(), "read-only file system") {
		t.Errorf("delete = %v, want that the file system is read-only", err)
	}
	e.must(unix.Mount("", small, "", unix.MS_REMOUNT, ""), "make it writable")
	c.delete()
	created.kill()
	e.run("c3", cfg, "true").wantExit(0)
}

// shimCgroup makes a cgroup for shims until the test ends, and returns the option that names it, and the path of one of
// its files.
func shimCgroup(e *env) (cfg config, file func(v1, v2 string) string) {
	e.Helper()
	path := "/" + e.namespace + "/shims"
	roots, err := harness.CgroupRoots()
	e.must(err, "cgroups")
	for _, root := range roots {
		if !strings.HasSuffix(root, "/cpuset") { // where a new one takes no process before it has CPUs
			e.must(os.MkdirAll(filepath.Join(root, path), 0o755), "make a cgroup")
		}
	}
	e.Cleanup(func() {
		harness.Eventually(e, "no shim is left in its cgroup", func() (err error) {
			for _, root := range roots {
				if e := os.Remove(filepath.Join(root, path)); !errors.Is(e, os.ErrNotExist) {
					err = errors.Join(err, e)
				}
			}
			return err
		})
	})
	cfg = config{new: []client.NewContainerOpts{
		client.WithRuntime(e.containerd.Env.Runtime, &options.Options{ShimCgroup: path}),
	}}
	return cfg, func(v1, v2 string) string {
		name, err := harness.CgroupFilePath(path, v1, v2)
		e.must(err, "cgroup of the shim")
		return name
	}
}

// flood starts execs until one fails, and returns its error and those that run.
func (t *task) flood(most int) (running []*process, err error) {
	t.e.Helper()
	for i := range most {
		x, err := t.tryExec(fmt.Sprintf("x%d", i), config{}, nil, "sleep", "1000")
		if err != nil {
			return running, err
		}
		if err := x.Start(t.e.ctx); err != nil {
			x.closeIO()
			return running, err
		}
		running = append(running, x)
	}
	return running, nil
}

// A shim that its own cgroup has no memory for is killed. Its container ends with it and leaves nothing. That of another
// shim goes on.
func TestWeather_ShimWithoutMemory(t *testing.T) {
	harness.OursOnly(t, "a killed shim leaves nothing")
	e := newEnv(t)
	other := e.run("other", config{}, "sleep", "1000")
	cfg, file := shimCgroup(e)
	c := e.run("c1", cfg, "sleep", "1000")
	shim := e.shim("c1")
	e.must(os.WriteFile(file("memory.limit_in_bytes", "memory.max"), []byte(strconv.Itoa(24<<20)), 0), "set the limit")
	execs, err := c.flood(1000)
	if err == nil {
		t.Errorf("%d execs run in a shim of 24 MiB", len(execs))
	}
	harness.Eventually(t, "the kernel has killed the shim", func() error {
		if harness.Alive(shim) {
			return fmt.Errorf("it lives after %d execs, of which the last said: %w", len(execs), err)
		}
		return nil
	})
	e.waitEvents("c1", "exit c1 137 | delete c1")
	for _, x := range execs {
		x.closeIO()
	}
	c.closeIO()
	other.kill()
}

// A shim that may have no more processes refuses what needs one, names the reason, and goes on when it may. Only if it
// needs a thread for itself just then, the Go runtime ends it.
func TestWeather_ShimWithoutProcesses(t *testing.T) {
	harness.OursOnly(t, "want of processes is an error, and not the end of a shim")
	e := newEnv(t)
	cfg, file := shimCgroup(e)
	c := e.run("c1", cfg, "sleep", "1000")
	shim := e.shim("c1")
	now, err := os.ReadFile(file("pids.current", "pids.current"))
	e.must(err, "processes of the shim")
	e.must(os.WriteFile(file("pids.max", "pids.max"), now, 0), "set the limit")
	_, err = c.flood(1)
	if !harness.Alive(shim) {
		e.waitEvents("c1", "exit c1 137 | delete c1")
		c.closeIO()
		if log := e.containerd.LogFrom(e.logStart); !harness.GoRuntimeDied(log) {
			t.Errorf("the shim died, not by the Go runtime's lack of a thread:\n%s", log)
		}
		return
	}
	if !errdefs.IsResourceExhausted(err) ||
		!strings.Contains(err.Error(), "resource temporarily unavailable") {
		t.Errorf("exec = %v, want that resources are exhausted, and the kernel's reason", err)
	}
	e.must(os.WriteFile(file("pids.max", "pids.max"), []byte("max"), 0), "take the limit away")
	x, err := c.tryExec("x1", config{}, nil, "true")
	e.must(err, "add an exec")
	e.must(x.Start(e.ctx), "start an exec")
	x.wantExit(0)
	c.kill()
}

// The delete command kills a process only if it is the one that the shim started. By then a number may stand for
// another.
func TestWeather_PidIsUsedAgainBeforeDelete(t *testing.T) {
	harness.OursOnly(t, "a process of somebody else is not killed")
	e := newEnvOn(t, ownContainerd(t))
	c := e.run("c1", config{}, "sleep", "1000")
	pid, shim := int(c.Task.Pid()), e.shim("c1")
	e.must(unix.Kill(e.containerd.Pid(), unix.SIGSTOP), "hold up containerd, which calls the delete command")
	resume := sync.OnceFunc(func() { e.must(unix.Kill(e.containerd.Pid(), unix.SIGCONT), "let containerd go on") })
	defer resume()
	e.must(unix.Kill(shim, unix.SIGKILL), "kill the shim")
	e.must(unix.Kill(pid, unix.SIGKILL), "kill init")
	harness.Eventually(t, "init is gone", func() error {
		if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill with 0: %w", err)
		}
		return nil
	})
	another := processWith(e, pid)
	resume()
	e.waitEvents("c1", "exit c1 137 | delete c1")
	c.closeIO()
	if err := another.Process.Signal(unix.Signal(0)); err != nil {
		t.Errorf("the process that has the number of init now: %v", err)
	}
	e.must(another.Process.Kill(), "kill")
	_ = another.Wait() // by that signal
}

// processWith starts a process with a pid, which must be free.
func processWith(e *env, pid int) *exec.Cmd {
	e.Helper()
	for range 1000 { // others start processes too
		e.must(os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0), "choose a pid")
		cmd := exec.Command("/bin/sleep", "1000")
		e.must(cmd.Start(), "sleep")
		if cmd.Process.Pid == pid {
			return cmd
		}
		e.must(cmd.Process.Kill(), "kill")
		_ = cmd.Wait() // by that signal
	}
	e.Fatalf("no process got pid %d", pid)
	return nil
}

// All that ends while containerd is away is told when it is back, in order.
func TestWeather_ManyExitsWhileContainerdIsAway(t *testing.T) {
	harness.OursOnly(t, "events are kept while containerd is away")
	const execs = 300
	e := newEnvOn(t, ownContainerd(t))
	c := e.run("c1", config{}, "sleep", "1000")
	running, err := c.flood(execs)
	e.must(err, "execs")
	e.must(e.containerd.Kill(), "kill containerd")
	e.must(unix.Kill(int(c.Task.Pid()), unix.SIGKILL), "kill init")
	e.must(e.containerd.Start(e.ctx), "start containerd again")
	e.subscribe()
	again := e.reload("c1")
	if status := again.status("c1"); status.Status != client.Stopped || status.ExitStatus != 137 {
		t.Errorf("c1 = %+v, want stopped with 137", status)
	}
	for _, x := range running {
		p, err := again.LoadProcess(e.ctx, x.ID(), nil)
		e.must(err, "load "+x.ID())
		status, err := p.Status(e.ctx)
		e.must(err, "status of "+x.ID())
		if status.Status != client.Stopped || status.ExitStatus != 137 {
			t.Errorf("%s = %+v, want stopped with 137", x.ID(), status)
		}
		x.closeIO()
	}
	c.delete()
	e.waitEvents("c1", " | delete c1")
	// Some exits are told before the subscription, all perhaps. None is told again, or after the delete.
	text := e.events.Text("c1")
	if n := strings.Count(text, "exit x"); n > execs || !strings.HasSuffix(text, " | delete c1") {
		t.Errorf("%d exits of execs, want at most %d, and nothing after the delete: %.1000q", n, execs, text)
	}
}

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
	harness.Lacking(t, "node", "a virtual machine of its own (make test-node)")
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
	harness.Must(t, err)
	harness.AtEnd(t, func() error { return os.WriteFile(file, before, 0) })
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
	harness.Must(t, set(options))
	harness.AtEnd(t, func() error { return set(before) })
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
			harness.Must(t, unix.Mount("/usr", "/usr", "", unix.MS_BIND|unix.MS_REC, ""))
			harness.AtEnd(t, func() error { return unix.Unmount("/usr", unix.MNT_DETACH) })
			harness.Must(t, unix.Mount("", "/usr", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		}},
		{"hidepid", func(t *testing.T) { t.Helper(); remount(t, "/proc", "hidepid=2", "hidepid=0") }},
		{"fs.suid_dumpable=0", func(t *testing.T) { t.Helper(); sysctl(t, "fs/suid_dumpable", "0") }},
		{"vm.memfd_noexec=1", func(t *testing.T) { t.Helper(); sysctl(t, "vm/memfd_noexec", "1") }},
		{"vm.memfd_noexec=2", func(t *testing.T) { t.Helper(); sysctl(t, "vm/memfd_noexec", "2") }},
		// These two stay until the machine is off.
		{"kernel.yama.ptrace_scope=3", func(t *testing.T) {
			t.Helper()
			harness.Must(t, os.WriteFile("/proc/sys/kernel/yama/ptrace_scope", []byte("3"), 0))
		}},
		{"lockdown", func(t *testing.T) {
			t.Helper()
			harness.Must(t, os.WriteFile("/sys/kernel/security/lockdown", []byte("confidentiality"), 0))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t)
			tt.set(t)
			c := e.run("c1", config{}, "sleep", "1000")
			x := c.runExec("x1", "echo", "hello")
			if got := x.out.String(); got != "hello\n" {
				t.Errorf("the exec prints %q, want hello", got)
			}
			c.kill()
		})
	}
}

// jumpClock sets the clock of the machine forward, or back, until the test ends.
func jumpClock(t *testing.T, by time.Duration) {
	t.Helper()
	jump := func(by time.Duration) {
		var now unix.Timespec
		harness.Must(t, unix.ClockGettime(unix.CLOCK_REALTIME, &now))
		then := unix.NsecToTimespec(now.Nano() + by.Nanoseconds())
		harness.Must(t, unix.ClockSettime(unix.CLOCK_REALTIME, &then))
	}
	jump(by)
	t.Cleanup(func() { jump(-by) })
}

// A deadline is a time that passes, and not what a clock shows. Exits have the time of the clock.
func TestNode_ClockJumps(t *testing.T) {
	needNode(t)
	for _, by := range []time.Duration{24 * time.Hour, -24 * time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			const limit = 3 * time.Second
			e := newEnv(t)
			c := e.run("c1", config{opts: with(execLimits("wall-time=" + limit.String()))}, "sleep", "1000")
			x := c.startExec("x1", config{}, nil, "sleep", "1000")
			began := time.Now() // with the clock that only goes forward
			jumpClock(t, by)
			status := <-x.exited
			if took := time.Since(began); took < limit*9/10 || took > harness.Slow(10*time.Second) {
				t.Errorf("the exec was killed after %v, its limit is %v", took, limit)
			}
			code, at, err := status.Result()
			e.must(err, "exit")
			var now unix.Timespec
			e.must(unix.ClockGettime(unix.CLOCK_REALTIME, &now), "clock")
			if age := time.Unix(now.Unix()).Sub(at); code != 137 || age < 0 || age > time.Minute {
				t.Errorf("exit with %d, %v ago, want 137 and now", code, age)
			}
			x.delete()
			c.kill()
			e.run("c2", config{}, "true").wantExit(0)
		})
	}
}
