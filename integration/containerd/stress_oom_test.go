// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"

	"sandbox.internal/shim/integration/harness"
)

// little is memory enough for a shell and not for glutton.
var little = with(oci.WithMemoryLimit(24*mib), oci.WithMemorySwap(24*mib))

// glutton asks for more memory than little has, and uses it.
const glutton = "dd if=/dev/zero of=/dev/null bs=128M count=1"

// oomBefore checks that the text of events has an OOM before exit.
func (e *env) oomBefore(id, exit string) {
	e.Helper()
	e.waitEvents(id, exit)
	text := e.events.Text(id)
	before, _, found := strings.Cut(text, exit)
	if harness.Runtime() == harness.Ours && found && !strings.Contains(before, "oom "+id) {
		e.Errorf("events = %q, want oom %s before %q", text, id, exit)
	}
}

// rounds is how many containers run out of memory at once. A shim that does not look on purpose misses some.
var rounds = harness.Fewer(50)

// containerd#8180, containerd#8893: the event came after the exit, or not at all, when the container was killed soon
// after its start.
func TestOOM_IsReportedBeforeTheExitOfItsContainer(t *testing.T) {
	newEnv(t).manyRunOutOfMemory(rounds, func(string) oci.SpecOpts { return oci.Compose() })
}

// systemd removes the scope, and the counter with it, as soon as the last process has ended: a shim that relies on that
// counter missed one in eight.
func TestSystemd_OOMIsReportedBeforeTheExitOfItsContainer(t *testing.T) {
	e := newSystemdEnv(t)
	e.manyRunOutOfMemory(30, e.scoped)
}

// manyRunOutOfMemory checks that an OOM is reported before the exit of each container.
func (e *env) manyRunOutOfMemory(rounds int, where func(id string) oci.SpecOpts) {
	e.Helper()
	ids := make(chan string)
	var workers sync.WaitGroup
	for range 3 {
		workers.Go(func() {
			for id := range ids {
				if err := e.runOutOfMemory(id, where(id)); err != nil {
					e.Errorf("%s: %v", id, err)
				}
			}
		})
	}
	for i := range rounds {
		ids <- fmt.Sprintf("c%d", i)
	}
	close(ids)
	workers.Wait()
	for i := range rounds {
		id := fmt.Sprintf("c%d", i)
		e.oomBefore(id, "exit "+id+" 137")
	}
}

// runOutOfMemory runs one container whose first process is killed for lack of memory.
func (e *env) runOutOfMemory(id string, where oci.SpecOpts) error {
	container, err := e.client.NewContainer(e.ctx, id, append(e.plain(id), client.WithNewSpec(append([]oci.SpecOpts{
		oci.WithImageConfig(e.image), oci.WithProcessArgs(strings.Fields(glutton)...), where,
	}, little...)...))...)
	if err != nil {
		return err
	}
	c, err := container.NewTask(e.ctx, e.streams(config{}, nil, nil))
	if err != nil {
		return err
	}
	exited, err := c.Wait(e.ctx)
	if err != nil {
		return err
	}
	if err := c.Start(e.ctx); err != nil {
		return err
	}
	if status := <-exited; status.Error() != nil || status.ExitCode() != 137 {
		return fmt.Errorf("exit status %d, %w", status.ExitCode(), status.Error())
	}
	if _, err := c.Delete(e.ctx); err != nil {
		return err
	}
	return container.Delete(e.ctx, client.WithSnapshotCleanup)
}

func TestOOM_IsReportedForAnExec(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{opts: little}, "sleep", "1000")
	for i := range 5 {
		id := fmt.Sprintf("e%d", i)
		x := c.exec(id, config{}, nil, strings.Fields(glutton)...)
		e.must(x.Start(e.ctx), "start "+id)
		x.wantExit(137)
		e.waitEvents("c1", "exit "+id+" 137")
		// One of its own for each exec, before its exit.
		text := e.events.Text("c1")
		_, since, _ := strings.Cut(text, "exec-added "+id)
		if before, _, _ := strings.Cut(since, "exit "+id+" 137"); harness.Runtime() == harness.Ours &&
			!strings.Contains(before, "oom c1") {
			t.Errorf("events = %q, want oom c1 between the start and the exit of %s", text, id)
		}
	}
	wantStatus(c, client.Running)
	c.kill()
}

// containerd#8893, for a child of the first process.
func TestOOM_IsReportedWhenOnlyAChildDies(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{opts: little}, "sh", "-c", glutton+" 2>/dev/null; echo child $?; sleep 1000")
	c.out.WaitFor(t, "child 137")
	e.waitEvents("c1", "oom c1")
	wantStatus(c, client.Running)
	c.kill()
	if harness.Runtime() == harness.Ours {
		e.wantEvents("c1", "create c1 | start c1 | oom c1 | exit c1 137 | delete c1")
	}
}

func TestOOM_IsNotReportedForAKillWithMemoryToSpare(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{opts: little}, "sleep", "1000")
	c.kill()
	e.wantEvents("c1", "create c1 | start c1 | exit c1 137 | delete c1")
}
