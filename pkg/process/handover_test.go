// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/handover"
	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/process/processtest"
	"sandbox.internal/shim/pkg/stdio"
)

// handOver replaces the container by that of a successor. meanwhile happens while none of them runs.
func (w *world) handOver(meanwhile func()) {
	w.t.Helper()
	former := w.Container
	must(w.t, former.Freeze(ctx))
	w.t.Cleanup(func() { // in place of the end of its program
		w.runtime.EndFormer()
		former.Thaw()
		_, err := former.Init().Wait(ctx)
		must(w.t, err)
	})
	state, err := former.Save(&handover.Saver{})
	must(w.t, err)
	text, err := json.Marshal(state)
	must(w.t, err)
	var restored process.SavedState
	must(w.t, json.Unmarshal(text, &restored))
	meanwhile()
	l, err := handover.Load(stateFile(w.t), &struct{}{})
	must(w.t, err)
	config := w.runtime.Containers()[0].Config
	c, begin, err := process.Restore(l, w.runtime, w.queue, &restored, process.Config{
		Record: noRecord{}, IO: stdio.Config{Host: config.IO.Host}, MayRestore: config.MayRestore,
	})
	must(w.t, err)
	begin()
	w.Container = c
}

// stateFile is a file with a state that has no descriptors.
func stateFile(t *testing.T) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state")
	must(t, os.WriteFile(path, []byte(`{"Format":1,"Body":{}}`), 0o600))
	file, err := os.Open(path)
	must(t, err)
	t.Cleanup(func() { _ = file.Close() })
	return file
}

func TestHandOver_WallTimeBeganWithTheFormerProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := runWith(t, &processtest.Runtime{}, &limit.Limits{WallTime: time.Minute})
		time.Sleep(50 * time.Second)
		w.handOver(func() {})
		p, err := w.Process("e1")
		must(t, err)
		time.Sleep(11 * time.Second)
		w.wantState(p, process.Stopped)
		w.wantStatus(p, 137)
		if v := w.verdict(); v.Limit != limit.WallTime || v.Wall != time.Minute {
			t.Errorf("verdict %+v", v)
		}
	})
}

// A program that cannot be replaced goes on, and so do the limits.
func TestFreeze_LimitsThatAreOverMeanwhileKillAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, p := runWith(t, &processtest.Runtime{}, &limit.Limits{WallTime: time.Second})
		must(t, w.Freeze(ctx))
		time.Sleep(time.Minute)
		w.wantState(p, process.Running)
		w.Thaw()
		w.wantStatus(p, 137)
		if v := w.verdict(); v.Limit != limit.WallTime {
			t.Errorf("verdict %+v", v)
		}
	})
}

func TestHandOver_AKillThatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &processtest.Runtime{}
		w := running(t, r)
		r.SetDeaf(func(syscall.Signal) bool { return true }) // it waits for a file system, say
		must(t, w.Init().Kill(syscall.SIGKILL))
		w.handOver(func() {})
		must(t, w.AddExec("e1", &specs.Process{}, stdio.Config{}))
		p, err := w.Process("e1")
		must(t, err)
		wantClass(t, p.Start(ctx), errdefs.ErrFailedPrecondition)
		w.dies(137)
		w.wantLog("… | exec-added e1 | exit c1 137")
	})
}

// Not in a bubble: the former watch waits for the file, and for a lock.
func TestHandOver_AnExitAndAnOOMKillMeanwhile(t *testing.T) {
	dir := t.TempDir()
	files(t, dir, map[string]string{"memory.events": "oom_kill 1\n"})
	w := running(t, &processtest.Runtime{Group: cgroup.New(map[string]string{"": dir})})
	w.startExec("e1")
	w.handOver(func() { files(t, dir, map[string]string{"memory.events": "oom_kill 2\n"}) })
	w.exec(0).Die(137)
	p, err := w.Process("e1")
	must(t, err)
	w.wantStatus(p, 137)
	must(t, w.queue.Flush(ctx))
	w.mu.Lock()
	defer w.mu.Unlock()
	if want := []string{"event.TaskOOM", "exit e1 137"}; !slices.Equal(w.journal[len(w.journal)-2:], want) {
		t.Errorf("events %q, want %q last", w.journal, want)
	}
}
