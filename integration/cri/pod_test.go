// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	task3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

func TestPod_InitContainersRunFirst(t *testing.T) {
	eachWay(t, func(e *env) {
		volume := mounted(e.volume(), "/volume")
		p := e.pod("p")
		for i := range 3 {
			p.run(fmt.Sprintf("init%d", i), []string{"sh", "-c", fmt.Sprintf("echo %d >>/volume/order", i)},
				volume).wantExit(0)
		}
		c := p.run("c", forever, volume)
		c.wantExec("0\n1\n2", "cat", "/volume/order")
		p.wantState(runtimeapi.PodSandboxState_SANDBOX_READY)
	})
}

func TestStop_OfAPodWhoseContainersDoNotEnd(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		deaf := p.run("deaf", []string{"sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1000; done"})
		deaf.wantLog("ready\n")
		began := time.Now()
		deaf.stop(1)
		deaf.wantExit(137)
		if took := time.Since(began); took < time.Second {
			e.Errorf("killed after %v, want a second of grace", took)
		}
		own := p.run("own", []string{"sh", "-c", "trap 'exit 7' USR1; echo ready; while :; do sleep 1000 & wait $!; done"},
			func(c *runtimeapi.ContainerConfig) { c.StopSignal = runtimeapi.Signal_SIGNAL_SIGUSR1 })
		own.wantLog("ready\n")
		own.stop(20)
		own.wantExit(7)
		p.run("left", []string{"sh", "-c", "trap '' TERM; while :; do sleep 1000; done"})
		p.create("unstarted", forever)
		e.must(p.Stop(e.ctx), "stop") // kills what is left
		p.wantState(runtimeapi.PodSandboxState_SANDBOX_NOTREADY)
		e.must(p.Stop(e.ctx), "stop again")
		if left := harness.InCgroup(e.cgroup); len(left) > 0 {
			e.Errorf("after the pod was stopped there are %v", left)
		}
		if _, err := p.tryCreate("late", forever); err == nil {
			e.Error("a container was created in a stopped pod")
		}
		p.remove()
		p.remove() // as a kubelet may that did not hear of it
	})
}

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

func (w *events) stopped(id string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count[id+" "+runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT.String()]
}

func TestRestart_PodsDoNotNotice(t *testing.T) {
	eachWayAlone(t, func(e *env) {
		p, empty := e.pod("p"), e.pod("empty")
		stays := p.run("stays",
			[]string{"sh", "-c", "i=0; while :; do echo line $i; i=$((i+1)); usleep 10000; done"})
		victim, leaver := p.run("victim", forever), p.run("leaver",
			[]string{"sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do usleep 10000; done"})
		stays.wantLog("line 5\n")
		leaver.wantLog("ready\n")
		victimPid := victim.pid()
		e.must(e.daemon.Kill(), "kill containerd")
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
	for _, tt := range []struct {
		name   string
		change []func(*runtimeapi.PodSandboxConfig)
	}{
		{"pid namespaces of the containers", nil},
		{"pid namespace of the pod", []func(*runtimeapi.PodSandboxConfig){in(func(o *runtimeapi.NamespaceOption) { o.Pid = ofPod })}},
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
	})
}

// direct calls the shim of the pod, past containerd, on a connection that stays open for the test.
func (p *pod) direct() task3.TTRPCTaskService {
	e := p.e
	e.Helper()
	bundles := "io.containerd.runtime.v2.task"
	if e.way == cri.Shim {
		bundles = "io.containerd.sandbox.controller.v1.shim"
	}
	direct, err := harness.DialShim(e, filepath.Join(e.daemon.State, bundles, "k8s.io", p.ID))
	e.must(err, "dial the shim")
	return direct
}

// endPause kills the pause container of the pod and returns when containerd has deleted its task.
func (p *pod) endPause() {
	e := p.e
	e.Helper()
	cl, err := e.daemon.Client()
	e.must(err, "connect to containerd")
	defer func() { _ = cl.Close() }() // it has done what it was for
	ctx := namespaces.WithNamespace(e.ctx, "k8s.io")
	pause, err := cl.LoadContainer(ctx, p.ID)
	e.must(err, "pause container")
	running, err := pause.Task(ctx, nil)
	e.must(err, "task of the pause container")
	e.must(running.Kill(ctx, unix.SIGKILL), "kill the pause container")
	harness.Eventually(e, "containerd deletes the task of the pause container", func() error {
		if _, err := pause.Task(ctx, nil); !errdefs.IsNotFound(err) {
			return errors.Join(errors.New("the task is there"), err)
		}
		return nil
	})
}

// As containerd's own TestShutdownShimWhenPauseExitsBeforeWorkload.
func TestShim_IsGoneForEveryClientWhenItsPodIsRemoved(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		shim := p.direct()
		c := p.run("c", forever)
		if e.way == cri.PodSandbox {
			p.endPause()
		}
		_, err := shim.Connect(e.ctx, &task3.ConnectRequest{ID: c.id})
		e.must(err, "connect while a container runs")
		p.remove()
		if answer, err := shim.Connect(e.ctx, &task3.ConnectRequest{}); !errors.Is(err, ttrpc.ErrClosed) {
			e.Errorf("connect after the pod's removal = %v, %v, want %v", answer, err, ttrpc.ErrClosed)
		}
	})
}

// manyPods is how many pods the test of many runs. SHIM_TEST_PODS says otherwise.
func manyPods() int {
	if n, err := strconv.Atoi(os.Getenv("SHIM_TEST_PODS")); err == nil {
		return max(n, 1)
	}
	return 30
}

func TestPod_ManyOfTwoContainersLeaveNothing(t *testing.T) {
	eachWay(t, func(e *env) {
		const parallel = 4 // two for each core that CI has
		began := time.Now()
		work := make(chan int)
		var workers sync.WaitGroup
		pods := make([]*cri.Pod, manyPods())
		errs := make([]error, len(pods))
		each := func(do func(i int) error) {
			for range parallel {
				workers.Go(func() {
					for i := range work {
						errs[i] = errors.Join(errs[i], do(i))
					}
				})
			}
			for i := range pods {
				work <- i
			}
			close(work)
			workers.Wait()
			work = make(chan int)
			e.must(errors.Join(errs...), "pods")
		}
		each(func(i int) error {
			var err error
			if pods[i], err = e.daemon.RunPod(e.ctx, e.handler, e.podConfig(fmt.Sprintf("p%d", i))); err != nil {
				return err
			}
			for _, name := range []string{"a", "b"} {
				if _, err := pods[i].Run(e.ctx, cri.ContainerConfig(name, "sleep", "1000")); err != nil {
					return err
				}
			}
			return nil
		})
		running := time.Since(began)
		shims := harness.ShimsOf(e.daemon.Address, "")
		if few := len(shims) < len(pods); harness.PodsPerShim() == "" && len(shims) != len(pods) || harness.PodsPerShim() != "" && !few {
			e.Errorf("%d shims for %d pods", len(shims), len(pods))
		}
		each(func(i int) error { return pods[i].Remove(e.ctx) })
		e.Logf("%d pods: started in %v, removed in %v", len(pods), running.Round(time.Millisecond),
			(time.Since(began) - running).Round(time.Millisecond))
	})
}

// infoOf returns what the verbose status of a container has as JSON.
func infoOf[T any](c *container) T {
	c.pod.e.Helper()
	r, err := c.pod.e.daemon.Runtime.ContainerStatus(c.pod.e.ctx,
		&runtimeapi.ContainerStatusRequest{ContainerId: c.id, Verbose: true})
	c.pod.e.must(err, "verbose status of a container")
	var info T
	c.pod.e.must(json.Unmarshal([]byte(r.GetInfo()["info"]), &info), "decode the verbose status of a container")
	return info
}

// info is the part of a pod's verbose status that the tests look at.
type info struct {
	Pid int `json:"pid"`
}

// info returns what the verbose status of the pod has as JSON.
func (p *pod) info() info {
	p.e.Helper()
	r, err := p.e.daemon.Runtime.PodSandboxStatus(p.e.ctx,
		&runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.ID, Verbose: true})
	p.e.must(err, "verbose status of the pod")
	var i info
	p.e.must(json.Unmarshal([]byte(r.GetInfo()["info"]), &i), "decode the verbose status of the pod")
	return i
}

// The pod lives while containers come and go, which have one shim.
func TestPod_RunsAndLeavesNothing(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		for i := range 2 { // the second has no container beside it to hold anything
			c := p.run(fmt.Sprint("c", i), []string{"sh", "-c", "echo out; echo err >&2; exit 3"})
			c.wantExit(3)
			c.wantLog("out\n")
			c.wantLog("err\n")
			c.remove()
			p.wantState(runtimeapi.PodSandboxState_SANDBOX_READY)
		}
		p.run("a", forever)
		p.run("b", forever).wantExec("hello", "echo", "hello")
		if shims := harness.ShimsOf(e.daemon.Address, ""); len(shims) != 1 {
			e.Errorf("shims = %v, want one", shims)
		}
	})
}
