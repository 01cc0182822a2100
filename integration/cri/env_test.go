// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

// sandboxers are the ways to run pods for which the tests run when SHIM_TEST_SANDBOXER does not name one.
var sandboxers = []string{cri.PodSandbox, cri.Shim}

// testLimit ends every call of a test that hangs.
var testLimit = harness.Slow(2 * time.Minute)

// ways returns the ways for which the tests run. A shim that is not ours has the first one only.
func ways() []string {
	if name := os.Getenv("SHIM_TEST_SANDBOXER"); name != "" {
		return strings.Split(name, ",")
	}
	if harness.Runtime() != harness.Ours {
		return []string{cri.PodSandbox}
	}
	return sandboxers
}

// eachWay runs a test for each way to run pods.
func eachWay(t *testing.T, test func(e *env)) {
	t.Helper()
	for _, way := range ways() {
		t.Run(way, func(t *testing.T) { test(newEnvOn(t, shared, way)) })
	}
}

// eachWayAlone is eachWay with a containerd for each, which the test may end.
func eachWayAlone(t *testing.T, test func(e *env)) {
	t.Helper()
	eachWayPrepared(t, func(*testing.T, *cri.Daemon) {}, test)
}

// eachWayPrepared is eachWayAlone with something done to each containerd before it starts.
func eachWayPrepared(t *testing.T, prepare func(*testing.T, *cri.Daemon), test func(e *env)) {
	t.Helper()
	for _, way := range ways() {
		t.Run(way, func(t *testing.T) { test(newEnvOn(t, ownDaemon(t, prepare), way)) })
	}
}

// ownDaemon starts a containerd that ends with the test.
func ownDaemon(t *testing.T, prepare func(*testing.T, *cri.Daemon)) *cri.Daemon {
	t.Helper()
	return startDaemon(t, shared.Env, cri.Configured, prepare)
}

// startDaemon starts a containerd with a configuration, that ends with the test.
func startDaemon(
	t *testing.T, programs harness.Env, config func(*harness.Containerd) []byte,
	prepare ...func(*testing.T, *cri.Daemon),
) *cri.Daemon {
	t.Helper()
	d, err := cri.NewConfigured(programs, isolation, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, p := range prepare {
		p(t, d)
	}
	if err := d.Start(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, d.LogFrom(0))
	}
	return d
}

// env is what one test works with: a way to run pods on a containerd, and a cgroup for them.
type env struct {
	testing.TB
	ctx      context.Context //nolint:containedctx // ends after testLimit: an env lives as long as one test
	daemon   *cri.Daemon
	way      string
	handler  string // of pods that do not say otherwise
	cgroup   string // parent of the pods' cgroups, and of the tests' only pod
	dir      string // for logs and volumes
	logStart int64
}

// newEnvOn prepares a test on d. What the test leaves behind fails it.
func newEnvOn(t *testing.T, d *cri.Daemon, way string) *env {
	t.Helper()
	hash := fnv.New32a()
	fmt.Fprint(hash, t.Name())
	name := fmt.Sprintf("%s%d-%08x", harness.NamespacePrefix, os.Getpid(), hash.Sum32())
	e := &env{
		TB: t, daemon: d, way: way, handler: way, cgroup: "/" + name,
		dir: publicDir(t, name), logStart: d.LogSize(),
	}
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	e.ctx = ctx
	t.Cleanup(cancel)
	e.Cleanup(func() { e.finish(name) })
	e.must(cri.MakeCgroup(e.cgroup), "cgroup of the test")
	return e
}

// publicDir makes one that programs in user namespaces can reach, which below t.TempDir they cannot.
func publicDir(t *testing.T, name string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", name)
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// finish removes the pods that the test did not remove and looks for leaks. It prints containerd's log, which has the
// shims' in it, when the test failed.
func (e *env) finish(name string) {
	if err := e.daemon.RemovePods(e.ctx); err != nil {
		e.Errorf("remove all pods: %v", err)
	}
	e.wantNothingLeft()
	e.daemon.Scope(name).Check(e.TB)
	if e.Failed() {
		e.Logf("log of containerd and the shims:\n%s", strings.TrimSpace(e.daemon.LogFrom(e.logStart)))
	}
}

// wantNothingLeft checks what a Scope does not see: containers and snapshots in containerd's own books, and interfaces.
func (e *env) wantNothingLeft() {
	e.Helper()
	cl, err := e.daemon.Client()
	e.must(err, "connect to containerd")
	defer func() { _ = cl.Close() }() // it was only asked
	e.must(harness.Poll(func() error {
		ctx := namespaces.WithNamespace(e.ctx, "k8s.io")
		list, err := cl.Containers(ctx)
		if err != nil {
			return err
		}
		sandboxes, err := cl.SandboxStore().List(ctx)
		if err != nil && !errdefs.IsNotImplemented(err) { // containerd 1.6 has none
			return err
		}
		addresses, err := e.daemon.Addresses()
		if err != nil {
			return err
		}
		links, err := net.Interfaces()
		if err != nil {
			return err
		}
		links = slices.DeleteFunc(links, func(i net.Interface) bool { return i.Name == "lo" || i.Name == cri.Bridge })
		if len(list)+len(sandboxes)+len(addresses)+len(links) > 0 {
			return fmt.Errorf("containers %q and sandboxes %v that containerd knows, addresses %q, interfaces %v",
				containerIDs(list), sandboxes, addresses, links)
		}
		return nil
	}), "wait until all is gone")
}

func containerIDs(list []client.Container) []string {
	ids := make([]string, len(list))
	for i, c := range list {
		ids[i] = c.ID()
	}
	return ids
}

// must ends the test when err is not nil.
func (e *env) must(err error, what string) {
	e.Helper()
	if err != nil {
		e.Fatalf("%s: %v", what, err)
	}
}

// file writes a file below the test's directory and returns its path.
func (e *env) file(name, text string) string {
	e.Helper()
	path := filepath.Join(e.dir, name)
	e.must(os.WriteFile(path, []byte(text), 0o644), "write "+name)
	return path
}

// volume makes a directory for a volume below the test's and returns its path.
func (e *env) volume() string {
	e.Helper()
	path := filepath.Join(e.dir, "volume")
	e.must(os.Mkdir(path, 0o755), "make a volume")
	return path
}

// pod is a pod of a test.
type pod struct {
	*cri.Pod
	e *env
}

// podConfig is that of a pod with changes.
func (e *env) podConfig(name string, change ...func(*runtimeapi.PodSandboxConfig)) *runtimeapi.PodSandboxConfig {
	c := cri.PodConfig(name, e.cgroup)
	c.LogDirectory = filepath.Join(e.dir, name)
	for _, f := range change {
		f(c)
	}
	return c
}

// tryPod runs a pod.
func (e *env) tryPod(name string, change ...func(*runtimeapi.PodSandboxConfig)) (*pod, error) {
	e.Helper()
	config := e.podConfig(name, change...)
	if config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions() != nil {
		harness.NeedsKernel(e, 5, 19, "overlayfs on layers whose users are mapped: containerd refuses the pod")
	}
	e.must(os.MkdirAll(config.GetLogDirectory(), 0o755), "directory of logs")
	p, err := e.daemon.RunPod(e.ctx, e.handler, config)
	return &pod{Pod: p, e: e}, err
}

// pod runs a pod, or ends the test.
func (e *env) pod(name string, change ...func(*runtimeapi.PodSandboxConfig)) *pod {
	e.Helper()
	p, err := e.tryPod(name, change...)
	e.must(err, "pod "+name)
	return p
}

// remove stops and removes the pod.
func (p *pod) remove() {
	p.e.Helper()
	p.e.must(p.Remove(p.e.ctx), "remove")
}

// status returns what CRI says of the pod.
func (p *pod) status() *runtimeapi.PodSandboxStatus {
	p.e.Helper()
	r, err := p.e.daemon.Runtime.PodSandboxStatus(p.e.ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.ID})
	p.e.must(err, "status of the pod")
	return r.GetStatus()
}

// wantState waits until the pod is in a state.
func (p *pod) wantState(want runtimeapi.PodSandboxState) {
	p.e.Helper()
	harness.Eventually(p.e, "pod is "+want.String(), func() error {
		// There may be no answer while containerd sees that a shim has died.
		r, err := p.e.daemon.Runtime.PodSandboxStatus(p.e.ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.ID})
		if err == nil && r.GetStatus().GetState() != want {
			err = fmt.Errorf("it is %v", r.GetStatus().GetState())
		}
		return err
	})
}

// shim returns the pid of the shim of a pod.
func (e *env) shim(p *pod) int {
	e.Helper()
	shims := harness.ShimsOf(e.daemon.Address, p.ID)
	if len(shims) != 1 {
		e.Fatalf("shims of the pod: %v, want one", shims)
	}
	return shims[0].Pid
}
