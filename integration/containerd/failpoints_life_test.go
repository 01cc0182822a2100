// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// operation is a part of a life, which fails if a shim does.
type operation struct {
	name string
	do   func() error
}

// life is what containers or pods go through, so that the shim comes to its failpoints.
type life struct {
	name string
	// prior are failpoints that have to fail so that others are reached, by the operation before which they are set.
	prior map[string]map[string]string
	begin func(*lives) []operation
}

// lives is one run of a life.
type lives struct {
	*env
	id    string // begins that of each container
	dir   string // for pid files
	tasks []*task
	execs []*process
	boxes []*box
	dead  bool // the shim was killed, and containerd calls the delete command
}

// allLives has the simplest that comes to a failpoint first.
func allLives() []life {
	at := func(operation, failpoint, action string) map[string]map[string]string {
		return map[string]map[string]string{operation: {failpoint: action}}
	}
	return []life{
		{name: "container whose shim is killed", begin: (*lives).killed},
		{name: "pod whose shim is killed", begin: (*lives).killedPod},
		{name: "container", begin: (*lives).container},
		{name: "pod", begin: func(l *lives) []operation { return l.pod() }},
		{name: "pod with a process", begin: func(l *lives) []operation { return l.pod(specs.PIDNamespace) }},
		{name: "containers of one shim", begin: (*lives).group},
		{name: "container of libcontainer", begin: (*lives).libcontainer},
		{name: "start that fails", prior: at("create", "start.daemon", "error"), begin: (*lives).container},
		{name: "start without a socket", prior: at("create", "start.socket", "error"), begin: (*lives).container},
		{name: "create that is refused", prior: at("create", "create.begin", "error"), begin: (*lives).container},
		{name: "create that fails", prior: at("create", "create.pid-file", "error"), begin: (*lives).container},
		{name: "create that fails in the runtime", prior: at("create", "create.state-file", "error"), begin: (*lives).container},
		{name: "create that fails in the launcher", prior: at("create", "create.limits", "error"), begin: (*lives).container},
		{name: "create whose shim is killed", prior: at("create", "create.cgroup", "kill"), begin: (*lives).container},
		{name: "exec that fails", prior: at("exec", "process.streams", "error"), begin: (*lives).container},
		{name: "update that fails", prior: at("update", "update.write", "error"), begin: (*lives).container},
	}
}

// full is a container that has all that the shim can give one whose init it starts without libcontainer.
func (l *lives) full(more ...oci.SpecOpts) config {
	return config{opts: append(with(
		annotations(
			annotationPidFile, filepath.Join(l.dir, "{id}"), annotationHostRootfs, "/usr:/host",
			"io.containerd.sandbox.v1/exec-cgroup", "true",
			"io.containerd.sandbox.v1/exec-limits", "memory=64Mi,pids=64",
			"io.containerd.sandbox.v1/verdict-file", filepath.Join(l.TempDir(), "{id}:{exec}"),
		),
		notified("60s"),
	), more...)}
}

// create makes a container, of which the test sees the end.
func (l *lives) create(id string, cfg config, args ...string) (*task, error) {
	t, err := l.tryCreate(id, cfg, args...)
	if err == nil {
		l.tasks = append(l.tasks, t)
	}
	return t, err
}

func (l *lives) container() []operation { return l.runs(l.full()) }

// libcontainer is the same, and has what needs libcontainer.
func (l *lives) libcontainer() []operation {
	return l.runs(l.full(harness.ExecByLibcontainer, sockets("log=unix:///run/log.sock")))
}

func (l *lives) runs(cfg config) []operation {
	var c *task
	return []operation{
		{"create", func() (err error) {
			c, err = l.create(l.id, cfg, "sh", "-c", tell+`tell READY=1; exec sleep 1000`)
			return err
		}},
		{"start", func() error { return c.process.Start(l.ctx) }},
		{"exec", func() error { return l.exec(c) }},
		{"pause", func() error { return errors.Join(c.Pause(l.ctx), c.Resume(l.ctx)) }},
		{"update", func() error {
			shares := uint64(512)
			return c.Update(l.ctx, client.WithResources(&specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}}))
		}},
		{"exit", func() error { return end(c) }},
		{"delete", func() error { return l.delete(c) }},
	}
}

// exec runs true in a container, and deletes that.
func (l *lives) exec(c *task) error {
	x, err := c.tryExec("x"+c.ID(), config{}, nil, "true")
	if err != nil {
		return err
	}
	l.execs = append(l.execs, x)
	if err := x.Start(l.ctx); err != nil {
		return err
	}
	status := <-x.exited
	x.awaitOutput()
	_, err = x.Delete(l.ctx)
	return errors.Join(status.Error(), err)
}

// end kills a container and waits for its exit.
func end(c *task) error {
	if err := c.process.Kill(c.e.ctx, syscall.SIGKILL); err != nil {
		return err
	}
	select {
	case status := <-c.exited:
		return status.Error()
	case <-time.After(harness.Slow(20 * time.Second)):
		return errors.New("no exit is told")
	}
}

func (l *lives) delete(c *task) error {
	c.awaitOutput()
	_, err := c.Task.Delete(l.ctx)
	return err
}

// group is three containers of one shim, of which the one goes first for which it was started.
func (l *lives) group() []operation {
	var all [3]*task
	run := func(i int) func() error {
		return func() (err error) {
			cfg := config{opts: with(annotations("io.containerd.runc.v2.group", l.id))}
			if all[i], err = l.create(fmt.Sprint(l.id, "-", i), cfg, "sleep", "1000"); err == nil {
				err = all[i].process.Start(l.ctx)
			}
			return err
		}
	}
	remove := func(i int) func() error {
		return func() error { return errors.Join(end(all[i]), l.delete(all[i])) }
	}
	return []operation{
		{"run the first", run(0)},
		{"run the second", run(1)},
		{"run the third", run(2)},
		{"delete the first", remove(0)},
		{"delete the second", remove(1)},
		{"delete the third", remove(2)},
	}
}

// pod is a sandbox with a container, and a cgroup that the shim makes.
func (l *lives) pod(more ...specs.LinuxNamespaceType) []operation {
	var b *box
	var c *task
	return []operation{
		{"create pod", func() (err error) {
			if b, err = l.tryBox(l.id, l.podSpec(more...)); err == nil {
				l.boxes = append(l.boxes, b)
			}
			return err
		}},
		{"start pod", func() error {
			instance, err := b.controller.Start(l.ctx, l.id)
			b.pid = int(instance.Pid)
			return err
		}},
		{"run", func() (err error) {
			if c, err = l.create(l.id+"-c", b.member(), "sleep", "1000"); err == nil {
				err = c.process.Start(l.ctx)
			}
			return err
		}},
		{"stop pod", func() error { return b.Stop(l.ctx) }},
		{"delete", func() error { return l.delete(c) }},
		{"shut down pod", func() error { return b.Shutdown(l.ctx) }},
	}
}

func (l *lives) podSpec(more ...specs.LinuxNamespaceType) *specs.Spec {
	spec := boxSpec()
	for _, kind := range more {
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: kind})
	}
	spec.Linux.CgroupsPath = fmt.Sprintf("/%s/pod-%s/box", l.namespace, l.id)
	return spec
}

// killing is the operation after which the delete command does the rest.
const killing = "kill the shim"

func (l *lives) killed() []operation {
	return append(l.container()[:2], operation{killing, func() error { return l.killShim() }})
}

func (l *lives) killedPod() []operation {
	return append(l.pod()[:3], operation{killing, func() error { return l.killShim() }})
}

// killShim returns when containerd has noticed. If it is asked to delete a container before that, it removes the bundle
// whatever the delete command says.
func (l *lives) killShim() error {
	shims := harness.Shims(l.namespace, l.id)
	if len(shims) != 1 {
		return fmt.Errorf("shims of %s: %v", l.id, shims)
	}
	if err := unix.Kill(shims[0].Pid, unix.SIGKILL); err != nil {
		return err
	}
	l.dead = true
	return harness.Poll(func() error {
		for _, t := range l.tasks {
			if _, err := t.container.Task(l.ctx, nil); !errdefs.IsNotFound(err) {
				return fmt.Errorf("containerd has not noticed that the shim of %s died: %w", t.ID(), err)
			}
		}
		return nil
	})
}

// settle returns when containerd knows what became of each container and pod: it is gone with its shim, or is deleted
// here. A delete that failed is tried again.
func (l *lives) settle() {
	l.Helper()
	for _, t := range l.tasks {
		err := harness.Poll(func() error {
			ctx, cancel := context.WithTimeout(l.ctx, harness.Slow(10*time.Second))
			defer cancel()
			loaded, err := t.container.Task(ctx, nil)
			if errdefs.IsNotFound(err) && (l.dead || len(harness.Shims(l.namespace, l.id)) == 0) {
				return nil
			}
			if errdefs.IsNotFound(err) {
				// By the shim, perhaps: containerd has not deleted what a Delete that failed has.
				_, err = l.client.TaskService().Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: t.ID()})
				if errdefs.IsNotFound(errgrpc.ToNative(err)) {
					err = nil
				}
				return err
			}
			if err == nil {
				_ = loaded.Resume(ctx) // on cgroup v1 a frozen process does not die
				_, err = loaded.Delete(ctx, client.WithProcessKill)
			}
			if err == nil {
				err = errors.New("deleted: look again")
			}
			return err
		})
		l.must(err, "give up "+t.ID())
		t.closeIO()
	}
	for _, x := range l.execs {
		x.closeIO()
	}
	for _, b := range l.boxes {
		l.must(harness.Poll(func() error { return b.Shutdown(l.ctx) }), "give up the pod")
	}
}
