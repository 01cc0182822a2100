// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
)

// glutton asks for more memory than little allows, and uses it.
const glutton = "dd if=/dev/zero of=/dev/null bs=128M count=1 2>/dev/null"

func little(s *specs.Spec) {
	limit := int64(24 << 20)
	s.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit, Swap: &limit}}
}

func TestOOM_KillsAreFewEventsHoweverLongContainerdIsAway(t *testing.T) {
	harness.OursOnly(t, "events are kept while containerd is away")
	const tries = 5
	for range tries {
		if eventsOfKills(t) {
			return
		}
	}
	t.Errorf("the kernel chose init %d times", tries)
}

// eventsOfKills checks what is told of kills while containerd is away. It returns false if the kernel chose init, as it
// may while the memory of the last one that it killed is not free yet.
func eventsOfKills(t *testing.T) bool {
	t.Helper()
	f := newFake(t)
	b := f.Bundle("c1", little, "sh", "-c", "while :; do "+glutton+"; echo $?; done")
	s := f.Shim(b)
	r := b.CreateRequest()
	r.Stdout = "file://" + filepath.Join(f.Dir, "out")
	_, err := s.Create(f.Ctx, r)
	f.Must(err, "create")
	f.WantEvents("", "create c1")
	f.SinkDown()
	_, err = s.Start(f.Ctx, &task.StartRequest{ID: "c1"})
	f.Must(err, "start")

	kills := func() int {
		text, err := os.ReadFile(filepath.Join(f.Dir, "out"))
		f.Must(err, "output")
		return bytes.Count(text, []byte("137\n"))
	}
	wait := func(more int) (lives bool) {
		more += kills()
		harness.Eventually(t, "kills", func() error {
			state, err := s.State(f.Ctx, &task.StateRequest{ID: "c1"})
			f.Must(err, "state")
			lives = state.GetStatus() == tasktypes.Status_RUNNING
			if n := kills(); lives && n < more {
				return fmt.Errorf("%d, want %d", n, more)
			}
			return nil
		})
		return lives
	}
	lives := wait(50)
	if lives {
		s.RunExec("c1", "e1", "sh", "-c", "exit 4")
		_, err = s.Wait(f.Ctx, &task.WaitRequest{ID: "c1", ExecID: "e1"})
		f.Must(err, "wait for e1")
		lives = wait(50)
		_, err = s.Delete(f.Ctx, &task.DeleteRequest{ID: "c1", ExecID: "e1"})
		f.Must(err, "delete e1")
	}
	if !lives {
		f.SinkUp()
		r, err := s.Delete(f.Ctx, &task.DeleteRequest{ID: "c1"})
		f.Must(err, "delete")
		if r.GetExitStatus() != 137 {
			t.Errorf("init ended with %d, want SIGKILL", r.GetExitStatus())
		}
		f.Remove(b)
		s.End()
		t.Log("the kernel chose init")
		return false
	}
	s.KillAndDelete(b)

	f.SinkUp()
	var text string
	f.Must(f.Events.Wait(f.Ctx, "", func(all string) bool { text = all; return strings.HasSuffix(all, "delete c1") }),
		"wait for the last event")
	const want = "create c1 | start c1 | exec-added e1 | exec-start e1 | exit e1 4 | exit c1 137 | delete c1"
	if rest := strings.ReplaceAll(text, "oom c1 | ", ""); rest != want {
		t.Errorf("events but OOM kills = %q, want %q", rest, want)
	}
	// Start is on its way for as long as nobody takes it, so no kill is.
	if strings.Contains(text, "oom c1 | oom c1") {
		t.Errorf("events = %q, want one for the OOM kills between two others", text)
	}
	for _, part := range []string{"start c1 | oom c1 | ", "oom c1 | exit c1"} {
		if !strings.Contains(text, part) {
			t.Errorf("events = %q, want %q in it", text, part)
		}
	}
	s.End()
	return true
}
