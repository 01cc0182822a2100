// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/ociruntime/translate"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// nestDirs are the directories of the execs' cgroups of a container.
func nestDirs(t *testing.T, c process.Config) (found []string) {
	t.Helper()
	for _, dir := range cgroupDirs(t, c) {
		below, err := filepath.Glob(dir + "/exec-*")
		must(t, err)
		found = append(found, below...)
	}
	return found
}

// execIn starts an exec in a cgroup of its own; its streams end with the test.
func (b *box) execIn(p *specs.Process) process.CgroupHandle {
	b.t.Helper()
	streams, err := stdio.Open(b.t.Context(), stdio.Config{Stdout: "file:///dev/null"}, idmap.Owner{})
	must(b.t, err)
	b.t.Cleanup(func() { must(b.t, streams.Close()) })
	h, err := b.Exec(b.t.Context(), p, b.config.ExecLimits, streams)
	must(b.t, err)
	g, ok := h.(process.CgroupHandle)
	if !ok {
		b.t.Fatalf("Exec = %T, want one with a cgroup", h)
	}
	return g
}

// A probe that takes too long is killed, and so is all that it has started and left in its session. A daemon with a
// session of its own is not, nor is anything that an exec leaves which ends by itself or by another signal.
func TestExec_KillReachesItsSession(t *testing.T) {
	for name, change := range map[string]func(*process.Config){
		"by the launcher": func(*process.Config) {},
		"by libcontainer": func(c *process.Config) { c.Spec.Linux.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux} },
		"the host's PIDs": func(c *process.Config) {
			c.Spec.Linux.Namespaces = slices.DeleteFunc(c.Spec.Linux.Namespaces,
				func(n specs.LinuxNamespace) bool { return n.Type == specs.PIDNamespace })
		},
	} {
		t.Run(name, func(t *testing.T) {
			wantNoLeaks(t)
			config := newConfig(t, "sleep", "1000")
			must(t, os.Symlink("busybox", filepath.Join(config.Rootfs, "bin", "setsid")))
			change(&config)
			b := create(t, config).start()
			wantSleeping := func(want int, when string) { // which no shell is that still forks, nor setsid
				t.Helper()
				eventually(t, fmt.Sprintf("the time when %d processes sleep %s", want, when), func() bool {
					pids, err := b.Cgroup().Procs()
					must(t, err)
					return len(slices.DeleteFunc(pids, func(pid int) bool {
						args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
						return err == nil && !strings.HasPrefix(string(args), "sleep\x00")
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
				streams, err := stdio.Open(t.Context(), stdio.Config{Stdout: "file:///dev/null"}, idmap.Owner{})
				must(t, err)
				h, err := b.Exec(t.Context(), command("sh", "-c", tt.script), nil, streams)
				must(t, err)
				if tt.sig != 0 {
					wantSleeping(tt.during, "before the signal to "+tt.script)
					must(t, h.Signal(tt.sig))
				}
				if exit := h.Wait(); exit.Signal != tt.sig {
					t.Errorf("exit = %+v, want %v", exit, tt.sig)
				}
				wantSleeping(tt.after, "after "+tt.script)
				must(t, streams.Close())
			}
		})
	}
}

// daemon is a process that its parent left, in a session of its own.
const daemon = "(setsid sleep 1000 &); "

func TestExec_WithACgroupOfItsOwn(t *testing.T) {
	for name, change := range map[string]func(*process.Config){
		"by the launcher": func(*process.Config) {},
		"by libcontainer": func(c *process.Config) { c.Spec.Linux.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux} },
		"in its namespace": func(c *process.Config) {
			c.Spec.Linux.Namespaces = append(c.Spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
		},
	} {
		t.Run(name, func(t *testing.T) {
			wantNoLeaks(t)
			config := newConfig(t, "sleep", "1000")
			must(t, os.Symlink("busybox", filepath.Join(config.Rootfs, "bin", "setsid")))
			config.ExecLimits = &limit.Limits{}
			change(&config)
			b := create(t, config).start()
			// A name that the container has taken.
			for _, dir := range cgroupDirs(t, config) {
				must(t, os.Mkdir(filepath.Join(dir, "exec-1"), 0o755))
			}
			procs := func() []int {
				t.Helper()
				pids, err := b.Cgroup().Procs()
				must(t, err)
				return pids
			}
			count := func(n int) {
				t.Helper()
				eventually(t, fmt.Sprintf("the time when there are %d processes", n), func() bool { return len(procs()) == n })
			}

			killed := b.execIn(command("sh", "-c", daemon+"x=0; while [ $x -lt 20000 ]; do x=$((x+1)); done; sleep 1000"))
			eventually(t, "the time when the exec has a daemon, and all are listed", func() bool {
				pids := procs()
				return len(pids) == 3 && slices.Contains(pids, killed.Pid())
			})
			must(t, killed.Signal(unix.SIGKILL))
			exit := killed.Wait()
			if left := procs(); len(left) != 1 {
				t.Errorf("%v live on when the exit of the exec is told, want init alone", left)
			}
			killed.Release()
			if exit.Status != 137 {
				t.Errorf("status = %d, want 137", exit.Status)
			}
			if u := killed.Usage(); u.CPU <= 0 || u.CPU > time.Minute || u.Memory < 100<<10 {
				t.Errorf("Usage = %+v", u)
			}
			wantNests := func(n int) {
				t.Helper()
				dirs := slices.DeleteFunc(nestDirs(t, config), func(dir string) bool { return filepath.Base(dir) == "exec-1" })
				if (len(dirs) > 0) != (n > 0) {
					t.Errorf("cgroups of execs: %v, want %d", dirs, n)
				}
			}
			wantNests(0)

			elsewhere := b.execIn(command("sh", "-c", daemon+"sleep 1000"))
			count(3)
			must(t, unix.Kill(elsewhere.Pid(), unix.SIGKILL)) // by who does not ask the shim
			elsewhere.Wait()
			if left := procs(); len(left) != 1 {
				t.Errorf("%v live on when the exit of an exec is told that somebody else killed, want init alone", left)
			}
			elsewhere.Release()
			wantNests(0)

			leaves := b.execIn(command("sh", "-c", daemon+"exit 3"))
			if exit := leaves.Wait(); exit.Status != 3 {
				t.Errorf("status = %d, want 3", exit.Status)
			}
			leaves.Release()
			count(1) // the daemon ends with it
			wantNests(0)
		})
	}
}

func TestExec_ThatDoesNotStartLeavesNoCgroup(t *testing.T) {
	wantNoLeaks(t)
	config := newConfig(t, "sleep", "1000")
	config.ExecLimits = &limit.Limits{}
	b := create(t, config).start()
	if got := b.exec(t.Context(), command("/no/such/program")); got.err == nil {
		t.Errorf("exec = %+v, want an error", got)
	}
	if left := nestDirs(t, config); len(left) > 0 {
		t.Errorf("cgroups left: %v", left)
	}
}

// It is alive when its terminal is refused, and so is what it has started.
func TestExec_FailureAfterItsProgramBeganLeavesNoProcess(t *testing.T) {
	for name, change := range map[string]func(*process.Config){
		"by the launcher": func(*process.Config) {},
		"by libcontainer": func(c *process.Config) { c.Spec.Linux.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux} },
	} {
		t.Run(name, func(t *testing.T) {
			wantNoLeaks(t)
			config := newConfig(t, "sleep", "1000")
			config.ExecLimits = &limit.Limits{}
			change(&config)
			b := create(t, config).start()
			c := b.RuntimeContainer.(*container)
			n, err := c.execGroups.Make(config.ExecLimits)
			must(t, err)
			// One that it has started: to start one itself it would have to win a race.
			child := exec.Command("sleep", "1000")
			must(t, child.Start())
			for _, dir := range n.Paths {
				must(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(child.Process.Pid)), 0))
			}
			dead := make(chan struct{})
			go func() { _ = child.Wait(); close(dead) }() // that it was killed is looked up below
			streams, err := stdio.Open(t.Context(), stdio.Config{Terminal: true, Stdout: "file:///dev/null"}, idmap.Owner{})
			must(t, err)
			defer streams.Close()
			null, err := os.Open(os.DevNull)
			must(t, err)
			defer null.Close()
			// Before the terminal comes something else.
			must(t, unix.Sendmsg(int(streams.ConsoleSocket().Fd()), []byte("x"), unix.UnixRights(int(null.Fd())), nil, 0))
			p := command("sleep", "1000")
			p.Terminal = true
			lp, err := translate.Process(p, streams)
			must(t, err)
			h, err := c.execIn(t.Context(), lp, streams, n)
			if err == nil {
				must(t, h.Signal(unix.SIGKILL))
				h.Wait()
			}
			if err == nil || !strings.Contains(err.Error(), "terminal") {
				t.Errorf("exec = %v, want an error about its terminal", err)
			}
			pids, err := b.Cgroup().Procs()
			must(t, err)
			if !slices.Equal(pids, []int{b.Init().Pid()}) {
				t.Errorf("%v live on, want init alone", pids)
				must(t, child.Process.Kill())
			}
			within(t, "its death", dead)
			if left := nestDirs(t, config); len(left) > 0 {
				t.Errorf("cgroups left: %v", left)
			}
		})
	}
}
