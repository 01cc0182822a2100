// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

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

// The specification has tens of kilobytes, in CRI, for each container of a shim.
func TestCreate_KeepsNoSpecification(t *testing.T) {
	c := newConfig(t, "sleep", "1000")
	t.Cleanup(func() { wantNothingLeft(t, c) })
	streams, err := stdio.Open(t.Context(), c.IO, c.IOOwner)
	testx.Must(t, err)
	freed := make(chan struct{})
	made, err := func() (process.RuntimeContainer, error) {
		own, spec := c, *c.Spec
		own.Spec = &spec
		runtime.AddCleanup(&spec, func(freed chan struct{}) { close(freed) }, freed)
		return testRuntime.Create(t.Context(), own, streams)
	}()
	testx.Must(t, err)
	testx.Must(t, made.Start())
	if config := made.(*container).lc.Config(); len(config.Mounts)+len(config.Devices) > 0 {
		t.Errorf("the container keeps %d mounts and %d devices, want none", len(config.Mounts), len(config.Devices))
	}
	testx.Eventually(t, "the end of the specification", func() bool {
		runtime.GC()
		return testx.Closed(freed)
	})
	testx.Must(t, made.Init().Signal(syscall.SIGKILL))
	made.Init().Wait()
	testx.Must(t, errors.Join(made.Destroy(), streams.Close()))
}

// A program that ends as soon as its gate opens may be reaped before Start has looked at it again.
func TestStart_OfAProgramThatEndsAtOnce(t *testing.T) {
	for range 4 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			for range 25 {
				c := newConfig(t, "true")
				byPersonality(&c)
				b := create(t, c)
				if err := b.Start(); err != nil {
					t.Errorf("Start: %v", err)
				}
			}
		})
	}
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
	for _, alive := range []bool{true, false} {
		t.Run(fmt.Sprintf("init lives: %t", alive), func(t *testing.T) {
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

// With a hundred pods that start at once, an init of few CPU shares may have no time for seconds.
func TestStart_OfAnInitThatHasNoTimeYet(t *testing.T) {
	wantNoLeaks(t)
	b := create(t, newConfig(t, "sh", "-c", "exit 3"))
	testx.Must(t, unix.Kill(b.Init().Pid(), unix.SIGSTOP))
	testx.Must(t, b.Start())
	testx.Must(t, unix.Kill(b.Init().Pid(), unix.SIGCONT))
	if got := b.wait(); got.Status != 3 {
		t.Errorf("exit = %+v, want that of the program, 3", got)
	}
}

// libcontainer reads the mappings by a child, which only it may collect.
func TestCreate_TheReaperLeavesTheReaderOfMappingsAlone(t *testing.T) {
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}}
	holder := hold(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids})
	c := newConfig(t, "true")
	// libcontainer needs no child for a path that it takes for a process's own.
	path := fmt.Sprintf("/proc/./%d/ns/user", holder)
	c.Spec.Linux.Namespaces = append(c.Spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: path})
	for i := range 20 { // without the hold about every second fails
		config, err := New(testReaper).translate(c)
		if err != nil {
			t.Fatalf("time %d: %v", i, err)
		}
		if got := config.UIDMappings; len(got) != 1 || got[0].HostID != 100000 || got[0].Size != 65536 {
			t.Fatalf("mappings = %v, want those of the namespace", got)
		}
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

// A life is the calls on a container, each with its result after an arrow. The result of a call that succeeds is empty.
func TestLife(t *testing.T) {
	const precondition = "failed precondition"
	// The first process of a PID namespace has no default actions.
	traps := func(sig syscall.Signal) string {
		return fmt.Sprintf("trap 'exit %d' %d; echo up; while :; do sleep 0.01; done", 128+sig, sig)
	}
	for _, tc := range []struct{ name, script, calls string }{
		{"success", "echo out; exit 0", "start | wait -> 0 | output -> out | signal 15 -> not found | start -> " + precondition},
		{"a code", "echo out; exit 37", "start | wait -> 37 | output -> out"},
		{"the largest code", "exit 255", "start | wait -> 255"},
		{"a program that the shell does not find", "nope", "start | wait -> 127"},
		{"SIGKILL", "sleep 1000", "start | signal 9 | wait -> 137"},
		{"SIGTERM that init handles", traps(syscall.SIGTERM), "start | says up | signal 15 | wait -> 143"},
		{"SIGUSR1 that init handles", traps(syscall.SIGUSR1), "start | says up | signal 10 | wait -> 138"},
		// The kernel drops a signal to the first process of a PID namespace that has no handler.
		{"SIGTERM before the start", "true", "signal 15 | wait -> 143"},
		{"SIGQUIT before the start", "true", "signal 3 | wait -> 131"},
		{"SIGKILL before the start", "true", "signal 9 | start -> " + precondition + " | wait -> 137 | start -> " + precondition},
		{"exec in a created container", "true", "exec exit 4 -> 4"},
		{"statuses of execs", "sleep 1000", "start | exec exit 3 -> 3 | exec kill -9 $$ -> 137 | exec kill -11 $$ -> 139 | exec kill -15 $$ -> 143"},
		{"exec after init", "sleep 1000", "start | signal 9 | wait -> 137 | exec true -> failed"},
		{"pause and resume twice", "sleep 1000", "start | pause | pause | resume | resume | exec exit 5 -> 5"},
		{"destroy of a paused container", "sleep 1000", "start | pause | signal 9 | resume | wait -> 137 | pause | destroy | destroy"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wantNoLeaks(t)
			b := create(t, newConfig(t, "sh", "-c", tc.script))
			for call := range strings.SplitSeq(tc.calls, " | ") {
				call, want, _ := strings.Cut(call, " -> ")
				if got := b.call(call); got != want {
					t.Fatalf("%s -> %s, want %s", call, got, want)
				}
			}
		})
	}
}

// call makes a call of a life.
func (b *box) call(call string) (result string) {
	b.t.Helper()
	verb, arg, _ := strings.Cut(call, " ")
	var err error
	switch verb {
	case "start":
		err = b.Start()
	case "pause":
		err = b.Pause()
	case "resume":
		err = b.Resume()
	case "destroy":
		err = b.Destroy()
	case "signal":
		n, err := strconv.Atoi(arg)
		testx.Must(b.t, err)
		return class(b.Init().Signal(syscall.Signal(n)))
	case "wait":
		exit := b.wait()
		if ago := time.Since(exit.At); ago < 0 || ago > time.Minute {
			b.t.Errorf("the exit was %v ago", ago)
		}
		return strconv.Itoa(exit.Status)
	case "output":
		return strings.TrimSpace(b.output())
	case "says":
		b.says(arg)
	case "exec":
		got := b.exec(b.t.Context(), command("sh", "-c", arg))
		if got.err != nil {
			return "failed"
		}
		return strconv.Itoa(got.status)
	default:
		b.t.Fatalf("no call %q", call)
	}
	return class(err)
}

// class names the class of an error.
func class(err error) string {
	switch {
	case err == nil:
		return ""
	case errdefs.IsNotFound(err):
		return "not found"
	case errdefs.IsFailedPrecondition(err):
		return "failed precondition"
	}
	return err.Error()
}

// on changes the process of a configuration.
func on(change func(*specs.Process)) func(*process.Config) {
	return func(c *process.Config) { change(c.Spec.Process) }
}

func sysctl(name, value string) func(*process.Config) {
	return func(c *process.Config) {
		without(specs.NetworkNamespace)(c)
		c.Spec.Linux.Sysctl = map[string]string{name: value}
	}
}

// The texts about programs are os/exec's.
func TestCreate_RefusesConfigurations(t *testing.T) {
	args := func(args ...string) func(*specs.Process) { return func(p *specs.Process) { p.Args = args } }
	rlimits := func(l ...specs.POSIXRlimit) func(*specs.Process) { return func(p *specs.Process) { p.Rlimits = l } }
	console := func(width, height uint) func(*specs.Process) {
		return func(p *specs.Process) { p.ConsoleSize = &specs.Box{Width: width, Height: height} }
	}
	b := create(t, newConfig(t, "sleep", "1000")).start()
	for _, tc := range []struct {
		name   string
		change func(*process.Config)
		exec   func(*specs.Process) // what an exec is refused for too
		want   []string
	}{
		{"a program that is not in PATH", nil, args("nope"), []string{`exec: "nope": executable file not found in $PATH`}},
		{"a program that is absent", nil, args("/bin/nope"), []string{`exec: "/bin/nope": stat /bin/nope: no such file or directory`}},
		{"a file that is not executable", nil, args("/proc/version"), []string{`exec: "/proc/version": permission denied`}},
		{"a directory", nil, args("/bin"), []string{`exec: "/bin": is a directory`}},
		{"an unknown rlimit", nil, rlimits(specs.POSIXRlimit{Type: "RLIMIT_CPU"}, specs.POSIXRlimit{Type: "RLIMIT_X"}), []string{"rlimits[1].type", `"RLIMIT_X"`}},
		{"a soft limit above the hard one", nil, rlimits(specs.POSIXRlimit{Type: "RLIMIT_CPU", Soft: 2, Hard: 1}), []string{"rlimits[0].soft 2 of RLIMIT_CPU: must be at most hard, which is 1"}},
		{"a console that is too wide", nil, console(math.MaxUint16+1, 2), []string{"consoleSize", "65536x2", "65535"}},
		{"a console that is too high", nil, console(2, math.MaxUint16+1), []string{"consoleSize", "2x65536", "65535"}},
		{"CPUs that are no list", nil, func(p *specs.Process) { p.ExecCPUAffinity = &specs.CPUAffinity{Initial: "x"} }, []string{"CPUAffinity", `"x"`}},
		{"a namespace of an unknown type", func(c *process.Config) { c.Spec.Linux.Namespaces[0].Type = "x" }, nil, []string{"config.json", "x"}},
		{"a cgroup for the other driver", func(c *process.Config) { c.SystemdCgroup = true }, nil, []string{"config.json", "cgroupsPath"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wantNoLeaks(t)
			check := func(err error) {
				testx.WantInvalid(t, err, tc.want...)
				if err != nil && strings.Contains(err.Error(), "container process") {
					t.Errorf("error = %v, want the reason alone", err)
				}
			}
			c := newConfig(t, "true")
			if tc.exec != nil {
				tc.change = on(tc.exec)
				p := command("true")
				tc.exec(p)
				check(b.exec(t.Context(), p).err)
			}
			tc.change(&c)
			_, err := tryCreate(t, t.Context(), c)
			check(err)
			wantNothingLeft(t, c)
		})
	}
	if got := b.exec(t.Context(), command("true")); got != (result{}) {
		t.Errorf("exec after the refusals = %+v, want success", got)
	}
}

func TestCreate_NamesASysctlThatCannotBeSet(t *testing.T) {
	for _, tc := range []struct{ name, sysctl, value, want string }{
		{"of the machine", "kernel.panic", "1", "separate kernel namespace"},
		{"of the machine's network", "net.ipv4.ip_local_port_range", "32000 32100", "host network namespace"},
		{"that is none", "fs.mqueue.no_such_thing", "1", "no such file"},
		{"with a value that it does not take", "kernel.shm_rmid_forced", "many", "invalid argument"},
		{"that the configuration says otherwise", "kernel.hostname", "other", "conflicts with the OCI"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wantNoLeaks(t)
			c := newConfig(t, "true")
			sysctl(tc.sysctl, tc.value)(&c)
			_, err := tryCreate(t, t.Context(), c)
			testx.WantInvalid(t, err, "linux.sysctl: ", tc.sysctl, tc.want)
			wantNothingLeft(t, c)
		})
	}
}
