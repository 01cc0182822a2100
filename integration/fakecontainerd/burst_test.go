// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// A node has hundreds of shims, and each may have had a burst.
func TestBurst_ThreadsAreGivenBackWhenItIsOver(t *testing.T) {
	harness.OursOnly(t, "the runc shim keeps its threads")
	f := newFake(t)
	b := f.Bundle("c1", nil, "sleep", "1000")
	s := f.Shim(b)
	s.Run(b)
	c, err := s.Connect(f.Ctx, &task.ConnectRequest{ID: "c1"})
	f.Must(err, "connect")
	threads := func() int {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", c.GetShimPid()))
		f.Must(err, "threads of the shim")
		return len(tasks)
	}
	dir := t.TempDir()
	var work sync.WaitGroup
	for i := range 300 {
		work.Go(func() {
			id := fmt.Sprintf("e%d", i)
			out := filepath.Join(dir, id)
			if err := unix.Mkfifo(out, 0o600); err != nil {
				t.Error(err)
				return
			}
			reader, err := os.OpenFile(out, os.O_RDWR, 0) // which waits for no writer
			if err != nil {
				t.Error(err)
				return
			}
			defer reader.Close()
			r := &task.ExecProcessRequest{
				ID: "c1", ExecID: id, Stdout: out,
				Spec: f.ProcessSpec(nil, "sh", "-c", "echo done"),
			}
			if _, err := s.Exec(f.Ctx, r); err != nil {
				t.Errorf("exec %s: %v", id, err)
				return
			}
			if _, err := s.Start(f.Ctx, &task.StartRequest{ID: "c1", ExecID: id}); err != nil {
				t.Errorf("start %s: %v", id, err)
			}
			if _, err := s.Wait(f.Ctx, &task.WaitRequest{ID: "c1", ExecID: id}); err != nil {
				t.Errorf("wait for %s: %v", id, err)
			}
			if _, err := s.Delete(f.Ctx, &task.DeleteRequest{ID: "c1", ExecID: id}); err != nil {
				t.Errorf("delete %s: %v", id, err)
			}
		})
	}
	work.Wait()
	most := threads()
	const few = 20
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(time.Minute); threads() > few; { // the shim rests seconds after the last call
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("%d threads a minute after 300 execs at once, %d right after them, want at most %d",
				threads(), most, few)
		}
	}
	t.Logf("%d threads right after the burst, then %d", most, threads())
	s.RunExec("c1", "after", "true")
	s.KillAndDelete(b)
	s.End()
}
