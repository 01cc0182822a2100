// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/process"
)

// makeThreaded makes the v2 cgroup dir, for threads of processes in the one above.
func makeThreaded(t *testing.T, dir string) {
	t.Helper()
	must(t, os.Mkdir(dir, 0o755))
	must(t, cgroup.Write(filepath.Join(dir, "cgroup.type"), "threaded"))
}

// A program may split its threads over cgroups (kernel, cgroup-v2.rst, "Threads"). Nothing can be put beside these into
// a cgroup that is not threaded.
func TestExec_BesideThreadedCgroups(t *testing.T) {
	needUnified(t)
	for name, change := range map[string]func(*process.Config){
		"by the launcher": func(*process.Config) {},
		"by libcontainer": func(c *process.Config) { c.Spec.Linux.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux} },
	} {
		for _, own := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, with a cgroup of its own: %t", name, own), func(t *testing.T) {
				wantNoLeaks(t)
				config := newConfig(t, "sleep", "1000")
				config.ExecCgroup = own
				change(&config)
				b := create(t, config).start()
				makeThreaded(t, filepath.Join(b.Cgroup().Path(""), "threads"))
				if !own {
					if got := b.exec(t.Context(), command("true")); got.err != nil || got.status != 0 {
						t.Errorf("exec = %+v", got)
					}
					return
				}
				x := b.execIn(command("sh", "-c", "sleep 1000 & sleep 1000"))
				text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", x.Pid()))
				must(t, err)
				// On hybrid libcontainer puts it into the hierarchies of v1 alone.
				where := "0::" + config.Spec.Linux.CgroupsPath + "/exec-1\n"
				if (config.Spec.Linux.Personality == nil || unified()) && !strings.Contains(string(text), where) {
					t.Errorf("the exec is in %q, want %q", text, where)
				}
				eventually(t, "the time when init, the exec and its child are listed", func() bool {
					pids, err := b.Cgroup().Procs()
					return err == nil && len(pids) == 3
				})
				must(t, x.Signal(unix.SIGKILL))
				if exit := x.Wait(); exit.Status != 137 {
					t.Errorf("status = %d, want 137", exit.Status)
				}
				if pids, err := b.Cgroup().Procs(); err != nil || !slices.Equal(pids, []int{b.Init().Pid()}) {
					t.Errorf("%v, %v live on, want init alone", pids, err)
				}
				x.Release()
				if left := nestDirs(t, config); len(left) > 0 {
					t.Errorf("cgroups left: %v", left)
				}
			})
		}
	}
}

func TestDestroy_InAThreadedCgroup(t *testing.T) {
	if !unified() {
		lacking(t, "cgroup2", "cgroup v2 at /sys/fs/cgroup: the hierarchies of v1 list processes")
	}
	config := newConfig(t, "sh", "-c", "sleep 1000 & sleep 1000")
	domain := "/sys/fs/cgroup" + config.Spec.Linux.CgroupsPath
	must(t, os.MkdirAll(domain, 0o755))
	t.Cleanup(func() { must(t, os.Remove(domain)) })
	makeThreaded(t, domain+"/threads")
	t.Cleanup(func() { must(t, os.Remove(domain+"/threads")) })
	config.Spec.Linux.CgroupsPath += "/threads/container"
	config.Spec.Linux.Namespaces = slices.DeleteFunc(config.Spec.Linux.Namespaces,
		func(n specs.LinuxNamespace) bool { return n.Type == specs.PIDNamespace }) // its end would kill all
	config.ExecCgroup = true
	b := create(t, config).start()
	listed := func(n int) func() bool {
		return func() bool { pids, err := b.Cgroup().Procs(); return err == nil && len(pids) == n }
	}
	eventually(t, "list of init and its child", listed(2))
	x := b.execIn(command("sleep", "1000"))
	eventually(t, "list of the exec", listed(3))
	must(t, x.Signal(unix.SIGKILL))
	x.Wait()
	x.Release()
	must(t, b.Init().Signal(unix.SIGKILL))
	b.wait()
	if err := b.Destroy(); err != nil {
		t.Errorf("Destroy: %v", err)
	}
	wantNothingLeft(t, config)
}

// As systemd does in a container: it leaves the cgroup of the container to controllers for those below.
func TestExec_JoinsInitInACgroupThatTheContainerMade(t *testing.T) {
	if !unified() {
		lacking(t, "cgroup2", "cgroup v2 alone")
	}
	wantNoLeaks(t)
	b := create(t, newConfig(t, "sleep", "1000")).start()
	dir := b.Cgroup().Path("")
	must(t, os.Mkdir(filepath.Join(dir, "inner"), 0o755))
	must(t, cgroup.Write(filepath.Join(dir, "inner/cgroup.procs"), fmt.Sprint(b.Init().Pid())))
	must(t, cgroup.Write(filepath.Join(dir, "cgroup.subtree_control"), "+pids"))
	for _, limit := range []string{"max", "1"} {
		must(t, cgroup.Write(filepath.Join(dir, "inner/pids.max"), limit))
		got := b.exec(t.Context(), command("cat", "/proc/self/cgroup"))
		if where := b.config.Spec.Linux.CgroupsPath + "/inner\n"; got.err != nil || !strings.HasSuffix(got.out, where) {
			t.Errorf("exec with a limit of %s processes = %d, %q, %v, want it in %q", limit, got.status, got.out, got.err, where)
		}
	}
	if l := b.Launch(); l.ExecsByLibcontainer > 0 {
		t.Errorf("%d execs by libcontainer: %s", l.ExecsByLibcontainer, l.ExecReason)
	}
}
