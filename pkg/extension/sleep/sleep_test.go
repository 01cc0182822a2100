// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sleep

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/extension"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
)

// fake is a container that can be frozen, with the files of a cgroup that the test writes.
type fake struct {
	process.RuntimeContainer
	t      *testing.T
	dir    string
	frozen atomic.Bool
	stuck  atomic.Bool // it cannot be frozen
}

func (f *fake) Pause() error {
	if f.stuck.Load() {
		return errors.New("it cannot be frozen")
	}
	f.frozen.Store(true)
	return nil
}

func (f *fake) Resume() error {
	f.frozen.Store(false)
	return nil
}

func (f *fake) Cgroup() *cgroup.Cgroup { return cgroup.New(map[string]string{"cpuacct": f.dir}) }

// used sets the CPU time.
func (f *fake) used(d time.Duration) {
	f.t.Helper()
	testx.Write(f.t, filepath.Join(f.dir, "cpuacct.usage"), strconv.FormatInt(int64(d), 10))
}

func (f *fake) want(asleep bool, when string) {
	f.t.Helper()
	synctest.Wait()
	if now := f.frozen.Load(); now != asleep {
		f.t.Errorf("%s: asleep is %t", when, now)
	}
}

// newContainer returns a container with a setting. A pod is the id of the one that it is in, or "".
func newContainer(t *testing.T, e extension.Extension, text, pod string) (*fake, *hook) {
	t.Helper()
	h := newHook(t, e, text)
	testx.Must(t, h.Prepare(context.Background(), configuration(pod)))
	f := &fake{t: t, dir: t.TempDir()}
	f.used(0)
	testx.Must(t, h.Created(context.Background(), f, nil))
	return f, h
}

func newHook(t *testing.T, e extension.Extension, text string) *hook {
	t.Helper()
	table := settings.Table(e.Settings)
	values := table.ValuesOf(map[string]string{settings.Prefix + "idle": text}, options.Options{}, "ns", "c")
	part, err := e.New(values)
	testx.Must(t, err)
	return part.Sleeper.(*hook)
}

func configuration(pod string) *process.Config {
	path := ""
	annotations := map[string]string{}
	if pod != "" {
		path, annotations[podAnnotation] = "/proc/1/ns/ipc", pod
	}
	return &process.Config{ID: "c", Spec: &specs.Spec{Annotations: annotations, Linux: &specs.Linux{
		Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace, Path: path}},
	}}}
}

func TestGroup_SleepsWhenNobodyHasUsedIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, h := newContainer(t, Extension(), "after=10s,reclaim=off", "")
		time.Sleep(time.Hour)
		f.want(false, "before the start")
		h.Use(process.UseStart)()
		time.Sleep(9 * time.Second)
		f.want(false, "9 s after the start")
		h.Use(process.UseInput)()
		time.Sleep(9 * time.Second)
		f.want(false, "9 s after input")
		time.Sleep(time.Second)
		f.want(true, "10 s after input")

		done := h.Use(process.UseExec)
		f.want(false, "an exec")
		time.Sleep(time.Hour)
		f.want(false, "an exec that runs")
		done()
		time.Sleep(time.Second)
		f.want(true, "1 s after an exec that was all")

		done = h.Use(process.UseExec)
		h.Use(process.UseInput)()
		done()
		time.Sleep(9 * time.Second)
		f.want(false, "9 s after an exec and input")
		time.Sleep(time.Second)
		f.want(true, "10 s after an exec and input")
		if i := h.group.inspect(); !i.Asleep || i.Slept != 3 || i.Woken[process.UseExec] != 2 {
			t.Errorf("it tells %+v", i)
		}
		testx.Must(t, h.Removed())
	})
}

func TestGroup_IsAwakeWhileItUsesTheCPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, h := newContainer(t, Extension(), "after=10s,cpu=10%,reclaim=off", "")
		h.Use(process.UseStart)()
		time.Sleep(5 * time.Second)
		f.used(2 * time.Second)
		time.Sleep(6 * time.Second)
		f.want(false, "2 s of CPU time in 10")
		f.used(3 * time.Second)
		time.Sleep(10 * time.Second)
		f.want(true, "1 s of CPU time in 10")

		done := h.Use(process.UseExec)
		f.used(4 * time.Second)
		done()
		f.used(5 * time.Second)
		time.Sleep(9 * time.Second)
		f.want(false, "it works after an exec")
		testx.Must(t, h.Removed())
	})
}

// What was asked to end may wait for others meanwhile.
func TestGroup_IsAwakeAfterASignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, h := newContainer(t, Extension(), "after=10s,reclaim=off", "")
		h.Use(process.UseStart)()
		time.Sleep(10 * time.Second)
		h.Use(process.UseSignal)()
		h.Use(process.UseExec)()
		time.Sleep(ending - time.Second)
		f.want(false, "after a signal and an exec")
		time.Sleep(time.Second)
		f.want(true, "10 minutes after the signal")
		h.Use(process.UseExec)()
		time.Sleep(time.Second)
		f.want(true, "1 s after an exec that was all")
		testx.Must(t, h.Removed())
	})
}

func TestGroup_FlappingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, h := newContainer(t, Extension(), "after=10s,reclaim=off", "")
		h.Use(process.UseStart)()
		time.Sleep(11 * time.Second)
		for range flaps {
			h.Use(process.UseExec)()
			time.Sleep(time.Second)
		}
		f.want(false, "after so many execs")
		time.Sleep(10 * time.Second)
		f.want(true, "after the whole time")
		testx.Must(t, h.Removed())
	})
}

func TestGroup_StaysAwakeIfItCannotBeFrozen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := Extension()
		a, ha := newContainer(t, e, "after=10s,pod,reclaim=off", "p")
		b, hb := newContainer(t, e, "after=10s,pod,reclaim=off", "p")
		b.stuck.Store(true)
		ha.Use(process.UseStart)()
		hb.Use(process.UseStart)()
		time.Sleep(11 * time.Second)
		a.want(false, "the other one cannot be frozen")
		b.stuck.Store(false)
		time.Sleep(retry)
		a.want(true, "at the next try")
		b.want(true, "at the next try")
		hb.Use(process.UseInput)()
		a.want(false, "the other one is used")
		paused := ha.Use(process.UsePause)
		time.Sleep(time.Hour)
		b.want(false, "the other one is used for long")
		_ = paused // it goes with its container
		testx.Must(t, ha.Removed())
		time.Sleep(10 * time.Second)
		b.want(true, "the other one is gone")
		testx.Must(t, hb.Removed())
		if g := hb.pods.groups; len(g) > 0 {
			t.Errorf("groups that are left: %v", g)
		}
	})
}

// What is saved is as it was until a successor has it, or has failed.
func TestHook_StateOfASuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, h := newContainer(t, Extension(), "after=10s,reclaim=off", "")
		h.Use(process.UseStart)()
		_, thaw := h.Save(nil)
		time.Sleep(11 * time.Second)
		f.want(false, "while its state is saved")
		thaw()
		time.Sleep(10 * time.Second)
		f.want(true, "after that")
		state, _ := h.Save(nil)
		text, err := json.Marshal(state)
		testx.Must(t, err)

		next := newHook(t, Extension(), "after=10s,reclaim=off")
		testx.Must(t, next.Restore(nil, text, nil))
		next.Resumed(f)
		time.Sleep(time.Hour)
		f.want(true, "in the successor")
		if i := next.group.inspect(); !i.Asleep || i.Slept != 1 || i.Since.IsZero() {
			t.Errorf("it tells %+v", i)
		}
		next.Use(process.UseExec)()
		f.want(false, "an exec")
		time.Sleep(time.Second)
		f.want(true, "1 s after an exec that was all")
		testx.Must(t, errors.Join(next.Removed(), h.Removed()))
	})
}

// On v2 the kernel is asked again and again, until it has no more or the container is wanted.
func TestReclaim_OnV2(t *testing.T) {
	dir := t.TempDir()
	testx.Write(t, filepath.Join(dir, "memory.current"), "1000\n")
	asked := filepath.Join(dir, "memory.reclaim") // takes whatever is written
	testx.Write(t, asked, "")
	g := newGroup(config{})
	h := &hook{runtime: &onV2{&fake{t: t, dir: dir}}, group: g}
	ctx, wanted := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); g.reclaim(ctx, h) }()
	testx.Eventually(t, "the kernel is asked", func() bool { return testx.Read(t, asked) == "8388608\n" })
	testx.Write(t, filepath.Join(dir, "memory.current"), "400\n")
	wanted()
	testx.Within(t, "it ends", ended)
	if i := g.inspect(); i.Freed != 600 {
		t.Errorf("it has freed %d bytes, want 600", i.Freed)
	}
}

type onV2 struct{ *fake }

func (f *onV2) Cgroup() *cgroup.Cgroup { return cgroup.New(map[string]string{"": f.dir}) }
