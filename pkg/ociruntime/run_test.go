// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
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
				eventually(t, "the trap", func() bool { return fileSize(b) > 0 })
			}
			must(t, b.Init().Signal(sig))
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
	must(t, b.Init().Signal(syscall.SIGKILL))
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
	eventually(t, "output", func() bool { return fileSize(b) > 0 })
	must(t, b.Pause())
	must(t, b.Pause()) // again is no error
	eventually(t, "the end of output", func() bool {
		before := fileSize(b)
		<-time.After(50 * time.Millisecond) // ten times what the program takes between two lines
		return fileSize(b) == before
	})
	frozen := fileSize(b)
	must(t, b.Resume())
	eventually(t, "output after the thaw", func() bool { return fileSize(b) > frozen })
}

func TestDestroy_APausedContainer(t *testing.T) {
	b := create(t, newConfig(t, "sleep", "1000")).start()
	must(t, b.Pause())
	must(t, b.Init().Signal(syscall.SIGKILL))
	must(t, b.Resume())
	b.wait()
	must(t, b.Pause()) // empty, and frozen
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
				wantText(t, err, tc.want...)
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
			wantText(t, err, tc.want...)
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
