// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/typeurl/v2"

	"sandbox.internal/shim/integration/eventlog"
	"sandbox.internal/shim/integration/harness"
)

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

// newEnv prepares a test on the shared containerd.
func newEnv(t *testing.T) *env {
	t.Helper()
	return newEnvOn(t, shared)
}

// newEnvOn prepares a test on c. What the test leaves behind fails it.
func newEnvOn(tb testing.TB, c *harness.Containerd) *env {
	tb.Helper()
	return newEnvFor(tb, c, testLimit)
}

// newEnvFor is newEnvOn for a test that takes longer than others, but less than limit.
func newEnvFor(tb testing.TB, c *harness.Containerd, limit time.Duration) *env {
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
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(context.Background(), e.namespace), limit)
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

// must ends the test when err is not nil.
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
