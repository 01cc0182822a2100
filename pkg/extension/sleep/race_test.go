// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sleep

import (
	"context"
	"errors"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/process/processtest"
	"sandbox.internal/shim/pkg/stdio"
)

// operations are those that a container must be awake for, by the call of the runtime that each makes, or none.
var operations = map[string]struct {
	call string
	do   func(*raced) error
}{
	"exec":     {"exec", (*raced).exec},
	"signal":   {"signal", func(r *raced) error { return r.Init().Kill(syscall.SIGTERM) }},
	"SIGKILL":  {"signal", func(r *raced) error { return r.Init().Kill(syscall.SIGKILL) }},
	"kill all": {"signal", func(r *raced) error { return r.KillAll(r.t.Context(), syscall.SIGKILL) }},
	"resize": {"", func(r *raced) error {
		_ = r.Init().Resize(80, 24) // the terminal is the fake runtime's, which has none
		return nil
	}},
	"close IO":   {"", func(r *raced) error { return r.Init().CloseStdin() }},
	"update":     {"update", func(r *raced) error { return r.Update(r.t.Context(), &specs.LinuxResources{}) }},
	"checkpoint": {"checkpoint", func(r *raced) error { return r.Checkpoint(r.t.Context(), process.CheckpointRequest{}) }},
	"pause":      {"pause", func(r *raced) error { return r.Pause(r.t.Context()) }},
	"wake":       {"", func(r *raced) error { r.Wake(); return nil }},
}

// raced is a container that sleeps by hand, and tells of each use before it begins.
type raced struct {
	*process.Container
	t       *testing.T
	hook    *hook
	runtime *processtest.Runtime
	wanted  chan string // the reason of a use that is about to begin
}

// telling tells of each use.
type telling struct {
	*hook
	wanted chan<- string
}

func (s telling) Use(reason string) (done func()) {
	s.wanted <- reason
	return s.hook.Use(reason)
}

func (r *raced) exec() error {
	if err := r.AddExec("e", &specs.Process{}, stdio.Config{}); err != nil {
		return err
	}
	p, err := r.Process("e")
	if err != nil {
		return err
	}
	return p.Start(r.t.Context())
}

func (r *raced) frozen() bool { return r.runtime.Containers()[0].Frozen() }

// isAwake has the call of the runtime fail if the container sleeps.
func (r *raced) isAwake(call string) {
	if call != "" {
		r.runtime.Do(call, func(process.Config) error {
			if r.frozen() {
				return errors.New("it sleeps")
			}
			return nil
		})
	}
}

// race makes a container that runs.
func race(t *testing.T) *raced {
	t.Helper()
	dir := t.TempDir()
	testx.Write(t, filepath.Join(dir, "cgroup.procs"), "")
	r := &raced{
		hook: newHook(t, Extension(), "after=1h,reclaim=off"), t: t,
		runtime: &processtest.Runtime{Group: cgroup.New(map[string]string{"cpuacct": dir})},
		wanted:  make(chan string, 16),
	}
	queue := event.NewQueue(func(context.Context, event.Event, time.Time) error { return nil })
	config := configuration("")
	config.Bundle, config.Record, config.Hooks, config.Sleeper = "/b", record{}, []process.Hook{r.hook}, telling{r.hook, r.wanted}
	config.IO.Terminal = true
	c, err := process.New(t.Context(), r.runtime, queue, *config)
	testx.Must(t, err)
	r.Container = c
	testx.Must(t, c.Init().Start(t.Context()))
	<-r.wanted
	t.Cleanup(func() {
		made := r.runtime.Containers()[0]
		execs, _ := made.Execs()
		for _, p := range append(execs, made.First()) {
			p.Die(0)
		}
		<-c.Init().Exited()
		_, err := c.Delete(context.Background())
		testx.Must(t, errors.Join(err, queue.Close(context.Background())))
		if len(r.hook.group.members) > 0 {
			t.Error("the group has a container that is deleted")
		}
	})
	return r
}

type record struct{ process.Record }

func (record) Begin() error        { return nil }
func (record) Created(int)         {}
func (record) Exited(process.Exit) {}
func (record) Remove() error       { return nil }
func (record) Deleted()            {}

// wantAfter checks the container after an operation.
func (r *raced) wantAfter(name string) {
	r.t.Helper()
	state := r.Init().Status().State
	if paused := name == "pause"; r.frozen() != paused || (state == process.Paused) != paused {
		r.t.Errorf("after it frozen is %t, and the state is %v", r.frozen(), state)
	}
}

// An operation that comes while the container falls asleep waits for that, and wakes it first.
func TestRace_FallingAsleep(t *testing.T) {
	for name, op := range operations {
		t.Run(name, func(t *testing.T) {
			r := race(t)
			entered, open := r.runtime.Hold("pause")
			slept, did := make(chan error, 1), make(chan error, 1)
			go func() { slept <- r.Sleep() }()
			<-entered
			go func() { did <- op.do(r) }()
			<-r.wanted
			r.isAwake(op.call)
			if op.call == "pause" { // it is the call that is under way
				r.runtime.Do("pause", nil)
			}
			open()
			testx.Must(t, errors.Join(<-slept, <-did))
			r.wantAfter(name)
		})
	}
}

// An operation that comes while the container wakes for another one waits for that.
func TestRace_Waking(t *testing.T) {
	for name, op := range operations {
		t.Run(name, func(t *testing.T) {
			r := race(t)
			testx.Must(t, r.Sleep())
			entered, open := r.runtime.Hold("resume")
			did := make(chan error, 1)
			go r.Wake()
			<-r.wanted
			<-entered
			r.isAwake(op.call)
			go func() { did <- op.do(r) }()
			<-r.wanted
			open()
			testx.Must(t, <-did)
			r.wantAfter(name)
		})
	}
}

// Nothing puts a container to sleep under an operation, which then does what it would have done.
func TestRace_Working(t *testing.T) {
	for name, op := range operations {
		if op.call == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			r := race(t)
			entered, open := r.runtime.Hold(op.call)
			did := make(chan error, 1)
			go func() { did <- op.do(r) }()
			<-entered
			testx.WantError(t, r.Sleep(), errdefs.ErrFailedPrecondition)
			r.hook.group.look() // as by its timer, that has fired by now
			open()
			testx.Must(t, <-did)
			r.wantAfter(name)
		})
	}
}

// A timer that has fired before a use, and is handled after it, does not count.
func TestRace_Timer(t *testing.T) {
	r := race(t)
	testx.Must(t, r.Init().CloseStdin())
	<-r.wanted
	r.hook.group.look()
	if r.frozen() {
		t.Error("it sleeps before it can have read what came")
	}
}

// The end of a container that sleeps, or is about to, is told, and it is deleted.
func TestRace_Exit(t *testing.T) {
	for _, call := range []string{"pause", "resume"} {
		t.Run(call, func(t *testing.T) {
			r := race(t)
			if call == "resume" {
				testx.Must(t, r.Sleep())
			}
			entered, open := r.runtime.Hold(call)
			done := make(chan error, 1)
			go func() {
				if call == "resume" {
					r.Wake()
					done <- nil
				} else {
					done <- r.Sleep()
				}
			}()
			<-entered
			r.runtime.Containers()[0].First().Die(3)
			<-r.Init().Exited()
			open()
			testx.Must(t, <-done)
			if s := r.Init().Status(); s.State != process.Stopped || s.Exit.Status != 3 {
				t.Errorf("it is %+v, want stopped with status 3", s)
			}
		})
	}
}
