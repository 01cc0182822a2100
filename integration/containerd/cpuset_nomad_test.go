// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
)

// nomad is the tree of cgroups that Nomad has since 1.7 (client/lib/cgroupslib): of all tasks that reserve no cores, and
// of those that do, each with one scope for a task, which has no list of its own.
type nomad struct {
	e              *env
	share, reserve source
}

func newNomad(e *env) nomad {
	e.Helper()
	top := e.makeCgroup("nomad.slice")
	writeControl(e, top, "cgroup.subtree_control", "+cpuset")
	n := nomad{e, e.source("nomad.slice/share.slice", "0-3"), source{e, e.makeCgroup("nomad.slice/reserve.slice")}}
	for _, s := range []source{n.share, n.reserve} {
		writeControl(e, s.dir, "cgroup.subtree_control", "+cpuset")
	}
	return n
}

// move writes both lists in Nomad's order, as reserving and releasing do.
func (n nomad) move(share, reserve string) {
	n.e.Helper()
	n.share.set(share)
	n.reserve.set(reserve)
}

// alloc is the id of an allocation. The containerd driver of Nomad calls containers as Nomad calls the cgroups.
func alloc(i int) string { return fmt.Sprintf("0f5ad3c0-1234-5678-9abc-%012x", i) }

// run runs a task in the cgroup that the page about Nomad says, with cores of its own unless there are none.
func (n nomad) run(i int, name, cores string, options []client.NewContainerOpts) *task {
	n.e.Helper()
	id := alloc(i) + "." + name + ".scope"
	top := strings.TrimPrefix(filepath.Dir(n.share.dir), "/sys/fs/cgroup")
	opts := with(oci.WithCgroup(filepath.Join(top, id)))
	if cores != "" {
		opts = append(opts, oci.WithCPUs(cores))
	}
	return n.e.run(id, config{new: options, opts: opts}, "sleep", "1000")
}

// Twenty tasks share, others reserve a core each and give it back.
func TestCPUSet_InNomadsCgroups(t *testing.T) {
	e := newCPUSetEnv(t)
	n := newNomad(e)
	path := strings.TrimPrefix(filepath.Dir(n.share.dir), "/sys/fs/cgroup/")
	options := withOptions(e, fmt.Sprintf(`CpusetSource = "%[1]s/other.slice/{alloc}.{task}.scope, %[1]s/other.slice/{id}, %[1]s/share.slice"`, path))
	shared := make([]*task, 20)
	for i := range shared {
		shared[i] = n.run(i, "web", "", options)
	}
	reserving := func(i int, core string) (*task, string) {
		scope := filepath.Join(n.reserve.dir, alloc(i)+".db.scope")
		e.must(os.Mkdir(scope, 0o755), "make the scope of a task")
		return n.run(i, "db", core, options), scope
	}
	want := func(when, share string, reserved map[*task]string) {
		t.Helper()
		for _, c := range shared {
			c.wantCPUs(when, share)
			wantRunsOn(t, when, c.Task.Pid(), share)
		}
		for c, core := range reserved {
			if got := control(t, c.cgroup(), "cpuset.cpus"); got != core {
				t.Errorf("%s: %s has %q, want the core that it reserved, %s", when, c.ID(), got, core)
			}
			p := c.exec("cpus", config{}, nil, "sleep", "1000")
			e.must(p.Start(e.ctx), "start an exec")
			wantRunsOn(t, when+", an exec", p.Pid(), core)
			p.kill()
		}
	}
	want("at first", "0-3", nil)
	n.move("0-2", "3")
	first, firstScope := reserving(100, "3")
	want("one core is reserved", "0-2", map[*task]string{first: "3"})
	n.move("0-1", "2-3")
	second, secondScope := reserving(101, "2")
	want("two cores are reserved", "0-1", map[*task]string{first: "3", second: "2"})
	first.kill()
	e.must(os.Remove(firstScope), "remove the scope of a task")
	n.move("0-1,3", "2")
	want("one is released", "0-1,3", map[*task]string{second: "2"})
	// Through Docker's driver Nomad gives a container its cores itself: what it writes stays.
	n.move("0-2", "3")
	writeControl(t, second.cgroup(), "cpuset.cpus", "3")
	want("another core", "0-2", map[*task]string{second: "3"})
	second.kill()
	e.must(os.Remove(secondScope), "remove the scope of a task")
	n.share.set("0-3")
	want("all are released", "0-3", nil)
	for _, c := range shared {
		c.kill()
	}
	e.wantQuiet()
}
