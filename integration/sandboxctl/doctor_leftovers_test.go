// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandboxctl

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// runs runs a program that must succeed.
func runs(t *testing.T, out io.Writer, argv ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = out, t.Output()
	if err := cmd.Run(); err != nil {
		t.Fatalf("%q: %v", argv, err)
	}
}

// killProcess ends a process and waits until it is gone.
func (p *patient) killProcess(pid int) {
	p.Helper()
	p.must(unix.Kill(pid, unix.SIGKILL))
	harness.Eventually(p, fmt.Sprint("end of ", pid), func() error {
		if harness.Alive(pid) {
			return errors.New("it lives")
		}
		return nil
	})
}

// forgotten makes what containerd leaves behind when it cannot remove a bundle: the shim of a container is dead, its
// process runs, and a containerd that was started anew does not know it. It returns the pid of the process.
func (p *patient) forgotten(id string) (pid int) {
	p.Helper()
	shim := p.run(id)
	pid = p.pid(id)
	p.must(p.Kill())
	p.killProcess(shim)
	aside := filepath.Join(p.State, "aside")
	p.must(os.Rename(filepath.Join(p.bundles(), id), aside))
	p.must(p.Start(p.Context()))
	p.must(os.MkdirAll(p.bundles(), 0o711))
	p.ctr("container", "rm", id)
	p.must(os.Rename(aside, filepath.Join(p.bundles(), id)))
	return pid
}

// pid is that of a container's process.
func (p *patient) pid(id string) (pid int) {
	p.Helper()
	if _, err := fmt.Sscan(field(p.ctr("task", "ls"), id), &pid); err != nil {
		p.Fatalf("no process of %s: %v", id, err)
	}
	return pid
}

// field is the second word of the line that begins with a name.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			return f[1]
		}
	}
	return ""
}

func (p *patient) wantGone(what string) {
	p.Helper()
	if _, err := os.Lstat(what); err == nil {
		p.Errorf("%s is left", what)
	}
}

// fixes runs the command that sandboxctl says for its only leftover, after which there is none.
func (p *patient) fixes(r report) {
	p.Helper()
	if len(r.Leftovers) != 1 {
		p.Fatalf("leftovers: %+v, want one", r.Leftovers)
	}
	cmd := exec.CommandContext(p.Context(), "sh", "-c", r.Leftovers[0].Fix)
	cmd.Env = append(os.Environ(), "PATH="+p.Env.Path())
	cmd.Stdout, cmd.Stderr = p.Output(), p.Output()
	if err := cmd.Run(); err != nil {
		p.Fatalf("%s: %v", r.Leftovers[0].Fix, err)
	}
	harness.Eventually(p, "nothing is left", func() error {
		if r := p.examine(-1); len(r.Leftovers) > 0 {
			return fmt.Errorf("%+v", r.Leftovers)
		}
		return nil
	})
}

// wantWorks fails the test unless the shim of a container answers.
func (p *patient) wantWorks(id string) {
	p.Helper()
	if got := p.ctr("task", "exec", "--exec-id", "e", id, "echo", "hello"); got != "hello\n" {
		p.Errorf("an exec in %s printed %q", id, got)
	}
}

// A container in a pod of the Sandbox API has a bundle without most files, and the shim of its pod.
func TestDoctorLeftovers_APodThatLivesHasNone(t *testing.T) {
	p := newPatient(t, nil)
	c, err := p.Client()
	p.must(err)
	defer c.Close()
	ctx := namespaces.WithNamespace(t.Context(), p.namespace)
	s, err := c.NewSandbox(ctx, "box", client.WithSandboxRuntime(harness.Ours, nil), client.WithSandboxSpec(&specs.Spec{Linux: &specs.Linux{}}))
	p.must(err)
	p.must(s.Start(ctx))
	image, snapshotter, err := p.Load(ctx, c)
	p.must(err)
	_, err = c.NewContainer(ctx, "c1", client.WithImage(image), client.WithSnapshotter(snapshotter), client.WithNewSnapshot("c1", image),
		client.WithNewSpec(oci.WithImageConfig(image), oci.WithProcessArgs("sleep", "1000")), client.WithRuntime(harness.Ours, nil),
		client.WithSandbox("box"))
	p.must(err)
	p.ctr("task", "start", "--detach", "c1")
	p.wantNothingLeft(p.examine(-1))
	p.must(p.Kill()) // nobody says what is known, and the shim lives
	if r := p.examine(2); len(r.Leftovers) > 0 {
		t.Errorf("leftovers: %+v, want none", r.Leftovers)
	}
	p.must(p.Start(t.Context()))
	p.wantWorks("c1")
	_, err = p.tryCtr("task", "rm", "-f", "c1")
	p.must(err)
	p.ctr("container", "rm", "c1")
	p.ctr("sandbox", "rm", "-f", "box")
}

func TestDoctorLeftovers_AStateDirectoryWithoutABundle(t *testing.T) {
	p := newPatient(t, nil)
	p.run("c1")
	pid := p.forgotten("lost")
	bundle := filepath.Join(p.bundles(), "lost")
	p.must(unix.Unmount(filepath.Join(bundle, "rootfs"), unix.MNT_DETACH))
	p.must(os.RemoveAll(bundle))
	r := p.examine(2)
	dir := filepath.Join(harness.StateRoot(p.namespace), "lost")
	p.want(r, "leftover-states", "failure", "1 processes live in its cgroups")
	p.fixes(r)
	if harness.Alive(pid) {
		t.Error("the process of the container lives")
	}
	p.wantGone(dir)
	sockets, err := filepath.Glob(filepath.Join(p.Sockets, "*"))
	p.must(err)
	for _, socket := range sockets { // that of the dead shim is too young to be one
		p.must(os.Chtimes(socket, time.Time{}, time.Now().Add(-time.Minute)))
	}
	p.fixes(p.examine(-1))
	p.must(os.RemoveAll(filepath.Join(p.Dir, "root/io.containerd.runtime.v2.task", p.namespace, "lost")))
	p.wantWorks("c1")
}

// A shim whose bundle somebody removed, behind a containerd that was started anew.
func TestDoctorLeftovers_AShimWhoseBundleIsGone(t *testing.T) {
	p := newPatient(t, nil)
	shim := p.run("lost")
	p.must(p.Kill())
	bundle := filepath.Join(p.bundles(), "lost")
	p.must(unix.Unmount(filepath.Join(bundle, "rootfs"), unix.MNT_DETACH))
	p.must(os.RemoveAll(bundle))
	p.must(p.Start(p.Context()))
	p.ctr("container", "rm", "lost")
	r := p.examine(2)
	p.want(r, "leftover-shims", "failure", "it has 1 processes of containers")
	cmd := exec.CommandContext(t.Context(), "sh", "-c", r.Leftovers[0].Fix)
	p.must(cmd.Run())
	harness.Eventually(t, "end of the shim", func() error {
		if harness.Alive(shim) {
			return errors.New("it lives")
		}
		return nil
	})
	if r := p.examine(-1); len(r.Leftovers) > 0 { // its state directory
		p.fixes(r)
	}
	p.must(os.RemoveAll(filepath.Join(p.Dir, "root/io.containerd.runtime.v2.task", p.namespace, "lost")))
}
