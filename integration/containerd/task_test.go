// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"context"
	"errors"
	"io"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
)

// process is a container's first process or an exec, with its output.
type process struct {
	client.Process
	e        *env
	out, err *harness.Buffer
	exited   <-chan client.ExitStatus
}

// task is a container with its first process.
type task struct {
	process
	client.Task
	container client.Container
}

// config is how a container is made. The zero value is a container of the test image without input.
type config struct {
	opts     []oci.SpecOpts
	task     []client.NewTaskOpts
	new      []client.NewContainerOpts
	stdin    io.Reader
	terminal bool
	stderr   string // fifo beside a terminal
	rootfs   string // directory in place of the test image
}

// create makes a container and its task, and does not start it. When the test ends, both are removed by force.
func (e *env) create(id string, cfg config, args ...string) *task {
	e.Helper()
	t, err := e.tryCreate(id, cfg, args...)
	e.must(err, "create "+id)
	return t
}

// tryCreate is create for tests that want an error.
func (e *env) tryCreate(id string, cfg config, args ...string) (*task, error) {
	e.Helper()
	root := oci.WithImageConfig(e.image)
	image := []client.NewContainerOpts{
		client.WithImage(e.image), client.WithSnapshotter(e.snapshotter),
		client.WithNewSnapshot(id, e.image),
	}
	if cfg.rootfs != "" {
		root, image = oci.WithRootFSPath(cfg.rootfs), nil
	}
	opts := append([]oci.SpecOpts{root, oci.WithProcessArgs(args...)}, cfg.opts...)
	if cfg.terminal {
		opts = append(opts, oci.WithTTY)
	}
	if harness.AllExecsByLibcontainer() {
		opts = append(opts, harness.ExecByLibcontainer)
	}
	container, err := e.client.NewContainer(e.ctx, id, append(append(image,
		client.WithNewSpec(opts...), e.defaultOptions(),
	), cfg.new...)...)
	if err != nil {
		return nil, err
	}
	e.Cleanup(func() { e.remove(container) })
	out, errOut := &harness.Buffer{}, &harness.Buffer{}
	created, err := container.NewTask(e.ctx, e.streams(cfg, out, errOut), cfg.task...)
	if err != nil {
		return nil, err
	}
	t := &task{Task: created, container: container, process: process{Process: created, e: e, out: out, err: errOut}}
	t.exited, err = created.Wait(e.ctx)
	return t, err
}

func (e *env) streams(cfg config, out, errOut io.Writer) cio.Creator {
	if cfg.terminal {
		create := cio.NewCreator(cio.WithStreams(cfg.stdin, out, nil), cio.WithTerminal,
			cio.WithFIFODir(e.containerd.Fifos))
		if cfg.stderr == "" {
			return create
		}
		return func(id string) (cio.IO, error) {
			io, err := create(id)
			return split{io, cfg.stderr}, err
		}
	}
	return cio.NewCreator(cio.WithStreams(cfg.stdin, out, errOut), cio.WithFIFODir(e.containerd.Fifos))
}

// remove takes away what is left of a container, whatever the test did with it.
func (e *env) remove(container client.Container) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), harness.Slow(20*time.Second))
	defer cancel()
	t, err := container.Task(ctx, nil)
	if err == nil {
		_ = t.Resume(ctx) // a paused task would not die on cgroup v1; most are not paused
		_, err = t.Delete(ctx, client.WithProcessKill)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		e.Errorf("remove task %s: %v", container.ID(), err)
	}
	if err := container.Delete(ctx, client.WithSnapshotCleanup); err != nil && !errdefs.IsNotFound(err) {
		e.Errorf("remove container %s: %v", container.ID(), err)
	}
}

// run creates a container and starts it.
func (e *env) run(id string, cfg config, args ...string) *task {
	e.Helper()
	t := e.create(id, cfg, args...)
	e.must(t.process.Start(e.ctx), "start "+id)
	return t
}

// exec adds a process to a container and does not start it. A nil change leaves the container's own settings but args.
func (t *task) exec(id string, cfg config, change func(*specs.Process), args ...string) *process {
	t.e.Helper()
	p, err := t.tryExec(id, cfg, change, args...)
	t.e.must(err, "exec "+id)
	return p
}

// tryExec is exec for tests that want an error.
func (t *task) tryExec(id string, cfg config, change func(*specs.Process), args ...string) (*process, error) {
	t.e.Helper()
	spec, err := t.container.Spec(t.e.ctx)
	t.e.must(err, "spec")
	spec.Process.Args, spec.Process.Terminal = args, cfg.terminal
	if change != nil {
		change(spec.Process)
	}
	p := &process{e: t.e, out: &harness.Buffer{}, err: &harness.Buffer{}}
	p.Process, err = t.Task.Exec(t.e.ctx, id, spec.Process, t.e.streams(cfg, p.out, p.err))
	if err != nil {
		return nil, err
	}
	p.exited, err = p.Wait(t.e.ctx)
	return p, err
}

// exit waits for the end of the process and returns its exit status.
func (p *process) exit() uint32 {
	p.e.Helper()
	select {
	case status := <-p.exited:
		code, _, err := status.Result()
		p.e.must(err, "exit of "+p.ID())
		return code
	case <-time.After(harness.Slow(20 * time.Second)):
		p.e.Fatalf("%s does not exit", p.ID())
		return 0
	}
}

// wantExit waits for the end of the process, compares its status and deletes it.
func (p *process) wantExit(want uint32) {
	p.e.Helper()
	if got := p.exit(); got != want {
		p.e.Errorf("exit status of %s = %d, want %d; stderr %q", p.ID(), got, want, p.err)
	}
	p.delete()
}

// delete removes a process that has exited. Its output is complete then.
func (p *process) delete() {
	p.e.Helper()
	p.awaitOutput()
	_, err := p.Delete(p.e.ctx)
	p.e.must(err, "delete "+p.ID())
}

// awaitOutput waits until the client has read the output to its end. Its Delete waits too, but first drops what it did
// not get to open yet, although the shim has opened it: a process that ends at once is quicker than the client's
// goroutine now and then. Where others hold the output, or it was never opened, there is no end to wait for.
func (p *process) awaitOutput() {
	streams := p.IO()
	if streams == nil {
		return
	}
	ended := make(chan struct{})
	go func() { // ends with the output, at the latest by Delete
		streams.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(harness.Slow(2 * time.Second)):
	}
}

// closeIO removes the fifos of a process that containerd does not know any more, which Delete does otherwise.
func (p *process) closeIO() {
	p.IO().Cancel()
	p.e.must(p.IO().Close(), "close the fifos of "+p.ID())
}

// kill sends SIGKILL, waits and deletes.
func (p *process) kill() {
	p.e.Helper()
	if err := p.Kill(p.e.ctx, syscall.SIGKILL); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
		p.e.Fatalf("kill %s: %v", p.ID(), err)
	}
	p.wantExit(128 + uint32(syscall.SIGKILL))
}

// withStdin makes CloseIO close the standard input.
func withStdin(r *client.IOCloseInfo) { r.Stdin = true }

// plain are the options of a container that runs true.
func (e *env) plain(id string) []client.NewContainerOpts {
	return []client.NewContainerOpts{
		client.WithImage(e.image), client.WithSnapshotter(e.snapshotter), client.WithNewSnapshot(id, e.image),
		client.WithNewSpec(oci.WithImageConfig(e.image), oci.WithProcessArgs("true")),
		client.WithRuntime(e.containerd.Env.Runtime, nil),
	}
}
