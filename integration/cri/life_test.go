// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

// watch collects the events that CRI tells of containers, until the test or containerd ends. It returns when the first
// can be seen.
func (e *env) watch() *events {
	e.Helper()
	ctx, cancel := context.WithCancel(e.ctx)
	stream, err := e.daemon.Runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	e.must(err, "events")
	w := &events{count: map[string]int{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			event, err := stream.Recv()
			if err != nil {
				if ctx.Err() == nil {
					e.Logf("no more events: %v", err) // containerd was stopped
				}
				return
			}
			w.add(event.GetContainerId(), event.GetContainerEventType())
		}
	}()
	e.Cleanup(func() { cancel(); <-done })
	return w
}

// events counts the events of each container.
type events struct {
	mu    sync.Mutex
	count map[string]int // guarded by mu, by container and type
}

func (w *events) add(id string, kind runtimeapi.ContainerEventType) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count[id+" "+kind.String()]++
}

// stopped returns how many exits of a container were reported.
func (w *events) stopped(id string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count[id+" "+runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT.String()]
}

func TestRestart_PodsDoNotNotice(t *testing.T) {
	for _, tt := range []struct {
		name string
		stop func(*harness.Containerd) error
	}{
		{"stopped by its service manager", (*harness.Containerd).Stop},
		{"killed", (*harness.Containerd).Kill},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachWayAlone(t, func(e *env) {
				p, empty := e.pod("p"), e.pod("empty")
				stays := p.run("stays",
					[]string{"sh", "-c", "i=0; while :; do echo line $i; i=$((i+1)); usleep 10000; done"})
				victim, leaver := p.run("victim", forever), p.run("leaver",
					[]string{"sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do usleep 10000; done"})
				stays.wantLog("line 5\n")
				leaver.wantLog("ready\n")
				victimPid := victim.pid()
				e.must(tt.stop(e.daemon.Containerd), "stop containerd")
				e.must(unix.Kill(victimPid, unix.SIGKILL), "kill a container's process")
				e.must(e.daemon.Start(e.ctx), "start containerd again")
				told := e.watch()

				for _, x := range []*pod{p, empty} {
					x.wantState(runtimeapi.PodSandboxState_SANDBOX_READY)
				}
				code := int32(137)
				if harness.Runtime() != harness.Ours {
					// containerd, when it starts, deletes a container without a process (core/runtime/v2/shim_load.go),
					// and CRI then says 255 for what it does not know.
					code = 255
				}
				victim.wantExit(code)
				stays.wantExec("hello", "echo", "hello")
				e.must(unix.Kill(leaver.pid(), unix.SIGTERM), "tell a container's process to exit")
				leaver.wantExit(9)
				harness.Eventually(e, "the exit is told", func() error {
					if n := told.stopped(leaver.id); n != 1 {
						return fmt.Errorf("%d times", n)
					}
					return nil
				})
				if n := told.stopped(victim.id); n > 1 { // once, or before anybody could listen
					e.Errorf("the exit meanwhile was told %d times", n)
				}
				written := strings.Count(stays.log(), "\n")
				stays.wantLog(fmt.Sprintf("line %d\n", written+5)) // the log goes on
				wantConsecutive(e, stays.log())
				empty.run("first", forever).end()
				stays.stop(0)
				stays.wantExit(137)
				for _, x := range []*pod{p, empty} {
					x.remove()
				}
			})
		})
	}
}

// wantConsecutive checks that the lines "line 0", "line 1" and so on are all there, once each and in order.
func wantConsecutive(tb testing.TB, text string) {
	tb.Helper()
	lines := strings.SplitAfter(text, "\n")
	for i, line := range lines[:len(lines)-1] {
		if want := fmt.Sprintf("line %d\n", i); line != want {
			tb.Errorf("log has %q where %q should be", line, want)
			return
		}
	}
}

func TestShim_KilledEndsItsWholePod(t *testing.T) {
	const pod1 = runtimeapi.NamespaceMode_POD
	for _, tt := range []struct {
		name   string
		change []func(*runtimeapi.PodSandboxConfig)
	}{
		{"pid namespaces of the containers", nil},
		{"pid namespace of the pod", []func(*runtimeapi.PodSandboxConfig){in(func(o *runtimeapi.NamespaceOption) { o.Pid = pod1 })}},
		{"pid namespace of the machine", []func(*runtimeapi.PodSandboxConfig){in(func(o *runtimeapi.NamespaceOption) { o.Pid = runtimeapi.NamespaceMode_NODE })}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachWay(t, func(e *env) {
				p := e.pod("p", tt.change...)
				a := p.run("a", []string{"sh", "-c", "sleep 1000 & sleep 1000 & wait"})
				b := p.run("b", forever)
				created := p.create("created", forever)
				e.must(unix.Kill(e.shim(p), unix.SIGKILL), "kill the shim")
				p.wantState(runtimeapi.PodSandboxState_SANDBOX_NOTREADY)
				harness.Eventually(e, "no process of the pod", func() error {
					if left := harness.InCgroup(e.cgroup); len(left) > 0 {
						return fmt.Errorf("%v", left)
					}
					return nil
				})
				e.wantExited(a, b)
				if _, err := p.tryCreate("late", forever); err == nil {
					e.Error("a container was created in a pod whose shim is dead")
				}
				_ = created.status()
				p.remove()
				e.wantPodWorks()
			})
		})
	}
}

// wantPodWorks runs a pod from beginning to end.
func (e *env) wantPodWorks() {
	e.Helper()
	p := e.pod("next")
	p.run("c", forever).wantExec("works", "echo", "works")
	p.remove()
}

func TestShim_KilledIsFoundWhenContainerdComesBack(t *testing.T) {
	eachWayAlone(t, func(e *env) {
		p := e.pod("p")
		p.run("a", forever)
		p.run("b", forever)
		shim := e.shim(p)
		e.must(e.daemon.Kill(), "kill containerd")
		e.must(unix.Kill(shim, unix.SIGKILL), "kill the shim")
		e.must(e.daemon.Start(e.ctx), "start containerd again")
		p.wantState(runtimeapi.PodSandboxState_SANDBOX_NOTREADY)
		harness.Eventually(e, "no process of the pod", func() error {
			if left := harness.InCgroup(e.cgroup); len(left) > 0 {
				return fmt.Errorf("%v", left)
			}
			return nil
		})
		p.remove()
		e.wantPodWorks()
	})
}

func TestPod_WhoseFirstProcessIsKilledIsNotReady(t *testing.T) {
	eachWay(t, func(e *env) {
		if e.way != cri.PodSandbox {
			e.Skip("the first process is the shim") // TestShim_KilledEndsItsWholePod
		}
		p := e.pod("p")
		c := p.run("c", forever)
		e.must(unix.Kill(p.info().Pid, unix.SIGKILL), "kill the pause container")
		p.wantState(runtimeapi.PodSandboxState_SANDBOX_NOTREADY)
		c.wantExec("runs on", "echo", "runs on") // until the kubelet ends the pod
		p.remove()
	})
}
