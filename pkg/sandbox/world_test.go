// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/process/processtest"
	"sandbox.internal/shim/pkg/stdio"
	"sandbox.internal/shim/pkg/task"
)

// What is in a bundle.
const (
	specFile  = "config.json"
	rootfsDir = "rootfs"
)

// newRuntime makes containers without a kernel, whose processes die of all signals but these.
func newRuntime(deafTo ...syscall.Signal) *processtest.Runtime {
	r := &processtest.Runtime{PID: 4321}
	r.SetDeaf(func(sig syscall.Signal) bool { return slices.Contains(deafTo, sig) })
	return r
}

// newTasks is a registry whose events go to told, in a goroutine of its own.
func newTasks(t *testing.T, e *processtest.Runtime, told func(event.Event)) *task.Manager {
	t.Helper()
	queue := event.NewQueue(func(_ context.Context, ev event.Event, _ time.Time) error { told(ev); return nil })
	t.Cleanup(func() { must(t, queue.Close(context.Background())) })
	tasks := task.New(e, queue, stdio.NewHost("ns", noReaper{}))
	tasks.KeepIndex("/nowhere", "/the/socket", nil)
	return tasks
}

func goodSpec() *specs.Spec {
	return &specs.Spec{
		Root:    &specs.Root{Path: rootfsDir},
		Process: &specs.Process{Args: []string{"true"}, Cwd: "/"},
		Linux:   &specs.Linux{CgroupsPath: "/c"},
	}
}

// newBundle is a bundle as containerd makes it.
func newBundle(t *testing.T, spec *specs.Spec) string {
	t.Helper()
	bundle := filepath.Join(t.TempDir(), "bundle")
	must(t, os.MkdirAll(filepath.Join(bundle, rootfsDir), 0o700))
	if spec != nil {
		data, err := json.Marshal(spec)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(bundle, specFile), data, 0o600))
	}
	return bundle
}

// files lists what is in a bundle.
func files(t *testing.T, bundle string) string {
	t.Helper()
	entries, err := os.ReadDir(bundle)
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func within(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s did not come within 10 s", what)
	}
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantText(t *testing.T, err error, want ...string) {
	t.Helper()
	for _, w := range want {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("error = %v, which does not say %q", err, w)
		}
	}
}

func wantInvalid(t *testing.T, err error, text ...string) {
	t.Helper()
	if !errdefs.IsInvalidArgument(err) {
		t.Errorf("error = %v, want an invalid argument", err)
	}
	wantText(t, err, text...)
}

// noReaper is for a process that reaps no orphans.
type noReaper struct{ stdio.Children }

func (noReaper) Suspend() (resume func()) { return func() {} }
