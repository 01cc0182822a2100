// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/reaper"
	"sandbox.internal/shim/pkg/stdio"
)

// slow is a process whose Status, which asks for the pid with the lock held, takes longer than the 1 ms after which
// sync.Mutex serves its waiters in order. So all of them come in between two critical sections.
type slow struct{ *fakeProcess }

func (s slow) Pid() int {
	<-time.After(2 * time.Millisecond)
	return s.fakeProcess.Pid()
}

func TestStatus_StoppedIsNeverShownWithoutItsExit(t *testing.T) {
	const lookers = 3
	w := newWorld(t, newFake())
	must(t, w.Init().Start(ctx))
	for name, tc := range map[string]struct {
		ops  []Op
		stop func(*Process)
		want int
	}{
		"an exit":            {[]Op{OpStart, OpRun}, func(p *Process) { p.publishExit(Exit{Status: 7}) }, 7},
		"a start that fails": {[]Op{OpStart}, func(p *Process) { p.neverRan(OpExit) }, unknownStatus},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProcess(w.Container, "e1", nil, w.Init().io, nil)
			p.handle = slow{w.fake.process()}
			for _, op := range tc.ops {
				p.commit(op)
			}
			var begun, looking sync.WaitGroup
			begun.Add(lookers)
			var shown [lookers]Exit // the first time that it is shown as stopped
			for i := range shown {
				looking.Go(func() { // ends when p is stopped
					s := p.Status()
					begun.Done()
					for s.State != Stopped {
						s = p.Status()
					}
					shown[i] = s.Exit
				})
			}
			begun.Wait()
			tc.stop(p)
			looking.Wait()
			for _, exit := range shown {
				if exit.Status != tc.want {
					t.Errorf("stopped is shown with status %d, want %d", exit.Status, tc.want)
				}
			}
		})
	}
	w.fake.init.die(0)
	_, err := w.Init().Wait(ctx)
	must(t, err)
}

// No process of the exec exists yet, so there is nothing to wait for.
func TestExit_DoesNotWaitForTheStreamsOfAnExec(t *testing.T) {
	dir := t.TempDir()
	program, began := filepath.Join(dir, "log"), filepath.Join(dir, "began")
	must(t, os.WriteFile(program, []byte("#!/bin/sh\n: >"+began+"\nexec sleep 1000\n"), 0o700)) // and never says it is ready
	f := newFake()
	w := newWorld(t, f)
	must(t, w.Init().Start(ctx))
	must(t, w.AddExec("e", &specs.Process{}, stdio.Config{
		Stdout: "binary://" + program, ID: "e", Host: stdio.NewHost("ns", reaper.New()),
	}))
	e, err := w.Process("e")
	must(t, err)
	started := make(chan error, 1)
	go func() { started <- e.Start(ctx) }()
	for deadline := time.Now().Add(time.Minute); ; <-time.After(time.Millisecond) {
		if _, err := os.Stat(began); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the logging binary does not begin")
		}
	}
	died := time.Now()
	f.init.die(0)
	_, err = w.Init().Wait(ctx)
	must(t, err)
	const ready = 10 * time.Second // of a logging binary (package stdio)
	if took := time.Since(died); took > ready/2 {
		t.Errorf("init's exit was published after %v", took)
	}
	wantClass(t, <-started, errdefs.ErrFailedPrecondition)
}
