// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer/system"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

func TestExit_StatusOfInit(t *testing.T) {
	for _, tc := range []struct {
		name   string
		script string
		want   int
	}{
		{"success", "exit 0", 0},
		{"a code", "exit 37", 37},
		{"the largest code", "exit 255", 255},
		{"a program that is not found by the shell", "nope", 127},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wantNoLeaks(t)
			before := time.Now()
			b := create(t, newConfig(t, "sh", "-c", "echo out; "+tc.script)).start()
			got := b.wait()
			if got.Status != tc.want {
				t.Errorf("status = %d, want %d", got.Status, tc.want)
			}
			if got.At.Before(before) || got.At.After(time.Now()) {
				t.Errorf("exit at %v, which is not between %v and now", got.At, before)
			}
			if out := b.output(); out != "out\n" {
				t.Errorf("output = %q, want %q", out, "out\n")
			}
			if err := b.Init().Signal(syscall.SIGTERM); !errdefs.IsNotFound(err) {
				t.Errorf("Signal of a dead init = %v, want not found", err)
			}
		})
	}
}

func TestExit_BySignal(t *testing.T) {
	// None of them is ignored where the tests run in the background or under nohup, which the container would inherit.
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGUSR1} {
		t.Run(sig.String(), func(t *testing.T) {
			script := "sleep 1000"
			if sig != syscall.SIGKILL {
				// A PID namespace's first process has no default actions.
				script = fmt.Sprintf("trap 'trap - %[1]d; exit %[2]d' %[1]d; echo; while :; do sleep 0.01; done", sig, 128+sig)
			}
			b := create(t, newConfig(t, "sh", "-c", script)).start()
			if sig != syscall.SIGKILL {
				testx.Eventually(t, "the trap", func() bool { return fileSize(b) > 0 })
			}
			testx.Must(t, b.Init().Signal(sig))
			if got, want := b.wait().Status, 128+int(sig); got != want {
				t.Errorf("status = %d, want %d", got, want)
			}
		})
	}
}

func TestExec_Statuses(t *testing.T) {
	wantNoLeaks(t)
	b := create(t, newConfig(t, "sleep", "1000")).start()
	for _, tc := range []struct {
		name   string
		script string
		want   int
	}{
		{"a code", "exit 3", 3},
		{"SIGKILL", "kill -9 $$", 128 + 9},
		{"SIGSEGV", "kill -11 $$", 128 + 11},
		{"SIGTERM", "kill -15 $$", 128 + 15},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := b.exec(t.Context(), command("sh", "-c", "echo out; "+tc.script))
			if want := (result{tc.want, "out\n", nil}); got != want {
				t.Errorf("exec = %+v, want %+v", got, want)
			}
		})
	}
}

func TestExec_WithATerminal(t *testing.T) {
	wantNoLeaks(t)
	b := create(t, newConfig(t, "sleep", "1000")).start()
	p := command("sh", "-c", "test -t 0 && test -t 1 && test -t 2 && echo terminal")
	p.Terminal = true
	if got, want := b.exec(t.Context(), p), (result{0, "terminal\r\n", nil}); got != want {
		t.Errorf("exec = %+v, want %+v", got, want)
	}
}

func TestExec_As(t *testing.T) {
	b := create(t, newConfig(t, "sleep", "1000")).start()
	p := command("id")
	p.User = specs.User{UID: 1000, GID: 1001, AdditionalGids: []uint32{5, 6}}
	if got, want := b.exec(t.Context(), p), (result{0, "uid=1000 gid=1001 groups=1001,5,6\n", nil}); got != want {
		// busybox leaves its own group out where /etc/group is missing
		if got.out != "uid=1000 gid=1001 groups=5,6\n" || got.err != nil {
			t.Errorf("exec = %+v, want %+v", got, want)
		}
	}
}

func TestExec_FiftyAtOnce(t *testing.T) {
	wantNoLeaks(t)
	b := create(t, newConfig(t, "sleep", "1000")).start()
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			got := b.exec(t.Context(), command("sh", "-c", fmt.Sprintf("echo %d; exit %d", i, i)))
			if want := (result{i, fmt.Sprintln(i), nil}); got != want {
				t.Errorf("exec %d = %+v, want %+v", i, got, want)
			}
		})
	}
	all.Wait()
}

func TestExec_InACreatedContainer(t *testing.T) {
	b := create(t, newConfig(t, "true"))
	if got, want := b.exec(t.Context(), command("sh", "-c", "exit 4")), (result{4, "", nil}); got != want {
		t.Errorf("exec = %+v, want %+v", got, want)
	}
}

func TestStart_OfADeadInit(t *testing.T) {
	wantNoLeaks(t)
	b := create(t, newConfig(t, "true"))
	testx.Must(t, b.Init().Signal(syscall.SIGKILL))
	for _, state := range []string{"dying", "collected"} {
		if state == "collected" {
			b.wait()
		}
		if err := b.Start(); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("Start of a %s init = %v, want failed precondition", state, err)
		}
	}
}

func TestPause_AndResume(t *testing.T) {
	b := create(t, newConfig(t, "sh", "-c", "while :; do echo; sleep 0.005; done")).start()
	testx.Eventually(t, "output", func() bool { return fileSize(b) > 0 })
	testx.Must(t, b.Pause())
	testx.Must(t, b.Pause()) // again is no error
	testx.Eventually(t, "the end of output", func() bool {
		before := fileSize(b)
		<-time.After(50 * time.Millisecond) // ten times what the program takes between two lines
		return fileSize(b) == before
	})
	frozen := fileSize(b)
	testx.Must(t, b.Resume())
	testx.Eventually(t, "output after the thaw", func() bool { return fileSize(b) > frozen })
}

func TestDestroy_APausedContainer(t *testing.T) {
	b := create(t, newConfig(t, "sleep", "1000")).start()
	testx.Must(t, b.Pause())
	testx.Must(t, b.Init().Signal(syscall.SIGKILL))
	testx.Must(t, b.Resume())
	b.wait()
	testx.Must(t, b.Pause()) // empty, and frozen
	for i := range 2 {
		if err := b.Destroy(); err != nil {
			t.Errorf("Destroy, call %d: %v", i+1, err)
		}
	}
}

// refusal is a process that cannot be run.
type refusal struct {
	name   string
	change func(*specs.Process)
	want   []string // all in the error's text
}

// The texts are os/exec's, and whole.
func TestCreate_NamesAProgramThatCannotBeRun(t *testing.T) {
	wantRefused(t, []refusal{
		{"a program that is not in PATH", func(p *specs.Process) { p.Args = []string{"nope"} }, []string{`exec: "nope": executable file not found in $PATH`}},
		{"a program whose path is not there", func(p *specs.Process) { p.Args = []string{"/bin/nope"} }, []string{`exec: "/bin/nope": stat /bin/nope: no such file or directory`}},
		{"a file that is not executable", func(p *specs.Process) { p.Args = []string{"/proc/version"} }, []string{`exec: "/proc/version": permission denied`}},
		{"a directory", func(p *specs.Process) { p.Args = []string{"/bin"} }, []string{`exec: "/bin": is a directory`}},
	})
}

func TestCreate_RefusesProcessFields(t *testing.T) {
	wantRefused(t, []refusal{
		{"an unknown rlimit", func(p *specs.Process) { p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_CPU"}, {Type: "RLIMIT_X"}} }, []string{"rlimits[1].type", `"RLIMIT_X"`}},
		{"a soft limit above the hard one", func(p *specs.Process) { p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_CPU", Soft: 2, Hard: 1}} }, []string{"rlimits[0].soft 2 of RLIMIT_CPU: must be at most hard, which is 1"}},
		{"a console that is too wide", func(p *specs.Process) { p.ConsoleSize = &specs.Box{Width: math.MaxUint16 + 1, Height: 2} }, []string{"consoleSize", "65536x2", "65535"}},
		{"a console that is too high", func(p *specs.Process) { p.ConsoleSize = &specs.Box{Width: 2, Height: math.MaxUint16 + 1} }, []string{"consoleSize", "2x65536", "65535"}},
		{"CPUs that are no list", func(p *specs.Process) { p.ExecCPUAffinity = &specs.CPUAffinity{Initial: "x"} }, []string{"CPUAffinity", `"x"`}},
	})
}

// wantRefused creates, and executes in a container that runs, what cannot be run.
func wantRefused(t *testing.T, refusals []refusal) {
	t.Helper()
	for _, tc := range refusals {
		t.Run(tc.name, func(t *testing.T) {
			wantNoLeaks(t)
			check := func(what string, err error) {
				if !errdefs.IsInvalidArgument(err) {
					t.Errorf("%s = %v, want an invalid argument", what, err)
				}
				testx.WantText(t, err, tc.want...)
				if err != nil && strings.Contains(err.Error(), "container process") {
					t.Errorf("%s = %v, want the reason alone", what, err)
				}
			}
			c := newConfig(t, "true")
			tc.change(c.Spec.Process)
			_, err := tryCreate(t, t.Context(), c)
			check("Create", err)
			wantNothingLeft(t, c)

			b := create(t, newConfig(t, "sleep", "1000")).start()
			p := command("true")
			tc.change(p)
			check("Exec", b.exec(t.Context(), p).err)
			if got := b.exec(t.Context(), command("true")); got != (result{}) {
				t.Errorf("exec after the refusal = %+v, want success", got)
			}
		})
	}
}

func TestCreate_Twice(t *testing.T) {
	c := newConfig(t, "sleep", "1000")
	b := create(t, c).start()
	if _, err := New(testReaper).Create(t.Context(), c, b.streams); !errdefs.IsAlreadyExists(err) {
		t.Errorf("Create = %v, want already exists", err)
	}
	if got := b.exec(t.Context(), command("true")); got != (result{}) {
		t.Errorf("exec in the first = %+v, want success", got)
	}
}

func TestCreate_RefusesConfigurations(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*process.Config)
		want   []string
	}{
		{"a namespace of an unknown type", func(c *process.Config) { c.Spec.Linux.Namespaces[0].Type = "x" }, []string{"config.json", "x"}},
		{"a cgroup for the other driver", func(c *process.Config) { c.SystemdCgroup = true }, []string{"config.json", "cgroupsPath"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newConfig(t, "true")
			tc.change(&c)
			_, err := tryCreate(t, t.Context(), c)
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("Create = %v, want an invalid argument", err)
			}
			testx.WantText(t, err, tc.want...)
		})
	}
}

func fileSize(b *box) int64 {
	var s unix.Stat_t
	if err := unix.Stat(b.config.IO.Stdout[len("file://"):], &s); err != nil {
		return 0
	}
	return s.Size
}

// The first process of a PID namespace is not ended by a signal that it does not handle (pid_namespaces(7)).
func TestSignal_RightAfterStartIsForTheProgram(t *testing.T) {
	for range 5 {
		b := create(t, newConfig(t, "sleep", "1000")).start()
		testx.Must(t, b.Init().Signal(unix.SIGTERM))
		c := b.RuntimeContainer.(*container)
		testx.Eventually(t, "the time when its program runs, or it is dead", func() bool { c.AwaitProgram(); return !c.awaitsProgram.Load() })
		testx.Must(t, b.Init().Signal(unix.SIGKILL))
		if exit := b.wait(); exit.Status != 137 {
			t.Errorf("exit status = %d, want 137: SIGTERM was for sleep, and ignored", exit.Status)
		}
	}
}

// A postStart hook may look at process 1, or signal it. In the middle of execve the kernel shows the new program
// without arguments for a moment.
func TestExec_RightAfterStartSeesTheProgram(t *testing.T) {
	const script = `line=; while [ -z "$line" ]; do line=$(tr '\0' ' ' </proc/1/cmdline); done; echo "$line"`
	for range 5 {
		b := create(t, newConfig(t, "sleep", "1000")).start()
		if got, want := b.exec(t.Context(), command("sh", "-c", script)), "sleep 1000 \n"; got.out != want {
			t.Errorf("exec = %+v, want that it sees %q", got, want)
		}
	}
}

// Nothing waits for ever for a program of libcontainer's name, which a container can give to its own.
func TestSignal_DoesNotWaitForAProgramWithTheNameOfTheStage(t *testing.T) {
	const name = "runc:[2:INIT]"
	config := newConfig(t, "/bin/"+name)
	testx.Must(t, os.WriteFile(filepath.Join(config.Rootfs, "bin", name), []byte("#!/bin/sh\nsleep 1000\n"), 0o755)) //nolint:gosec // a program is executable
	b := create(t, config).start()
	c := b.RuntimeContainer.(*container)
	testx.Eventually(t, "that the program is seen", func() bool {
		testx.Must(t, b.Init().Signal(unix.SIGCONT))
		return !c.awaitsProgram.Load()
	})
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", b.Init().Pid()))
	testx.Must(t, err)
	if got := string(comm); got != name+"\n" {
		t.Errorf("init is called %q, want %q", got, name)
	}
}

// Its hook keeps it from becoming its program.
func TestSignal_AndExecDoNotWaitForHooks(t *testing.T) {
	config := newConfig(t, "sleep", "1000")
	config.Spec.Hooks = &specs.Hooks{StartContainer: []specs.Hook{{Path: "/bin/sleep", Args: []string{"sleep", "1000"}}}}
	b := create(t, config).start()
	for what, do := range map[string]func() error{
		"a signal": func() error { return b.Init().Signal(unix.SIGCONT) },
		"an exec":  func() error { return b.exec(t.Context(), command("true")).err },
	} {
		began := time.Now()
		testx.Must(t, do())
		if took := time.Since(began); took < programHookTimeout || took > 20*programHookTimeout {
			t.Errorf("%s took %v, want %v", what, took, programHookTimeout)
		}
	}
	testx.Must(t, b.Init().Signal(unix.SIGKILL))
	b.wait()
}

// goneManager is the manager of a cgroup that systemd removes at any moment.
type goneManager struct{ cgroups.Manager }

func (goneManager) Exists() bool { return true }

func (goneManager) Freeze(cgroups.FreezerState) error {
	return &os.PathError{Op: "write", Path: "cgroup.freeze", Err: unix.ENODEV}
}

func TestDestroy_OfACgroupThatGoesMeanwhile(t *testing.T) {
	for name, destroy := range map[string]func(*box) error{
		"Destroy": func(b *box) error { return b.Destroy() },
		"Discard": func(b *box) error { return b.Discard() },
	} {
		t.Run(name, func(t *testing.T) {
			b := create(t, newConfig(t, "true"))
			c := b.RuntimeContainer.(*container)
			testx.Must(t, b.Init().Signal(syscall.SIGKILL))
			b.wait()
			c.manager = goneManager{c.manager}
			if err := destroy(b); err != nil {
				t.Errorf("%s = %v, want success", name, err)
			}
		})
	}
}

// withoutFirstThreadEnv makes the test program one that loses its first thread.
const withoutFirstThreadEnv = "SHIM_TEST_WITHOUT_FIRST_THREAD"

// loseFirstThread ends the first thread, whose state is then that of a dead process, and goes on until stdin ends.
func loseFirstThread() int {
	go func() {
		_ = thread.Do(context.Background(), func() error { // never returns
			_, _, err := unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
			return err
		})
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0) // of all threads; main cannot return without its own
	return 0
}

func TestOpenInit_GoesByAllThreads(t *testing.T) {
	self, err := os.Executable()
	testx.Must(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), withoutFirstThreadEnv+"=1")
	stdin, err := cmd.StdinPipe()
	testx.Must(t, err)
	defer testReaper.Suspend()() // a child that only we wait for
	testx.Must(t, cmd.Start())
	pid := cmd.Process.Pid
	var stat system.Stat_t
	testx.Eventually(t, "end of the first thread", func() bool {
		stat, err = system.Stat(pid)
		return err == nil && stat.State == system.Zombie
	})
	lives := func(start uint64) (bool, error) {
		fd, err := openInit(pid, start)
		if fd >= 0 {
			testx.Must(t, unix.Close(fd))
		}
		return fd >= 0, err
	}
	if alive, err := lives(stat.StartTime); !alive || err != nil {
		t.Errorf("without its first thread: %t, %v, want that it lives", alive, err)
	}
	if alive, err := lives(stat.StartTime + 1); alive || err != nil {
		t.Errorf("of another one that had its id: %t, %v, want that it has ended", alive, err)
	}
	withoutDescriptors(t, func() { _, err = openInit(pid, stat.StartTime) })
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("without descriptors: %v, want %v", err, unix.EMFILE)
	}
	testx.Must(t, stdin.Close())
	testx.Eventually(t, "end of all threads", func() bool {
		alive, err := lives(stat.StartTime)
		return !alive && err == nil
	})
	testx.Must(t, cmd.Wait())
}

// takeSockets takes the sockets of a process, as one in a container can that sees it and may trace it.
func takeSockets(t *testing.T, pid int) {
	t.Helper()
	pidfd, err := unix.PidfdOpen(pid, 0)
	testx.Must(t, err)
	defer func() { _ = unix.Close(pidfd) }() // opened for its name only
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	names, err := os.ReadDir(dir)
	testx.Must(t, err)
	taken := 0
	for _, name := range names {
		target, err := os.Readlink(filepath.Join(dir, name.Name()))
		testx.Must(t, err)
		if !strings.HasPrefix(target, "socket:") {
			continue
		}
		number, err := strconv.Atoi(name.Name())
		testx.Must(t, err)
		fd, err := unix.PidfdGetfd(pidfd, number, 0)
		testx.Must(t, err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		taken++
	}
	if taken == 0 {
		t.Fatal("the process has no socket")
	}
}

func TestStart_EndsAlthoughAnotherKeepsTheSocketOfInit(t *testing.T) {
	for name, alive := range map[string]bool{"init lives": true, "init is dead": false} {
		t.Run(name, func(t *testing.T) {
			wantNoLeaks(t)
			b := create(t, newConfig(t, "sleep", "1000"))
			takeSockets(t, b.Init().Pid())
			if !alive {
				testx.Must(t, b.Init().Signal(unix.SIGKILL))
			}
			started := make(chan struct{})
			var err error
			go func() { defer close(started); err = b.Start() }()
			testx.Within(t, "the end of Start", started)
			if alive && err != nil || !alive && !errdefs.IsFailedPrecondition(err) {
				t.Errorf("Start = %v", err)
			}
		})
	}
}

func TestLaunch_CountsExecsThatLibcontainerStarts(t *testing.T) {
	c := &container{initReason: "why"}
	if got, want := c.Launch(), (inspect.Launch{Init: inspect.ByLibcontainer, InitReason: "why"}); got != want {
		t.Errorf("launch = %+v, want %+v", got, want)
	}
	const n = 20
	var all sync.WaitGroup
	for range n {
		all.Go(func() { c.fellBack("because") })
	}
	all.Wait()
	c.fellBack("last")
	if got := c.Launch(); got.ExecsByLibcontainer != n+1 || got.ExecReason != "last" {
		t.Errorf("launch = %+v, want %d execs, and the last reason", got, n+1)
	}
	c.config.Checkpoint = "/image"
	if got := c.Launch(); got.Init != inspect.ByCRIU {
		t.Errorf("launch of a container that is restored = %+v", got)
	}
}

func TestKeep_TriesAgainWhatMaySucceedLater(t *testing.T) {
	calls := 0
	answers := []error{unix.EMFILE, unix.ENOMEM, nil, unix.EMFILE}
	f := keep(func() (int, error) { calls++; return calls, answers[calls-1] })
	for _, want := range answers[:2] {
		if _, err := f(); !errors.Is(err, want) {
			t.Errorf("error = %v, want %v", err, want)
		}
	}
	for range 3 {
		if n, err := f(); n != 3 || err != nil {
			t.Errorf("answer = %d, %v, want that of call 3", n, err)
		}
	}
	calls = 0
	f = keep(func() (int, error) { calls++; return 0, fmt.Errorf("too old: %w", errdefs.ErrNotImplemented) })
	for range 3 {
		if _, err := f(); !errdefs.IsNotImplemented(err) || calls != 1 {
			t.Errorf("error = %v after %d calls, want that of the first", err, calls)
		}
	}
}

func TestLauncher_IsMadeOnceThereIsADescriptor(t *testing.T) {
	r := New(testReaper)
	withoutDescriptors(t, func() {
		if _, err := r.launcher(); err == nil {
			t.Error("made without a descriptor")
		}
	})
	launcher, err := r.launcher()
	testx.Must(t, err)
	if again, err := r.launcher(); again != launcher || err != nil {
		t.Errorf("made again: %v", err)
	}
	testx.Must(t, launcher.Close())
}

// withoutDescriptors calls f while no file can be opened.
func withoutDescriptors(t *testing.T, f func()) {
	t.Helper()
	var before unix.Rlimit
	testx.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	testx.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: before.Max}))
	defer func() { testx.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before)) }()
	f()
}

// libcontainer reads the mappings by a child, which only it may collect.
func TestCreate_TheReaperLeavesTheReaderOfMappingsAlone(t *testing.T) {
	release := testReaper.Suspend()
	holder := exec.Command("sleep", "1000")
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}}
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	testx.Must(t, holder.Start())
	testReaper.Register(holder.Process.Pid)
	release()
	t.Cleanup(func() {
		_ = holder.Process.Kill() // dead already is as good
		_ = holder.Wait()         // it was killed
		testReaper.Unregister(holder.Process.Pid)
	})

	c := newConfig(t, "true")
	// libcontainer needs no child for a path that it takes for a process's own.
	path := fmt.Sprintf("/proc/./%d/ns/user", holder.Process.Pid)
	c.Spec.Linux.Namespaces = append(c.Spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: path})
	for i := range 50 { // without the hold about every second fails
		config, err := New(testReaper).translate(c)
		if err != nil {
			t.Fatalf("time %d: %v", i, err)
		}
		if got := config.UIDMappings; len(got) != 1 || got[0].HostID != 100000 || got[0].Size != 65536 {
			t.Fatalf("mappings = %v, want those of the namespace", got)
		}
	}
}

func TestCreate_NamesASysctlThatCannotBeSet(t *testing.T) {
	for _, tc := range []struct {
		name, sysctl, value string
		want                string
	}{
		{"of the machine", "kernel.panic", "1", "separate kernel namespace"},
		{"of the machine's network", "net.ipv4.ip_local_port_range", "32000 32100", "host network namespace"},
		{"that is none", "fs.mqueue.no_such_thing", "1", "no such file"},
		{"with a value that it does not take", "kernel.shm_rmid_forced", "many", "invalid argument"},
		{"that the configuration says otherwise", "kernel.hostname", "other", "conflicts with the OCI"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wantNoLeaks(t)
			c := newConfig(t, "true")
			without(specs.NetworkNamespace)(&c)
			c.Spec.Linux.Sysctl = map[string]string{tc.sysctl: tc.value}
			_, err := tryCreate(t, t.Context(), c)
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("Create = %v, want an invalid argument", err)
			}
			testx.WantText(t, err, "linux.sysctl[\""+tc.sysctl+"\"] \""+tc.value+"\"", tc.want)
			wantNothingLeft(t, c)
		})
	}
}

// reapedConfig is a container with a small init.
func reapedConfig(tb testing.TB, args ...string) process.Config {
	tb.Helper()
	c := newConfig(tb, args...)
	asContainerd(tb, &c)
	c.Options.Init = true
	return c
}

// Errors are those of the container, whose class is not that of a process with which no init is possible.
func TestReaped_ErrorsOfTheStart(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*process.Config)
		words  string
	}{
		"a volume": {mount(specs.Mount{
			Destination: "/data", Type: "bind", Source: "/no/such", Options: []string{"bind"},
		}), "/no/such: no such file"},
		"the working directory": {func(c *process.Config) { c.Spec.Process.Cwd = "/bin/busybox" }, `chdir to cwd ("/bin/busybox")`},
		"a limit": {func(c *process.Config) {
			c.Spec.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1 << 40, Hard: 1 << 40}}
		}, "error setting rlimit type 7"},
		"the environment": {func(c *process.Config) { c.Spec.Process.Env = []string{"nope"} }, "invalid environment variable"},
	} {
		t.Run(name, func(t *testing.T) {
			c := reapedConfig(t, "true")
			tt.change(&c)
			_, err := tryCreate(t, t.Context(), c)
			if err == nil || errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), tt.words) {
				t.Errorf("Create = %v, want an error without a class that says %q", err, tt.words)
			}
		})
	}
}

// The init is a process of the container as others are.
func TestReaped_AtTheLimitOfProcesses(t *testing.T) {
	for limit, want := range map[int64]struct {
		status int
		text   string
	}{1: {255, "init: fork: errno 011\n"}, 2: {7, ""}} {
		c := reapedConfig(t, "sh", "-c", "exit 7")
		c.Spec.Linux.Resources = &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &limit}}
		stderr := filepath.Join(t.TempDir(), "stderr")
		c.IO.Stderr = "file://" + stderr
		if status := create(t, c).start().wait().Status; status != want.status {
			t.Errorf("a limit of %d: status %d, want %d", limit, status, want.status)
		}
		testx.Eventually(t, fmt.Sprintf("the text %q", want.text), func() bool {
			text, err := os.ReadFile(stderr)
			testx.Must(t, err)
			return string(text) == want.text
		})
	}
}

// The init has no capability left to execute it, unlike the launcher.
func TestReaped_ProgramThatOnlyRootMayExecute(t *testing.T) {
	const overrides = "CAP_DAC_OVERRIDE"
	for _, uid := range []uint32{0, 1000} {
		for _, ambient := range [][]string{nil, {overrides}} {
			t.Run(fmt.Sprintf("user %d, ambient %v", uid, ambient), func(t *testing.T) {
				c := reapedConfig(t, "/private/sh", "-c", "exit 7")
				code, err := os.ReadFile(filepath.Join(c.Rootfs, "bin/busybox"))
				testx.Must(t, err)
				testx.Must(t, os.Mkdir(filepath.Join(c.Rootfs, "private"), 0o755))
				testx.Must(t, os.WriteFile(filepath.Join(c.Rootfs, "private/sh"), code, 0o700)) //nolint:gosec // executable
				c.Spec.Process.User = specs.User{UID: uid, GID: uid}
				caps := []string{overrides}
				c.Spec.Process.Capabilities = &specs.LinuxCapabilities{
					Bounding: caps, Effective: caps, Permitted: caps, Inheritable: ambient, Ambient: ambient,
				}
				b, err := tryCreate(t, t.Context(), c)
				if uid != 0 && ambient == nil {
					if want := `exec: "/private/sh": permission denied`; err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("Create = %v, want %s", err, want)
					}
					return
				}
				testx.Must(t, err)
				if got := b.start().wait().Status; got != 7 {
					t.Errorf("status %d, want 7", got)
				}
			})
		}
	}
}

// A mount may open a device that the container may not.
func TestCreate_MountsADeviceThatTheContainerMayNotOpen(t *testing.T) {
	c := newConfig(t, "sleep", "1000")
	c.Spec.Linux.Resources = &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}}}
	c.Spec.Mounts = append(c.Spec.Mounts, specs.Mount{Type: "ext4", Source: unmountedDevice(t), Destination: "/mnt"})
	create(t, c).start()
}

// unmountedDevice has an ext4 file system; the kernel opens a device for the first mount of it alone.
func unmountedDevice(t *testing.T) string {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	testx.Must(t, os.WriteFile(image, nil, 0o600))
	testx.Must(t, os.Truncate(image, 8<<20))
	run := func(name string, args ...string) (string, error) {
		defer testReaper.Suspend()() // the command is a child that only we wait for
		out, err := exec.Command(name, args...).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	out, err := run("mkfs.ext4", "-q", image)
	if err == nil {
		out, err = run("losetup", "--find", "--show", image)
	}
	if err != nil {
		lacking(t, "loop", fmt.Sprintf("ext4 on a loop device: %v: %s", err, out))
	}
	t.Cleanup(func() {
		if text, err := run("losetup", "--detach", out); err != nil {
			t.Errorf("losetup --detach %s: %v: %s", out, err, text)
		}
	})
	return out
}

// The host may have a device under another name, with another owner, or not at all. With libcontainer such a container
// is refused, or has the owner of the host.
func TestInit_InAUserNamespaceHasTheDevicesItAsksFor(t *testing.T) {
	const script = "cd /dev && busybox stat -c '%n %a %u %g %t %T' renamed zero net/tun block pipe && " +
		"echo x >renamed && busybox head -c 1 zero | busybox od -An -tx1"
	want := "renamed 660 0 1000 1 3\nzero 600 7 0 1 5\nnet/tun 666 0 0 a c8\nblock 640 0 0 7 63\npipe 666 0 0 0 0\n 00\n"
	for name, enter := range map[string]func(testing.TB, *process.Config){
		"its own":    ownRootfs,
		"of another": func(tb testing.TB, c *process.Config) { tb.Helper(); inUserNamespaceOfAnother(tb, c, 0) },
	} {
		seen, launched := runInit(t, testRuntime, func(c *process.Config) {
			enter(t, c)
			c.Spec.Linux.Devices = []specs.LinuxDevice{
				{Path: "/dev/renamed", Type: "c", Major: 1, Minor: 3, FileMode: new(os.FileMode(0o660)), GID: new(uint32(1000))},
				{Path: "/dev/zero", Type: "c", Major: 1, Minor: 5, FileMode: new(os.FileMode(0o600)), UID: new(uint32(7))},
				{Path: "/dev/net/tun", Type: "c", Major: 10, Minor: 200, UID: new(uint32(70000))}, // which is not mapped
				{Path: "/dev/block", Type: "b", Major: 7, Minor: 99, FileMode: new(os.FileMode(0o640))},
				{Path: "/dev/pipe", Type: "p"},
				{Path: "/dev/ptmx", Type: "c", Major: 5, Minor: 2}, // which is the container's own
			}
			c.Spec.Linux.Resources = &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}}
			c.Spec.Process.Args = []string{"sh", "-c", script}
		})
		if got := strings.Join(seen.Stdout, ""); got != want || !launched {
			t.Errorf("%s: launched: %t, %q, error %q, stderr %q, want %q", name, launched, got, seen.Err, seen.Stderr, want)
		}
	}
}

// Each call is under way when the signal is sent, and goes on beside the rest of
// the Kill. The race detector tells what they share, in whichever order they
// come to it.
func TestKill_SharesNoMemoryWithWhatIsUnderWay(t *testing.T) {
	pids := int64(512)
	for _, tc := range []struct {
		name   string
		paused bool // before
		call   func(context.Context, *process.Container) error
	}{
		{"pause", false, func(ctx context.Context, c *process.Container) error { return c.Pause(ctx) }},
		{"resume", true, func(ctx context.Context, c *process.Container) error { return c.Resume(ctx) }},
		{"update", true, func(ctx context.Context, c *process.Container) error {
			return c.Update(ctx, &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &pids}})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			under, killing := make(chan struct{}), make(chan struct{})
			var hook func(string) // nil until the call that is looked at
			c := started(t, hooked{testRuntime, func(call string) {
				if hook != nil {
					hook(call)
				}
			}}, newConfig(t, "sleep", "1000"))
			if tc.paused {
				testx.Must(t, c.Pause(t.Context()))
			}
			enter, signal := sync.OnceFunc(func() { close(under); <-killing }), sync.OnceFunc(func() { close(killing) })
			hook = func(call string) {
				switch call {
				case tc.name:
					enter()
				case "signal":
					signal()
				}
			}
			done := make(chan error)
			go func() { done <- tc.call(t.Context(), c) }()
			<-under
			testx.Must(t, c.Init().Kill(syscall.SIGKILL))
			if err := <-done; err != nil { // what is being frozen was thawed, and the cgroup may be gone
				t.Logf("%s: %v", tc.name, err)
			}
			testx.Within(t, "init's exit", c.Init().Exited())
		})
	}
}

// A signal to all freezes and thaws them meanwhile, unless somebody else does.
func TestKillAll_LeavesFrozenWhatIsPausedMeanwhile(t *testing.T) {
	c := started(t, testRuntime, newConfig(t, "sleep", "1000"))
	over := make(chan struct{})
	var killing sync.WaitGroup
	killing.Go(func() { // ends when over is closed
		for {
			select {
			case <-over:
				return
			default:
				if err := c.KillAll(t.Context(), syscall.SIGCONT); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	defer killing.Wait()
	defer close(over)
	for range 200 {
		if err := c.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !frozen(t, c.Cgroup()) {
			t.Fatal("a container that is paused is not frozen")
		}
		testx.Must(t, c.Resume(t.Context()))
	}
}

// frozen tells what the cgroup was asked to be last.
func frozen(t *testing.T, c *cgroup.Cgroup) bool {
	t.Helper()
	file, want := "freezer.state", "FROZEN\n"
	if c.Unified() {
		file, want = "cgroup.freeze", "1\n"
	}
	state, err := os.ReadFile(filepath.Join(c.Path("freezer"), file))
	testx.Must(t, err)
	return string(state) == want
}

// hooked is a Runtime with a function of a test that is called before a call
// begins. It forces an order: what the function waits for has happened before,
// and what happens after it returned is concurrent.
type hooked struct {
	process.Runtime
	before func(call string) // pause, resume, update, signal (to init)
}

func (e hooked) Create(ctx context.Context, c process.Config, s *stdio.Streams) (process.RuntimeContainer, error) {
	r, err := e.Runtime.Create(ctx, c, s)
	if err != nil {
		return nil, err
	}
	return hookedRuntime{r, e.before}, nil
}

type hookedRuntime struct {
	process.RuntimeContainer
	before func(call string)
}

func (r hookedRuntime) Pause() error {
	r.before("pause")
	return r.RuntimeContainer.Pause()
}

func (r hookedRuntime) Resume() error {
	r.before("resume")
	return r.RuntimeContainer.Resume()
}

func (r hookedRuntime) Update(resources *specs.LinuxResources) error {
	r.before("update")
	return r.RuntimeContainer.Update(resources)
}

func (r hookedRuntime) Init() process.Handle {
	return hookedHandle{r.RuntimeContainer.Init(), r.before}
}

type hookedHandle struct {
	process.Handle
	before func(call string)
}

func (h hookedHandle) Signal(sig syscall.Signal) error {
	h.before("signal")
	return h.Handle.Signal(sig)
}

// started is a container of e as the sandbox has it, with its lifecycle. It is
// gone at the end of the test.
func started(t *testing.T, e process.Runtime, config process.Config) *process.Container {
	t.Helper()
	t.Cleanup(func() { wantNothingLeft(t, config) })
	ctx := context.Background() // outlives the test's
	queue := event.NewQueue(func(context.Context, event.Event, time.Time) error { return nil })
	t.Cleanup(func() { testx.Must(t, queue.Close(ctx)) })
	c, err := process.New(ctx, e, queue, config)
	testx.Must(t, err)
	t.Cleanup(func() {
		_ = c.Init().Kill(syscall.SIGKILL) // dead already is as good
		testx.Within(t, "init's exit", c.Init().Exited())
		_, err := c.Delete(ctx)
		testx.Must(t, err)
	})
	testx.Must(t, c.Init().Start(ctx))
	return c
}
