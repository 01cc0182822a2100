// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/task"
)

func TestStop_GivesContainersTheirTime(t *testing.T) {
	for _, tc := range []struct {
		name    string
		deaf    []syscall.Signal
		timeout time.Duration
		signals string
		took    time.Duration
	}{
		{"that obey", nil, 30 * time.Second, "[terminated]", 0},
		{"that do not", []syscall.Signal{unix.SIGTERM}, 30 * time.Second, "[terminated killed]", 30 * time.Second},
		{"none", []syscall.Signal{unix.SIGTERM}, 0, "[killed]", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := newRuntime(tc.deaf...)
				s, p := runPod(t, engine, "m")
				began := time.Now()
				testx.Must(t, s.Stop(t.Context(), "s", tc.timeout))
				if took := time.Since(began); took != tc.took {
					t.Errorf("took %v, want %v", took, tc.took)
				}
				if got := fmt.Sprint(engine.Signals()); got != tc.signals {
					t.Errorf("signals = %s, want %s", got, tc.signals)
				}
				if got, want := p.log(), "create start adapt close"; got != want {
					t.Errorf("calls of the pod = %q, want %q", got, want)
				}
				// Once more, and nothing happens.
				testx.Must(t, s.Stop(t.Context(), "s", tc.timeout))
				if got, want := p.log(), "create start adapt close"; got != want {
					t.Errorf("calls of the pod after a second stop = %q, want %q", got, want)
				}
			})
		})
	}
}

func TestStop_JoinsTheOneUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newRuntime(unix.SIGTERM)
		s, _ := runPod(t, engine, "m")
		began := time.Now()
		var all sync.WaitGroup
		stop := func(after, timeout time.Duration) {
			all.Go(func() {
				time.Sleep(after)
				if err := s.Stop(t.Context(), "s", timeout); err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took != 12*time.Second {
					t.Errorf("stop within %v after %v returned at %v, want 12 s, the earliest end of grace", timeout, after, took)
				}
			})
		}
		stop(0, 30*time.Second)
		stop(2*time.Second, 10*time.Second)
		stop(4*time.Second, 20*time.Second)
		time.Sleep(time.Second)
		if got, err := s.Status("s"); err != nil || got.Stage != Stopping {
			t.Errorf("stage = %v, %v, want stopping", got.Stage, err)
		}
		if _, err := s.tasks.Create(t.Context(), task.CreateRequest{ID: "m2", Bundle: testx.NewBundle(t, goodSpec())}); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("Create in a pod that is stopping = %v, want failed precondition", err)
		}
		all.Wait()
		if got, want := fmt.Sprint(engine.Signals()), "[terminated killed]"; got != want {
			t.Errorf("signals = %s, want %s", got, want)
		}
	})
}

// A containerd that goes away does not stop a stop.
func TestStop_GoesOnWithoutItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := runPod(t, newRuntime(unix.SIGTERM), "m")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := s.Stop(ctx, "s", 10*time.Second)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("StopPod whose caller gives up = %v, want deadline exceeded", err)
		}
		began := time.Now()
		exit, err := s.Wait(t.Context(), "s")
		testx.Must(t, err)
		if took := time.Since(began); took != 9*time.Second || exit.At.IsZero() {
			t.Errorf("stopped %v after the caller left, at %v, want 9 s", took, exit.At)
		}
	})
}

func TestStop_CanBeTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newRuntime(unix.SIGTERM, unix.SIGKILL)
		s, p := runPod(t, engine, "m")
		began := time.Now()
		err := s.Stop(t.Context(), "s", 0)
		testx.WantText(t, err, `"s"`, `"m"`, "not dead 12s after SIGKILL")
		if took := time.Since(began); took != 12*time.Second {
			t.Errorf("took %v, want 12 s", took)
		}
		if got, _ := s.Status("s"); got.Stage != Stopping {
			t.Errorf("stage = %v, want stopping", got.Stage)
		}
		engine.SetDeaf(func(syscall.Signal) bool { return false })
		p.fail("close", errors.New("busy"))
		testx.WantText(t, s.Stop(t.Context(), "s", 0), "busy")
		p.fail("close", nil)
		testx.Must(t, s.Stop(t.Context(), "s", 0))
	})
}

// The first try ended the process that holds the namespaces, and then failed.
func TestStop_TriedAgainTellsTheFirstExit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := runHeld(t, newRuntime())
		began := time.Now()
		p.fail("close", errors.New("busy"))
		testx.WantText(t, s.Stop(t.Context(), "s", 0), "busy")
		p.die()
		synctest.Wait()
		p.fail("close", nil)
		time.Sleep(time.Second)
		testx.Must(t, s.Stop(t.Context(), "s", 0))
		if exit, err := s.Wait(t.Context(), "s"); err != nil || exit.Status != 0 || !exit.At.Equal(began) {
			t.Errorf("exit = %+v, %v, want status 0 at the first try, %v", exit, err, began)
		}
	})
}

// What was never started has no program that could end it.
func TestStop_KillsWhatIsNotStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newRuntime(unix.SIGTERM)
		s, _ := runPod(t, engine)
		_, err := s.tasks.Create(t.Context(), task.CreateRequest{ID: "m", Bundle: testx.NewBundle(t, goodSpec())})
		testx.Must(t, err)
		began := time.Now()
		testx.Must(t, s.Stop(t.Context(), "s", time.Minute))
		if took := time.Since(began); took != 0 {
			t.Errorf("took %v, want nothing", took)
		}
	})
}

// Until it starts it has no process that a stop could end, and the namespaces at the pod's pid are the host's after that.
func TestStop_NoContainerIsRestoredAfter(t *testing.T) {
	s, _ := runPod(t, newRuntime())
	_, err := s.tasks.Create(t.Context(), task.CreateRequest{ID: "m", Bundle: testx.NewBundle(t, goodSpec()), Checkpoint: "/image"})
	testx.Must(t, err)
	testx.Must(t, s.Stop(t.Context(), "s", 0))
	_, err = s.tasks.Start(t.Context(), "m", "")
	if !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Start = %v, want failed precondition", err)
	}
	testx.WantText(t, err, `"m"`, "stopped")
	testx.Must(t, s.Shutdown(t.Context(), "s"))
}

// The restore of a large image takes long. What it has made all the same is killed like the rest.
func TestStop_EndsARestoreUnderWay(t *testing.T) {
	for _, failure := range []error{context.Canceled, nil} {
		synctest.Test(t, func(t *testing.T) {
			engine := newRuntime()
			s, p := runPod(t, engine)
			c, err := s.tasks.Create(t.Context(), task.CreateRequest{ID: "m", Bundle: testx.NewBundle(t, goodSpec()), Checkpoint: "/image"})
			testx.Must(t, err)
			entered, ended := make(chan struct{}), make(chan error)
			engine.Do("restore", func(process.Config) error { close(entered); return <-ended })
			started, stopped := make(chan error, 1), make(chan error, 1)
			go func() {
				_, err := s.tasks.Start(t.Context(), "m", "")
				started <- err
			}()
			<-entered
			go func() { stopped <- s.Stop(t.Context(), "s", 0) }()
			synctest.Wait()
			if len(stopped) > 0 || strings.Contains(p.log(), "close") {
				t.Error("the pod is stopped while a container of it is restored")
			}
			ended <- failure
			if err := <-started; !errors.Is(err, failure) {
				t.Errorf("Start = %v, want %v", err, failure)
			}
			testx.Must(t, <-stopped)
			if got := c.Init().Status().State; got != process.Stopped {
				t.Errorf("after StopSandbox the container is %v", got)
			}
			testx.Must(t, s.Shutdown(t.Context(), "s"))
		})
	}
}

func TestStop_EndsACreateUnderWay(t *testing.T) {
	engine := newRuntime()
	entered, _ := engine.Hold("create")
	s, _ := runPod(t, engine)
	created := make(chan error, 1)
	bundle := testx.NewBundle(t, goodSpec())
	go func() {
		_, err := s.tasks.Create(t.Context(), task.CreateRequest{ID: "m", Bundle: bundle})
		created <- err
	}()
	<-entered
	testx.Must(t, s.Stop(t.Context(), "s", time.Minute))
	if err := <-created; !errors.Is(err, context.Canceled) {
		t.Errorf("Create = %v, want that it was cancelled", err)
	}
}

// Who waits for the pod takes its containers for dead.
func TestWait_ReturnsAfterTheExitsOfContainers(t *testing.T) {
	var told atomic.Int32
	exits := make(chan struct{}, 2)
	s := New(newTasks(t, newRuntime(), func(e event.Event) {
		if _, ok := e.(event.TaskExit); ok {
			told.Add(1)
			exits <- struct{}{}
		}
	}), newFakePod().make)
	testx.Must(t, s.Create(t.Context(), CreateRequest{ID: "s", Bundle: testx.NewBundle(t, goodSpec())}))
	_, err := s.Start(t.Context(), "s")
	testx.Must(t, err)
	var inits []*process.Process
	for _, id := range []string{"a", "b"} {
		inits = append(inits, runIn(t, s, id, testx.NewBundle(t, goodSpec())).Init())
	}
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		if _, err := s.Wait(t.Context(), "s"); err != nil {
			t.Error(err)
		}
		for _, init := range inits {
			if init.Status().State != process.Stopped {
				t.Errorf("the pod's end was told before that of container %s", init.Status().ID)
			}
		}
	}()
	if testx.Closed(waited) {
		t.Error("WaitPod returned while the pod runs")
	}
	testx.Must(t, s.Stop(t.Context(), "s", 0))
	testx.Within(t, "WaitPod", waited)
	<-exits
	<-exits
	if told.Load() != 2 {
		t.Errorf("%d exits told, want 2", told.Load())
	}
}

func TestWait_PodEndsWithTheProcessThatHoldsItsNamespaces(t *testing.T) {
	engine := newRuntime()
	s, p := runHeld(t, engine)
	c := runIn(t, s, "m", testx.NewBundle(t, goodSpec()))
	p.die()
	exit, err := s.Wait(t.Context(), "s")
	testx.Must(t, err)
	if exit.Status != 137 || !exit.At.Equal(time.Unix(5, 0)) {
		t.Errorf("exit = %+v, want that of the process", exit)
	}
	if got := c.Init().Status().State; got != process.Stopped {
		t.Errorf("the container is %v, want stopped", got)
	}
	// One that is stopped in order is not said to have died, although its process was killed for it.
	s, _ = runHeld(t, engine)
	testx.Must(t, s.Stop(t.Context(), "s", 0))
	if exit, err := s.Wait(t.Context(), "s"); err != nil || exit.Status != 0 {
		t.Errorf("exit = %+v, %v, want status 0", exit, err)
	}
}

func TestShutdown_EndsAll(t *testing.T) {
	engine := newRuntime()
	s, p := runPod(t, engine, "a", "b")
	bundle := s.sandbox.Load().bundle
	if got := testx.Files(t, bundle); !strings.Contains(got, "shim.json") {
		t.Errorf("files of a pod that runs = %q, want shim.json", got)
	}
	s.tasks.Shutdown()
	if testx.Closed(s.tasks.Done()) {
		t.Error("Shutdown of a task ended the shim, although its sandbox lives")
	}
	engine.Fail("destroy", errors.New("busy"))
	testx.WantText(t, s.Shutdown(t.Context(), "s"), `"s"`, "busy")
	if testx.Closed(s.tasks.Done()) {
		t.Error("the shim ends although containers are left")
	}
	engine.Fail("destroy", nil)
	testx.Must(t, s.Shutdown(t.Context(), "s"))
	if !testx.Closed(s.tasks.Done()) {
		t.Error("the shim does not end")
	}
	if got, want := p.log(), "create start adapt adapt close"; got != want {
		t.Errorf("calls of the pod = %q, want %q", got, want)
	}
	if got, want := testx.Files(t, bundle), rootfsDir; got != want {
		t.Errorf("files = %q, want %q", got, want)
	}
}

// containerd waits for the end of the pod, and asks for nothing.
func TestWait_EndsAfterAFailedStopOfAPodThatDied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := runHeld(t, newRuntime())
		p.fail("close", errors.New("busy"))
		p.die()
		time.Sleep(2 * retryTime)
		p.fail("close", nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if exit, err := s.Wait(ctx, "s"); err != nil || exit.Status != 137 {
			t.Errorf("Wait = %+v, %v, want the exit of the process", exit, err)
		}
	})
}

// annotated is a configuration with one annotation.
func annotated(key, value string) *specs.Spec {
	spec := goodSpec()
	spec.Annotations = map[string]string{"io.containerd.sandbox.v1/" + key: value}
	return spec
}

// A SIGTERM to the shim and a StopPodSandbox, in either order.
func TestStop_JoinsThatOfAContainer(t *testing.T) {
	const grace = 20 * time.Second // the container's own
	for _, tc := range []struct {
		name     string
		podFirst bool
		pod, end time.Duration
	}{
		{"the pod's grace is longer", false, time.Minute, grace},
		{"the pod's grace is shorter", false, 10 * time.Second, 11 * time.Second},
		{"the pod is killed at once", false, 0, time.Second},
		{"the pod is first, with a longer grace", true, time.Minute, grace + time.Second},
		{"the pod is first, with a shorter grace", true, 10 * time.Second, 10 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bundle := testx.NewBundle(t, annotated("stop-timeout", grace.String()))
			synctest.Test(t, func(t *testing.T) {
				engine := newRuntime(unix.SIGTERM)
				s, _ := runPod(t, engine)
				runIn(t, s, "m", bundle)
				first := func() error { return s.tasks.StopContainers() }
				second := func() error { return s.Stop(t.Context(), "s", tc.pod) }
				if tc.podFirst {
					first, second = second, first
				}
				began := time.Now()
				ended := func(err error) {
					if took := time.Since(began); err != nil || took != tc.end {
						t.Errorf("a stop ended after %v, %v, want %v", took, err, tc.end)
					}
				}
				var all sync.WaitGroup
				all.Go(func() { ended(first()) })
				time.Sleep(time.Second)
				ended(second())
				all.Wait()
				// The one that is killed first may be killed by both.
				if got := fmt.Sprint(slices.Compact(engine.Signals())); got != "[terminated killed]" {
					t.Errorf("init was sent %s, want [terminated killed]", got)
				}
			})
		})
	}
}

// Whichever is first, no container lives when the pod is stopped: the namespaces at its pid are the host's then.
func TestStop_AgainstCreate(t *testing.T) {
	bundle := testx.NewBundle(t, goodSpec())
	for range 100 {
		s, _ := runPod(t, newRuntime())
		var both sync.WaitGroup
		var c *task.Task
		var err error
		both.Go(func() { c, err = s.tasks.Create(t.Context(), task.CreateRequest{ID: "m", Bundle: bundle}) })
		both.Go(func() { testx.Must(t, s.Stop(t.Context(), "s", 0)) })
		both.Wait()
		switch {
		case err == nil && c.Init().Status().State != process.Stopped:
			t.Fatalf("the container is %v in a pod that is stopped", c.Init().Status().State)
		case err != nil && !errdefs.IsFailedPrecondition(err) && !errors.Is(err, context.Canceled):
			t.Fatalf("Create = %v, want that the pod is stopping, or that it was cancelled", err)
		}
		testx.Must(t, s.Shutdown(t.Context(), "s"))
	}
}

func TestShutdown_LeavesTheAnswerOfDelete(t *testing.T) {
	s, _, r := newController(t, newRuntime())
	s.tasks.KeepIndex("s", r.Bundle, "/the/socket", func(pid int, exit process.Exit) ([]byte, error) {
		return fmt.Appendf(nil, "pid %d, status %d", pid, exit.Status), nil
	})
	testx.Must(t, s.Create(t.Context(), r))
	started, err := s.Start(t.Context(), "s")
	testx.Must(t, err)
	testx.Must(t, s.Shutdown(t.Context(), "s"))
	want := fmt.Sprintf("\x00pid %d, status 0", started.Pid)
	if text, err := os.ReadFile(filepath.Join(r.Bundle, "shim.json")); !strings.HasSuffix(string(text), want) || err != nil {
		t.Errorf("shim.json = %q, %v, want %q at its end", text, err, want)
	}
}
