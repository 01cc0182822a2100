// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandboxctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"

	"sandbox.internal/shim/integration/harness"
)

// patient is a node that sandboxctl examines: a containerd that is broken in some way, and containers that ctr runs.
type patient struct {
	*testing.T
	*harness.Containerd
	namespace string
}

// newPatient starts a containerd of its own with the configuration of config; nil is that of other tests, without CRI.
// What is left of a test is removed, and fails it.
func newPatient(t *testing.T, config func(*harness.Containerd) []byte) *patient {
	t.Helper()
	env, err := harness.Require(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := harness.NewContainerd(env)
	if config != nil {
		c, err = harness.NewConfigured(env, config)
	}
	if err != nil {
		t.Fatal(err)
	}
	p := &patient{T: t, Containerd: c, namespace: fmt.Sprintf("%s%d-doctor", harness.NamespacePrefix, os.Getpid())}
	t.Cleanup(p.finish)
	if err := c.Start(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, c.LogFrom(0))
	}
	return p
}

// finish removes all containers, looks for leaks, and ends containerd.
func (p *patient) finish() {
	if p.Pid() == 0 {
		p.must(p.Start(context.Background()))
	}
	for id := range strings.FieldsSeq(p.ctr("container", "ls", "-q")) {
		_, _ = p.tryCtr("task", "rm", "-f", id) // there may be none
		p.ctr("container", "rm", id)
	}
	harness.Scope{
		Namespace: p.namespace, Dirs: []string{p.bundles(), p.Sockets}, MountsIn: p.bundles(),
	}.Check(p.T)
	if p.Failed() {
		p.Logf("log of containerd and the shims:\n%s", p.LogFrom(0))
	}
	if err := p.Close(); err != nil {
		p.Error(err)
	}
}

func (p *patient) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

// bundles is the directory of the bundles of the test's namespace.
func (p *patient) bundles() string {
	return filepath.Join(p.State, "io.containerd.runtime.v2.task", p.namespace)
}

func (p *patient) tryCtr(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Slow(time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(p.Env.Tools, "ctr"),
		append([]string{"--address", p.Address, "--namespace", p.namespace}, args...)...)
	cmd.Env = append(os.Environ(), "CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out), nil
}

func (p *patient) ctr(args ...string) string {
	p.Helper()
	out, err := p.tryCtr(args...)
	p.must(err)
	return out
}

// run starts a container that sleeps, and returns the pid of its shim.
func (p *patient) run(id string) int {
	p.Helper()
	p.start(id, p.Env.Runtime, oci.WithProcessArgs("sleep", "1000"))
	return p.shim(id)
}

// start starts a container of a runtime.
func (p *patient) start(id, runtime string, opts ...oci.SpecOpts) {
	p.Helper()
	c, err := p.Client()
	p.must(err)
	defer c.Close()
	ctx := namespaces.WithNamespace(p.Context(), p.namespace)
	image, snapshotter, err := p.Load(ctx, c)
	p.must(err)
	_, err = c.NewContainer(ctx, id, client.WithImage(image), client.WithSnapshotter(snapshotter), client.WithNewSnapshot(id, image),
		client.WithNewSpec(append([]oci.SpecOpts{oci.WithImageConfig(image)}, opts...)...), client.WithRuntime(runtime, nil))
	p.must(err)
	p.ctr("task", "start", "--detach", id)
}

func (p *patient) shim(id string) int {
	p.Helper()
	shims := harness.Shims(p.namespace, id)
	if len(shims) != 1 {
		p.Fatalf("shims of %s: %v, want one", id, shims)
	}
	return shims[0].Pid
}

// report is what sandboxctl prints; the fields that tests look at.
type report struct {
	Status string
	Checks []struct {
		Check, Status string
		Findings      []struct{ Status, Text, Fix string }
	}
	Leftovers []struct {
		Check, Path, Text, Caution, Fix string
		Pid                             int
	}
}

// command is "sandboxctl doctor" for the containerd of the test.
func (p *patient) command(args ...string) []string {
	return slices.Concat([]string{binary, "--address", p.Address, "--state", p.State, "doctor"}, args)
}

// examine runs sandboxctl, which must end with a status; -1 is any.
func (p *patient) examine(status int, args ...string) report {
	p.Helper()
	return p.examineBy(p.command(append([]string{"-o", "json"}, args...)...), status)
}

func (p *patient) examineBy(argv []string, status int) report {
	p.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Slow(time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	exit, _ := errors.AsType[*exec.ExitError](err)
	if err != nil && exit == nil || status >= 0 && cmd.ProcessState.ExitCode() != status {
		p.Fatalf("%q: %v, want status %d\n%s%s", argv, err, status, out, stderr.String())
	}
	var r report
	if err := json.Unmarshal(out, &r); err != nil {
		p.Fatalf("%q printed %q: %v", argv, out, err)
	}
	return r
}

// want fails the test unless a check has a status, and a finding with a text.
func (p *patient) want(r report, check, status, text string) {
	p.Helper()
	for _, c := range r.Checks {
		if c.Check != check {
			continue
		}
		for _, f := range c.Findings {
			if c.Status == status && strings.Contains(f.Text, text) {
				return
			}
		}
		p.Errorf("%s = %+v, want %s and a finding with %q", check, c, status, text)
		return
	}
	p.Errorf("no check %s in %+v", check, r)
}

// wantNothingLeft looks at the checks of leftovers.
func (p *patient) wantNothingLeft(r report) {
	p.Helper()
	if len(r.Leftovers) > 0 {
		p.Errorf("leftovers: %+v, want none", r.Leftovers)
	}
	for _, check := range []string{"leftover-bundles", "leftover-sockets", "leftover-mounts", "leftover-states", "leftover-shims"} {
		p.want(r, check, "ok", "none")
	}
}
