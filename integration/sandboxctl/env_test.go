// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandboxctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"

	"sandbox.internal/shim/integration/harness"
)

const runc = "io.containerd.runc.v2"

// env is a namespace of its own on a containerd.
type env struct {
	testing.TB
	*harness.Containerd
	ctx         context.Context //nolint:containedctx // of the namespace, for one test
	client      *client.Client
	namespace   string
	image       client.Image
	snapshotter string
}

func newEnv(t *testing.T) *env {
	t.Helper()
	harness.OursOnly(t, "sandboxctl, which needs its shims")
	return newEnvOn(t, shared)
}

// newPatient prepares a test on a containerd of its own with the configuration of config; nil is that of other tests,
// without CRI.
func newPatient(t *testing.T, config func(*harness.Containerd) []byte) *env {
	t.Helper()
	return newPatientWith(t, shared.Env, config)
}

// newPatientWith is newPatient with other programs.
func newPatientWith(t *testing.T, programs harness.Env, config func(*harness.Containerd) []byte) *env {
	t.Helper()
	c, err := harness.NewContainerd(programs)
	if config != nil {
		c, err = harness.NewConfigured(programs, config)
	}
	if err != nil {
		t.Fatal(err)
	}
	harness.AtEnd(t, c.Close)
	if err := c.Start(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, c.LogFrom(0))
	}
	return newEnvOn(t, c)
}

// newEnvOn prepares a test on c. What the test leaves behind fails it.
func newEnvOn(t *testing.T, c *harness.Containerd) *env {
	t.Helper()
	hash := fnv.New32a()
	fmt.Fprint(hash, t.Name(), os.Getpid())
	e := &env{TB: t, Containerd: c, namespace: fmt.Sprintf("%s%d-%08x", harness.NamespacePrefix, os.Getpid(), hash.Sum32())}
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(context.Background(), e.namespace), harness.Slow(2*time.Minute))
	e.ctx = ctx
	t.Cleanup(cancel)
	var err error
	e.client, err = c.Client()
	e.must(err)
	t.Cleanup(func() { _ = e.client.Close() })
	t.Cleanup(func() {
		(harness.Scope{Namespace: e.namespace, MountsIn: e.bundles(), Dirs: []string{e.bundles(), c.Sockets}}).Check(t)
		if t.Failed() {
			t.Logf("log of containerd and the shims:\n%s", c.LogFrom(0))
		}
	})
	e.image, e.snapshotter, err = c.Load(ctx, e.client)
	e.must(err)
	return e
}

// bundles is the directory of the bundles of the test's namespace.
func (e *env) bundles() string {
	return filepath.Join(e.State, "io.containerd.runtime.v2.task", e.namespace)
}

func (e *env) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

// create makes a container and its task. Both are removed with the test.
func (e *env) create(id, runtime string, opts []oci.SpecOpts, more ...client.NewContainerOpts) client.Task {
	e.Helper()
	c := e.container(id, runtime, opts, more...)
	task, err := c.NewTask(e.ctx, cio.NullIO)
	e.must(err)
	return task
}

func (e *env) container(id, runtime string, opts []oci.SpecOpts, more ...client.NewContainerOpts) client.Container {
	e.Helper()
	opts = append([]oci.SpecOpts{oci.WithImageConfig(e.image), oci.WithProcessArgs("sleep", "1000")}, opts...)
	c, err := e.client.NewContainer(e.ctx, id, append([]client.NewContainerOpts{
		client.WithImage(e.image), client.WithSnapshotter(e.snapshotter), client.WithNewSnapshot(id, e.image),
		client.WithNewSpec(opts...), client.WithRuntime(runtime, nil),
	}, more...)...)
	e.must(err)
	e.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), harness.Slow(20*time.Second))
		defer cancel()
		task, err := c.Task(ctx, nil)
		if err == nil {
			_ = task.Resume(ctx) // most are not paused
			_, err = task.Delete(ctx, client.WithProcessKill)
		}
		if err != nil && !errdefs.IsNotFound(err) {
			e.Errorf("remove task %s: %v", id, err)
		}
		if err := c.Delete(ctx, client.WithSnapshotCleanup); err != nil && !errdefs.IsNotFound(err) {
			e.Errorf("remove container %s: %v", id, err)
		}
	})
	return c
}

func (e *env) run(id, runtime string, opts []oci.SpecOpts, more ...client.NewContainerOpts) client.Task {
	e.Helper()
	task := e.create(id, runtime, opts, more...)
	e.must(task.Start(e.ctx))
	return task
}

// exec runs a program in a container and waits for its end, unless it is to go on.
func (e *env) exec(task client.Task, id string, wait bool, args ...string) {
	e.Helper()
	spec, err := task.Spec(e.ctx)
	e.must(err)
	spec.Process.Args = args
	p, err := task.Exec(e.ctx, id, spec.Process, cio.NullIO)
	e.must(err)
	ended, err := p.Wait(e.ctx)
	e.must(err)
	e.must(p.Start(e.ctx))
	if !wait {
		return
	}
	<-ended
	_, err = p.Delete(e.ctx)
	e.must(err)
}

func annotate(name, value string) oci.SpecOpts {
	return oci.WithAnnotations(map[string]string{"io.containerd.sandbox.v1/" + name: value})
}

// command is sandboxctl for the containerd and the namespace of the test.
func (e *env) command(args ...string) *exec.Cmd {
	args = append([]string{"--address", e.Address, "--state", e.State, "--namespace", e.namespace}, args...)
	cmd := exec.CommandContext(e.ctx, binary, args...)
	cmd.Stderr = e.Output()
	return cmd
}

func (e *env) ctl(args ...string) string {
	e.Helper()
	out, err := e.command(args...).Output()
	if err != nil {
		e.Fatalf("sandboxctl %q: %v", args, err)
	}
	return string(out)
}

// refused runs sandboxctl, which has to fail, and returns what it says.
func (e *env) refused(args ...string) string {
	e.Helper()
	var said strings.Builder
	cmd := e.command(args...)
	cmd.Stderr = &said
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
		e.Errorf("sandboxctl %q: %v, want exit status 1; it said %q", args, err, &said)
	}
	return said.String()
}

// row is a container in the JSON of ps.
type row struct {
	ID           string
	State        string
	Pid          int
	Runtime      string
	ExitStatus   int `json:"exit_status"`
	Execs        int
	ExecsStarted int  `json:"execs_started"`
	ExecsKnown   bool `json:"execs_known"`
	Usage        struct {
		CPU    int64 `json:"cpu_ns"`
		Memory int64
		Pids   int
		CPUs   string
		Limit  int64 `json:"memory_limit"`
	}
	Error string
}

type pod struct {
	ID, Name string
	Sandbox  bool
	Shim     struct {
		Pid      int
		Version  string
		RSS      int64
		Error    string
		Outdated bool
	}
	Containers []row
}

// ps returns pods, and containers by their id.
func (e *env) ps(options ...string) ([]pod, map[string]row) {
	e.Helper()
	var s struct{ Pods []pod }
	e.must(json.Unmarshal([]byte(e.ctl(append(options, "ps", "-o", "json")...)), &s))
	all := map[string]row{}
	for _, p := range s.Pods {
		for _, c := range p.Containers {
			all[c.ID] = c
		}
	}
	return s.Pods, all
}

func (e *env) shim(id string) int {
	e.Helper()
	shims := harness.Shims(e.namespace, id)
	if len(shims) != 1 {
		e.Fatalf("shims of %s: %v, want one", id, shims)
	}
	return shims[0].Pid
}
