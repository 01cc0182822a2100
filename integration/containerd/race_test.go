// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// shortLived is how many containers that exit at once are run. Many of them are gone before Start returns.
var shortLived = harness.Fewer(200)

func TestExit_IsNotLostWhenAContainerEndsAtOnce(t *testing.T) {
	e := newEnv(t)
	e.manyToTheirEnds(shortLived, 0, func(string) []oci.SpecOpts { return with(oci.WithProcessArgs("true")) })
	if t.Failed() {
		return // the events of the others say nothing about the ones that went wrong
	}
	for i := range shortLived {
		id := fmt.Sprintf("c%d", i)
		e.wantEvents(id, strings.ReplaceAll("create ID | start ID | exit ID | delete ID", "ID", id))
	}
}

// manyToTheirEnds runs n containers, four at a time, each of which ends by itself.
func (e *env) manyToTheirEnds(n int, status uint32, opts func(id string) []oci.SpecOpts) {
	e.Helper()
	ids := make(chan string)
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for id := range ids {
				if err := e.toItsEnd(id, status, opts(id)); err != nil {
					e.Errorf("%s: %v", id, err)
				}
			}
		})
	}
	for i := range n {
		ids <- fmt.Sprintf("c%d", i)
	}
	close(ids)
	workers.Wait()
}

// toItsEnd runs one container from its making to its end.
func (e *env) toItsEnd(id string, status uint32, opts []oci.SpecOpts) error {
	ctx, cancel := context.WithTimeout(e.ctx, harness.Slow(30*time.Second))
	defer cancel()
	container, err := e.client.NewContainer(ctx, id,
		append(e.plain(id), client.WithNewSpec(append(with(oci.WithImageConfig(e.image)), opts...)...))...)
	if err != nil {
		return err
	}
	c, err := container.NewTask(ctx, e.streams(config{}, nil, nil))
	if err != nil {
		return err
	}
	exited, err := c.Wait(ctx)
	if err != nil {
		return err
	}
	if err := c.Start(ctx); err != nil {
		return err
	}
	if got := <-exited; got.Error() != nil || got.ExitCode() != status {
		return fmt.Errorf("exit status %d, %w", got.ExitCode(), got.Error())
	}
	if _, err := c.Delete(ctx); err != nil {
		return err
	}
	return container.Delete(ctx, client.WithSnapshotCleanup)
}

func TestCreate_GivenUpByTheClientLeavesNothing(t *testing.T) {
	harness.OursOnly(t, "a create that is cut short leaves no cgroup")
	e := newEnv(t)
	e.Cleanup(func() { awaitUnknownShims(t, e.containerd.Sockets) })
	for round := range 10 {
		id := fmt.Sprintf("c%d", round)
		container, err := e.client.NewContainer(e.ctx, id, e.plain(id)...)
		e.must(err, "container")
		e.Cleanup(func() { e.remove(container) })
		ctx, cancel := context.WithTimeout(e.ctx, harness.Slow(time.Duration(5+10*round)*time.Millisecond))
		c, err := container.NewTask(ctx, e.streams(config{}, nil, nil))
		cancel()
		if err == nil {
			exited, err := c.Wait(e.ctx)
			e.must(err, "wait")
			e.must(c.Kill(e.ctx, 9), "kill")
			<-exited
			_, err = c.Delete(e.ctx)
			e.must(err, "delete")
			continue
		}
		if !errors.Is(err, context.DeadlineExceeded) && !errdefs.IsDeadlineExceeded(err) && !errdefs.IsCanceled(err) {
			t.Logf("NewTask of round %d = %v", round, err)
		}
	}
}

// awaitUnknownShims waits for the end of shims of which containerd does not know, because it gave up just after start
// had answered: nobody talks to them, so they end by themselves. Then it removes what is left in the directory of their
// sockets. containerd may kill start between the making of its socket and its answer; nobody is left then to remove the
// name, until the same id is used again.
func awaitUnknownShims(t *testing.T, dir string) {
	t.Helper()
	harness.Eventually(t, "shims that nobody talks to end", func() error {
		// Looked up, since a connection would keep them alive; and not of the main thread, which a test may have left
		// in the network of a container: the other threads that do so end.
		bound, err := os.ReadFile("/proc/thread-self/net/unix")
		if err != nil {
			return err
		}
		if strings.Contains(string(bound), dir+"/") {
			return errors.New("a shim still has its socket")
		}
		return nil
	})
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Error(err)
	}
	for _, name := range names {
		t.Logf("start was killed before it answered: removing %s: %v", name, os.Remove(name))
	}
}

// containerd#13849: a shim that has no child left, whose container is said to run, and whose calls hang. The exit was
// lost among those of other processes that the shim adopts: here a container without a PID namespace of its own makes
// many, and somebody else kills its first process.
func TestExit_KilledFromOutsideAmongManyIsStopped(t *testing.T) {
	e := newEnv(t)
	const orphans = "while :; do (sleep 0 &); (sleep 0 &); (sleep 0 &); echo .; done"
	for round := range 5 {
		id := fmt.Sprintf("c%d", round)
		c := e.run(id, config{opts: with(oci.WithHostNamespace(specs.PIDNamespace))}, "sh", "-c", orphans)
		c.out.WaitFor(t, strings.Repeat(".\n", 20))
		e.must(unix.Kill(int(c.Task.Pid()), unix.SIGKILL), "kill "+id)
		if got := c.exit(); got != 137 {
			t.Errorf("exit status of %s = %d, want 137", id, got)
		}
		// None of these may wait for what will not come.
		ctx, cancel := context.WithTimeout(e.ctx, 5*time.Second)
		if status, err := c.Status(ctx); err != nil || status.Status != client.Stopped || status.ExitStatus != 137 {
			t.Errorf("status of %s = %+v, %v, want stopped with 137", id, status, err)
		}
		if err := c.process.Kill(ctx, unix.SIGKILL); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("kill of %s = %v, want not found", id, err)
		}
		// Its first process alone: containerd 1.7 and later take a shim without a process for one that was left behind.
		if list, err := c.Pids(ctx); err == nil && (len(list) != 1 || list[0].Pid != c.Task.Pid()) {
			t.Errorf("processes of %s = %v, want %d", id, list, c.Task.Pid())
		}
		cancel()
		c.delete()
		e.wantEvents(id, strings.ReplaceAll("create ID | start ID | exit ID 137 | delete ID", "ID", id))
	}
}

// containerd#10603: the exit of a container's first process got lost while many execs started.
func TestExit_IsReportedOnceAndLastWhileManyExecsStart(t *testing.T) {
	e := newEnv(t)
	const n = 40
	for round := range 4 {
		id := fmt.Sprintf("c%d", round)
		var opts []oci.SpecOpts
		if round%2 == 1 { // where the kernel does not end the execs with the container
			opts = with(oci.WithHostNamespace(specs.PIDNamespace))
		}
		c := e.run(id, config{opts: opts}, "sleep", "1000")
		var execs []*process
		for i := range n {
			program := []string{"true"}
			if i%2 == 0 { // the container's end is this one's too
				program = []string{"sleep", "1000"}
			}
			execs = append(execs, c.exec(fmt.Sprintf("%sx%d", id, i), config{}, nil, program...))
		}
		started := make(chan string, n)
		var all sync.WaitGroup
		for _, x := range execs {
			all.Go(func() {
				if err := x.Start(e.ctx); err != nil {
					_, _ = x.Delete(e.ctx) // whether a failed exec is still there is not the subject
					return
				}
				started <- x.ID()
				if status := <-x.exited; status.Error() != nil {
					t.Errorf("exit of %s: %v", x.ID(), status.Error())
				}
				if _, err := x.Delete(e.ctx); err != nil {
					t.Errorf("delete %s: %v", x.ID(), err)
				}
			})
		}
		const first = n / 4
		for range first { // the others are on their way, or on their end
			select {
			case <-started:
			case <-e.ctx.Done():
				t.Fatal("the execs do not start")
			}
		}
		e.must(unix.Kill(int(c.Task.Pid()), unix.SIGKILL), "kill "+id)
		if got := c.exit(); got != 137 {
			t.Errorf("exit status of %s = %d, want 137", id, got)
		}
		all.Wait() // the execs are deleted before the container is
		c.delete()
		ran := first + len(started)
		t.Logf("%d of %d execs ran", ran, n)
		last := fmt.Sprintf("exit %s 137", id)
		e.waitEvents(id, "delete "+id)
		text := e.events.Text(id)
		before, after, _ := strings.Cut(text, last)
		if harness.Runtime() != harness.Ours {
			continue // the runc shim tells them in any order, or not at all when it is shut down
		}
		if strings.Contains(after, last) || strings.Contains(after, "exit "+id+"x") {
			t.Errorf("events = %q, want %q once, after those of the execs", text, last)
		}
		if got := strings.Count(before, "exit "+id+"x"); got != ran {
			t.Errorf("events have %d exits of execs, want %d: %q", got, ran, text)
		}
	}
}

// containerd#10603, its second half (containerd#10589): an exec that was added before the container died ran after it,
// in a PID namespace that outlives the container, and nobody killed it.
func TestExec_AddedBeforeTheContainerDiedCannotStart(t *testing.T) {
	e := newEnv(t)
	for id, opts := range map[string][]oci.SpecOpts{
		"own":  nil,
		"host": with(oci.WithHostNamespace(specs.PIDNamespace)),
	} {
		c := e.run(id, config{opts: opts}, "sleep", "1000")
		x := c.exec("x"+id, config{}, nil, "sleep", "1000")
		e.must(c.process.Kill(e.ctx, unix.SIGKILL), "kill "+id)
		c.exit()
		_, err := e.client.TaskService().Start(e.ctx, &tasks.StartRequest{ContainerID: id, ExecID: x.ID()})
		wantError(t, errgrpc.ToNative(err), errdefs.ErrFailedPrecondition)
		if left := harness.InCgroup("/" + e.namespace + "/" + id); len(left) > 0 {
			t.Errorf("alive after the exit of %s: %v", id, left)
		}
		if _, err := x.Delete(e.ctx); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("delete %s: %v", x.ID(), err)
		}
		c.delete()
	}
}
