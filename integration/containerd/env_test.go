// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/eventlog"
	"sandbox.internal/shim/integration/harness"
)

// shared is the containerd of all tests that do not stop or kill theirs. TestMain owns it.
var shared *harness.Containerd

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	ctx := context.Background()
	env, err := harness.Require(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	shared, err = harness.NewContainerd(env)
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare containerd:", err)
		return 1
	}
	status := 1
	if err := shared.Start(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "start containerd: %v\n%s", err, shared.LogFrom(0))
	} else {
		status = m.Run()
	}
	if err := shared.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "stop containerd:", err)
		return 1
	}
	return status
}

// testLimit ends every call of a test that hangs. The longest test runs hundreds of containers.
var testLimit = harness.Slow(2 * time.Minute)

// env is what one test works with: a namespace of its own on a containerd, and the events of that namespace.
type env struct {
	testing.TB
	ctx         context.Context //nolint:containedctx // of the namespace, for one test: it ends after a limit
	containerd  *harness.Containerd
	client      *client.Client
	namespace   string
	image       client.Image
	snapshotter string
	allowed     []string // unsafe annotations that the test's containers may have
	events      *eventlog.Log
	logStart    int64
}

func newEnv(t *testing.T) *env {
	t.Helper()
	return newEnvOn(t, shared)
}

// newEnvOn prepares a test on c. What the test leaves behind fails it.
func newEnvOn(tb testing.TB, c *harness.Containerd) *env {
	tb.Helper()
	hash := fnv.New32a()
	fmt.Fprint(hash, tb.Name(), os.Getpid())
	e := &env{
		TB:         tb,
		containerd: c,
		namespace:  fmt.Sprintf("%s%d-%08x", harness.NamespacePrefix, os.Getpid(), hash.Sum32()),
		events:     eventlog.New(),
		logStart:   c.LogSize(),
	}
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(context.Background(), e.namespace), testLimit)
	e.ctx = ctx
	tb.Cleanup(cancel)

	var err error
	if e.client, err = c.Client(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = e.client.Close() })
	tb.Cleanup(e.finish)
	if e.image, e.snapshotter, err = c.Load(ctx, e.client); err != nil {
		tb.Fatal(err)
	}
	e.subscribe()
	return e
}

// finish looks for leaks, and prints containerd's log, which has the shims' in it, when the test failed.
func (e *env) finish() {
	e.scope().Check(e.TB)
	if e.Failed() {
		e.Logf("events: %s", e.events)
		e.Logf("log of containerd and the shims:\n%s", strings.TrimSpace(e.containerd.LogFrom(e.logStart)))
	}
}

// scope is everything that the test may have made. Tests on one containerd run one after the other.
func (e *env) scope() harness.Scope {
	bundles := filepath.Join(e.containerd.State, "io.containerd.runtime.v2.task", e.namespace)
	s := harness.Scope{
		Namespace: e.namespace,
		Dirs: []string{
			e.containerd.Fifos, bundles,
			filepath.Join(e.containerd.Dir, "root", "io.containerd.runtime.v2.task", e.namespace),
		},
		MountsIn: bundles,
	}
	if harness.Runtime() == harness.Ours { // the runc shim leaves its socket when it is killed
		s.Dirs = append(s.Dirs, e.containerd.Sockets)
	}
	return s
}

// subscribe starts the goroutine that fills e.events; it ends, and is joined, when the test does.
func (e *env) subscribe() {
	ctx, cancel := context.WithCancel(e.ctx)
	messages, errs := e.client.Subscribe(ctx, "namespace=="+e.namespace+`,topic~=^/tasks/`)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case m := <-messages:
				event, err := typeurl.UnmarshalAny(m.Event)
				if err != nil {
					e.Errorf("event %s: %v", m.Topic, err)
					continue
				}
				e.events.Add(eventlog.Entry{Namespace: m.Namespace, Topic: m.Topic, Event: event})
			case err := <-errs:
				if ctx.Err() == nil {
					e.Logf("no more events: %v", err) // containerd was stopped
				}
				return
			}
		}
	}()
	e.Cleanup(func() { cancel(); <-done })
}

func (e *env) must(err error, what string) {
	e.Helper()
	if err != nil {
		e.Fatalf("%s: %v", what, err)
	}
}

// wantEvents waits until the events of a container are exactly want. Containerd asks a shim to shut down right after a
// delete, and the runc shim then drops what it has not sent yet, or sends it out of order: so of other shims neither
// the order is compared nor the container's own exit and delete.
func (e *env) wantEvents(containerID, want string) {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.ctx, harness.Slow(10*time.Second))
	defer cancel()
	done := func(text string) bool { return text == want }
	if harness.Runtime() != harness.Ours {
		done = func(text string) bool { return sortedBut(containerID, text) == sortedBut(containerID, want) }
	}
	if err := e.events.Wait(ctx, containerID, done); err != nil {
		e.Errorf("%v\nwant %q", err, want)
	}
}

// sortedBut returns the events of a text in alphabetical order, without the container's exit and delete.
func sortedBut(containerID, text string) string {
	words := strings.Split(text, " | ")
	slices.Sort(words)
	return strings.Join(slices.DeleteFunc(words, func(word string) bool {
		return strings.HasPrefix(word+" ", "exit "+containerID+" ") || word == "delete "+containerID
	}), " | ")
}

// waitEvents waits until the events of a container contain want. Other shims may lose it: see wantEvents.
func (e *env) waitEvents(containerID, want string) {
	e.Helper()
	patience := harness.Slow(10 * time.Second)
	if harness.Runtime() != harness.Ours {
		patience = time.Second
	}
	ctx, cancel := context.WithTimeout(e.ctx, patience)
	defer cancel()
	err := e.events.Wait(ctx, containerID, func(text string) bool { return strings.Contains(text, want) })
	switch {
	case err == nil:
	case harness.Runtime() == harness.Ours:
		e.Errorf("%v\nwant %q in it", err, want)
	default:
		e.Logf("%v: no %q", err, want)
	}
}

// shim returns the pid of the one shim that was started for a container.
func (e *env) shim(containerID string) int {
	e.Helper()
	shims := harness.Shims(e.namespace, containerID)
	if len(shims) != 1 {
		e.Fatalf("shims of %s: %v, want one", containerID, shims)
	}
	return shims[0].Pid
}

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
	rootfs   string      // directory in place of the test image
	io       cio.Creator // in place of streams to buffers
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
	if cfg.io != nil {
		return cfg.io
	}
	if cfg.terminal {
		return cio.NewCreator(cio.WithStreams(cfg.stdin, out, nil), cio.WithTerminal,
			cio.WithFIFODir(e.containerd.Fifos))
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

func (t *task) startExec(id string, cfg config, change func(*specs.Process), args ...string) *process {
	t.e.Helper()
	p := t.exec(id, cfg, change, args...)
	t.e.must(p.Start(t.e.ctx), "start "+id)
	return p
}

// runExec runs a command to its end, which must be status 0. The process that it returns has its output.
func (t *task) runExec(id string, args ...string) *process {
	t.e.Helper()
	p := t.startExec(id, config{}, nil, args...)
	p.wantExit(0)
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

func (p *process) kill() {
	p.e.Helper()
	if err := p.Kill(p.e.ctx, syscall.SIGKILL); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
		p.e.Fatalf("kill %s: %v", p.ID(), err)
	}
	p.wantExit(128 + uint32(syscall.SIGKILL))
}

func withStdin(r *client.IOCloseInfo) { r.Stdin = true }

// plain are the options of a container that runs true.
func (e *env) plain(id string) []client.NewContainerOpts {
	return []client.NewContainerOpts{
		client.WithImage(e.image), client.WithSnapshotter(e.snapshotter), client.WithNewSnapshot(id, e.image),
		client.WithNewSpec(oci.WithImageConfig(e.image), oci.WithProcessArgs("true")),
		client.WithRuntime(e.containerd.Env.Runtime, nil),
	}
}

// allow lets the test's containers have these unsafe annotations. Their options are TOML from then on.
func (e *env) allow(names ...string) { e.allowed = append(e.allowed, names...) }

// withOptions gives a container runtime options in the form of TOML.
func withOptions(e *env, text string) []client.NewContainerOpts {
	if len(e.allowed) > 0 {
		text = fmt.Sprintf("AllowUnsafeAnnotations = ['%s']\n", strings.Join(e.allowed, "', '")) + text
	}
	return []client.NewContainerOpts{client.WithRuntime(e.containerd.Env.Runtime, &runtimeoptions.Options{
		TypeUrl: "sandbox", ConfigBody: []byte(text),
	})}
}

// defaultOptions are those of a container of which the test does not say others: none, if they need not be.
func (e *env) defaultOptions() client.NewContainerOpts {
	if len(e.allowed) > 0 || harness.PodsPerShim() != "" {
		return withOptions(e, harness.PodsPerShim())[0]
	}
	return client.WithRuntime(e.containerd.Env.Runtime, nil)
}

func TestUnsafeAnnotations_AreRefusedUnlessAnOptionAllowsThem(t *testing.T) {
	harness.OursOnly(t, "annotations by which a container reaches the host")
	e := newEnv(t)
	pidFile := filepath.Join(publicDir(t), "pid")
	none := client.WithRuntime(e.containerd.Env.Runtime, nil)
	off := withOptions(e, "HostRootfs = 'off'\nListen = 'none'\nAllowUnsafeAnnotations = ['cpuset.source']")[0]
	runc := client.WithRuntime(e.containerd.Env.Runtime, &options.Options{}) // which has no room for the option
	network := oci.WithHostNamespace(specs.NetworkNamespace)
	for i, tt := range []struct {
		name, value string
		options     client.NewContainerOpts
	}{
		{"host-rootfs", "/root:/r:rw", none},
		{"host-rootfs", "/root:/r:rw", off},
		{"host-rootfs.mask", "none", runc},
		{"pid-file", pidFile, none},
		{"pid-file", pidFile, runc},
		{"listen", "tcp://127.0.0.1:1", off},
		{"cpuset.source", "/" + e.namespace, none},
	} {
		key := "io.containerd.sandbox.v1/" + tt.name
		cfg := config{opts: with(network, annotations(key, tt.value)), new: []client.NewContainerOpts{tt.options}}
		_, err := e.tryCreate(fmt.Sprintf("c%d", i), cfg, "true")
		wantError(t, err, errdefs.ErrPermissionDenied, key, fmt.Sprintf("%q", tt.value),
			fmt.Sprintf("AllowUnsafeAnnotations = [%q]", tt.name))
	}
	e.allow("pid-file")
	c := e.run("allowed", config{opts: with(annotations(annotationPidFile, pidFile))}, "true")
	c.wantExit(0)
}
