// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/extension"
	"sandbox.internal/shim/pkg/extension/hostrootfs"
	"sandbox.internal/shim/pkg/extension/initproc"
	"sandbox.internal/shim/pkg/extension/listen"
	"sandbox.internal/shim/pkg/extension/notify"
	"sandbox.internal/shim/pkg/extension/pidfile"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process/processtest"
	"sandbox.internal/shim/pkg/settings"
	"sandbox.internal/shim/pkg/stdio"
)

func TestMain(m *testing.M) {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "pkg/task: the tests mount file systems and need root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// newRuntime makes containers whose processes die of any signal but those that they are deaf to.
func newRuntime(deaf ...syscall.Signal) *processtest.Runtime {
	r := &processtest.Runtime{}
	r.SetDeaf(func(sig syscall.Signal) bool { return slices.Contains(deaf, sig) })
	return r
}

// extensions are all that there are.
var extensions = extension.List{
	initproc.Extension(), hostrootfs.Extension(), notify.Extension(), listen.Extension(), pidfile.Extension(),
}

func newManager(t *testing.T, r *processtest.Runtime) *Manager {
	t.Helper()
	return newManagerTelling(t, r, func(event.Event) {})
}

// newManagerTelling is a sandbox whose events go to told, in a goroutine of its own.
func newManagerTelling(t *testing.T, r *processtest.Runtime, told func(event.Event)) *Manager {
	t.Helper()
	queue := event.NewQueue(func(_ context.Context, ev event.Event, _ time.Time) error { told(ev); return nil })
	t.Cleanup(func() { testx.Must(t, queue.Close(context.Background())) })
	return New(r, queue, stdio.NewHost("ns", noReaper{}), extensions, extensions.Settings())
}

func goodSpec() *specs.Spec {
	return &specs.Spec{
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{Args: []string{"true"}, Cwd: "/"},
		Linux:   &specs.Linux{CgroupsPath: "/c"},
	}
}

// annotated is goodSpec with annotations: pairs of a name without the prefix and a value.
func annotated(pairs ...string) *specs.Spec {
	spec := goodSpec()
	spec.Annotations = map[string]string{}
	for pair := range slices.Chunk(pairs, 2) {
		spec.Annotations[settings.Prefix+pair[0]] = pair[1]
	}
	return spec
}

// allowing are the options, and all annotations are allowed.
func allowing(o options.Options) options.Options {
	o.AllowUnsafeAnnotations = extensions.Settings().Unsafe()
	return o
}

func tmpfs() []mount.Mount { return []mount.Mount{{Type: "tmpfs", Source: "tmpfs"}} }

// create makes a container that has to come. All annotations are allowed.
func create(t *testing.T, m *Manager, id string, spec *specs.Spec) *Task {
	t.Helper()
	c, err := m.Create(t.Context(), CreateRequest{
		ID: id, Bundle: testx.NewBundle(t, spec), Options: allowing(options.Options{}),
	})
	testx.Must(t, err)
	return c
}

// remove deletes a container.
func remove(t *testing.T, m *Manager, id string) {
	t.Helper()
	_, err := m.Delete(t.Context(), id, "")
	testx.Must(t, err)
}

// end kills init, and removes the container.
func end(t *testing.T, m *Manager, c *Task) {
	t.Helper()
	testx.Must(t, c.Init().Kill(syscall.SIGKILL))
	_, err := c.Init().Wait(t.Context())
	testx.Must(t, err)
	remove(t, m, c.ID())
}

// noReaper is for a process that reaps no orphans.
type noReaper struct{ stdio.Children }

func (noReaper) Suspend() (resume func()) { return func() {} }
