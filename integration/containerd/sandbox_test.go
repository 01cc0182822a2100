// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/section"
)

// sandboxEnv is an env that looks for what sandboxes leave as well.
func sandboxEnv(t *testing.T, c *harness.Containerd) *env {
	t.Helper()
	return sandboxEnvFor(t, c, testLimit)
}

func sandboxEnvFor(t *testing.T, c *harness.Containerd, limit time.Duration) *env {
	t.Helper()
	harness.OursOnly(t, "the Sandbox API")
	e := newEnvFor(t, c, limit)
	bundles := filepath.Join(c.State, "io.containerd.sandbox.controller.v1.shim", e.namespace)
	t.Cleanup(func() {
		(harness.Scope{Namespace: e.namespace, MountsIn: bundles, Dirs: []string{bundles}}).Check(t)
	})
	return e
}

// The example of docs/pods.md, as it is printed there.
func TestSandbox_ByCtr(t *testing.T) {
	e := sandboxEnv(t, shared)
	code, err := section.Block("../../docs/pods.md", "sh", "ctr sandbox run")
	e.must(err, "find the example")
	run, remove, ok := strings.Cut(code, "ctr sandbox rm")
	if !ok {
		t.Fatalf("docs/pods.md has no example that removes a sandbox: %q", code)
	}
	ctr := func(script string) string {
		t.Helper()
		cmd := exec.CommandContext(e.ctx, "sh", "-e", "-c", script)
		cmd.Dir = t.TempDir()
		cmd.Env = append(os.Environ(), "PATH="+e.containerd.Env.Path(),
			"CONTAINERD_ADDRESS="+e.containerd.Address, "CONTAINERD_NAMESPACE="+e.namespace)
		cmd.Stderr = t.Output() // warnings of containerd's are there as well
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s\n%v", script, err)
		}
		return string(out)
	}
	out := ctr(run)
	if want := "web\n" + harness.Ours + "\n"; out != want {
		t.Errorf("%s\nprinted %q, want %q, as docs/pods.md says", run, out, want)
	}
	if list := ctr("ctr sandbox ls"); !slices.ContainsFunc(strings.Split(list, "\n"), func(line string) bool {
		f := strings.Fields(line)
		return len(f) > 1 && f[0] == "web" && slices.Contains(f, harness.Ours)
	}) {
		t.Errorf("ctr sandbox ls printed %q, want web with its runtime in it", list)
	}
	shim := e.shim("web")
	if got := namespaceOf(t, shim, "uts"); got == namespaceOf(t, os.Getpid(), "uts") {
		t.Error("the host name of the sandbox is that of the machine")
	}
	ctr("ctr sandbox rm" + remove)
	if out := ctr("ctr sandbox ls"); strings.Contains(out, "web") {
		t.Errorf("after rm the list is %q", out)
	}
}

func namespaceOf(t *testing.T, pid int, kind string) string {
	t.Helper()
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
	if err != nil {
		t.Fatal(err)
	}
	return link
}

// box is a sandbox with its controller, which tells more than the client.
type box struct {
	client.Sandbox
	e          *env
	controller sandbox.Controller
	pid        int
}

// newBox runs a sandbox with namespaces of its own; it is removed with the test.
func (e *env) newBox(id string) *box {
	e.Helper()
	b := e.createBox(id)
	instance, err := b.controller.Start(e.ctx, id)
	e.must(err, "start sandbox")
	b.pid = int(instance.Pid)
	return b
}

func (e *env) createBox(id string) *box {
	e.Helper()
	b, err := e.tryBox(id, boxSpec())
	e.must(err, "create sandbox")
	return b
}

func boxSpec() *specs.Spec {
	return &specs.Spec{
		Hostname: "box",
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.NetworkNamespace},
			{Type: specs.IPCNamespace},
			{Type: specs.UTSNamespace},
		}},
	}
}

// tryBox is createBox for tests that want an error.
func (e *env) tryBox(id string, spec *specs.Spec) (*box, error) {
	e.Helper()
	s, err := e.client.NewSandbox(e.ctx, id, client.WithSandboxRuntime(e.containerd.Env.Runtime, nil),
		client.WithSandboxSpec(spec))
	if err != nil {
		return nil, err
	}
	b := &box{Sandbox: s, e: e, controller: e.client.SandboxController("shim")}
	e.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), harness.Slow(20*time.Second))
		defer cancel()
		if err := s.Shutdown(ctx); err != nil && !errdefs.IsNotFound(err) {
			e.Errorf("shut down sandbox: %v", err)
		}
	})
	return b, nil
}

// member is the configuration of a container in the sandbox.
func (b *box) member() config {
	join := func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		for i, ns := range s.Linux.Namespaces {
			if file, ok := map[specs.LinuxNamespaceType]string{
				specs.NetworkNamespace: "net", specs.IPCNamespace: "ipc",
				specs.UTSNamespace: "uts",
			}[ns.Type]; ok {
				s.Linux.Namespaces[i].Path = fmt.Sprintf("/proc/%d/ns/%s", b.pid, file)
			}
		}
		return nil
	}
	return config{opts: []oci.SpecOpts{join}, new: []client.NewContainerOpts{client.WithSandbox(b.ID())}}
}

func TestSandbox_ContainersShareWhatItHas(t *testing.T) {
	e := sandboxEnv(t, shared)
	b := e.newBox("box")
	writer := e.run("writer", b.member(), "sh", "-c", "hostname > /dev/shm/x; sleep 1000")
	readers := 0
	harness.Eventually(t, "the file is written", func() error {
		readers++ // each has an id of its own: a snapshot outlives its task
		reader := e.run(fmt.Sprintf("reader%d", readers), b.member(), "cat", "/dev/shm/x", "/etc/hostname")
		defer reader.delete()
		if got := reader.exit(); got != 0 {
			return fmt.Errorf("reader exited with %d", got)
		}
		if got := reader.out.String(); got != "box\nbox\n" {
			return fmt.Errorf("reader read %q, want box twice", got)
		}
		return nil
	})
	if shims := harness.Shims(e.namespace, ""); len(shims) != 1 {
		t.Errorf("shims = %v, want one", shims)
	}
	status, err := b.controller.Status(e.ctx, "box", true)
	e.must(err, "status")
	if status.State != "SANDBOX_READY" || !strings.Contains(status.Info["members"], `"writer"`) {
		t.Errorf("status = %+v, want ready, with its containers", status)
	}
	e.must(b.Stop(e.ctx), "stop")
	if got := writer.exit(); got != 137 {
		t.Errorf("writer exited with %d, want 137", got)
	}
	writer.delete()
}
