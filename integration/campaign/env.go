// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

// callLimit bounds each call. None of them takes a second on an idle machine.
var callLimit = harness.Slow(40 * time.Second)

// Env is a containerd and what a worker has on it. The goroutine of the worker uses it.
type Env struct {
	name     string // of the namespace, and of the cgroup of all containers
	daemon   *cri.Daemon
	rootfs   string
	client   *client.Client
	order    *order
	unwatch  func() // ends the subscription and joins its goroutine
	baseline map[string]string
	stayers  []*stayer
	places   [maxContainers]*place
	trace    io.Writer // nil, or gets a line for each step
	round    int
	serial   int // of containers and pods in the round

	installed *harness.Installed // the shim; nil for one that cannot be upgraded
	ending    bool               // shims may end in this step

	mu     sync.Mutex
	totals Totals // guarded by mu
}

// NewEnv starts a containerd with nothing but bystanders.
func NewEnv(ctx context.Context, programs harness.Env, isolation *cri.Isolation, name string) (_ *Env, err error) {
	e := &Env{
		name: harness.NamespacePrefix + name, order: newOrder(), unwatch: func() {}, totals: Totals{},
	}
	daemon, err := cri.NewDaemon(programs, isolation)
	if err != nil {
		return nil, err
	}
	e.daemon, e.rootfs = daemon, filepath.Join(daemon.Dir, "rootfs")
	for i := range e.places {
		e.places[i] = &place{number: i}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	steps := []func() error{
		func() error { return e.install(filepath.Join(daemon.Dir, "bin")) },
		func() error { return harness.WriteRootfs(programs, e.rootfs) },
		func() error { return cri.MakeCgroup("/" + e.name) },
		func() error { return cri.MakeCgroup(e.podParent()) },
		func() error { return daemon.Start(ctx) },
		func() error { return e.connect(ctx) },
		func() error { return e.startStayers(ctx) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	e.baseline = e.present()
	return e, nil
}

// podParent is the parent of the pods' cgroups.
func (e *Env) podParent() string { return "/" + e.name + "/pods" }

// namespaced is a context for calls that concern plain containers.
func (e *Env) namespaced(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, e.name)
}

// connect connects to a containerd that has just been started, and begins to read its events.
func (e *Env) connect(ctx context.Context) error {
	if e.client != nil {
		_ = e.client.Close() // its containerd is gone
	}
	var err error
	if e.client, err = e.daemon.Client(); err != nil {
		return err
	}
	return e.watch(ctx)
}

// restart starts containerd after it has ended.
func (e *Env) restart(ctx context.Context) error {
	e.unwatch()
	var ids []string
	for _, p := range e.places {
		if p.id != "" {
			ids = append(ids, p.id)
		}
	}
	e.order.interrupted(e.name, ids...)
	if err := e.removeHidden(); err != nil {
		return err
	}
	// An interrupt does not end this: it would wait for a containerd that cannot answer.
	if err := e.daemon.Start(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("start containerd again: %w", err)
	}
	return e.connect(ctx)
}

// removeHidden removes bundles that containerd was about to remove when it ended. It had given them such a name, and
// never looks at them again (core/runtime/v2, atomicDelete and loadShims).
func (e *Env) removeHidden() error {
	bundles, err := filepath.Glob(e.bundle(".*"))
	work, workErr := filepath.Glob(filepath.Join(e.daemon.Dir, "root", "io.containerd.runtime.v2.task", e.name, ".*"))
	for _, dir := range slices.Concat(bundles, work) {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return errors.Join(err, workErr)
}

// Close ends everything and removes what it made.
func (e *Env) Close() error {
	e.unwatch()
	if e.client != nil {
		_ = e.client.Close() // containerd ends next
	}
	for _, p := range e.places {
		p.closeStreams()
	}
	scope := e.scope()
	err := e.daemon.Kill() // so that it does not clean up after the shims while Remove kills them
	_ = scope.Remove()     // a process may start while this looks for them, and then the next call finds it
	return errors.Join(err, scope.Remove(), os.RemoveAll(e.rootfs), e.daemon.Close())
}

// count counts one more of what a name says.
func (e *Env) count(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.totals[name]++
}

func (e *Env) countHostile(p program) {
	if behaviours[p].hostile {
		e.count("hostile programs")
	}
}

// takeTotals returns what was counted since the last call.
func (e *Env) takeTotals() Totals {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.totals
	t["rounds"], t["events"], e.totals = 1, e.order.takeSeen(), Totals{}
	return t
}

// call makes one call of containerd and returns the class of its answer.
func (e *Env) call(ctx context.Context, f func(ctx context.Context) error) string {
	e.count("operations")
	ctx, cancel := context.WithTimeout(e.namespaced(ctx), callLimit)
	defer cancel()
	err := f(ctx)
	if err != nil && ctx.Err() != nil {
		return fmt.Sprintf("no answer within %v: %v", callLimit, err)
	}
	answer := class(err)
	if strings.HasPrefix(answer, "error") && e.daemon.Env.Runtime != harness.Ours {
		// Other shims refuse without a class.
		answer = precondition
	}
	return answer
}

// class is what a client of containerd can tell from an error.
func class(err error) string {
	if err == nil {
		return ok
	}
	switch native := errgrpc.ToNative(err); {
	case errdefs.IsNotFound(native):
		return notFound
	case errdefs.IsFailedPrecondition(native):
		return precondition
	case errdefs.IsAlreadyExists(native):
		return exists
	}
	return "error: " + err.Error()
}
