// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"sandbox.internal/shim/pkg/internal/testx"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

// stopped is a container in a bubble of time.
type stopped struct {
	*testing.T
	box *Manager
	c   *Task
	r   *fakeRuntime
}

// inBubble runs a container that ends by SIGKILL only, unless it hears.
func inBubble(t *testing.T, hears bool, test func(stopped)) {
	t.Helper()
	bundle := testx.NewBundle(t, annotated("stop-timeout", "20s"))
	synctest.Test(t, func(t *testing.T) {
		engine := &fakeEngine{}
		if !hears {
			engine.deaf = func(sig syscall.Signal) bool { return sig != unix.SIGKILL }
		}
		box := newManager(t, engine)
		c := create(t, box, "c1", bundle)
		testx.Must(t, c.Init().Start(t.Context()))
		test(stopped{T: t, box: box, c: c, r: engine.runtimes[0]})
		remove(t, box, "c1")
	})
}

func (s stopped) wantHeard(want ...syscall.Signal) {
	s.Helper()
	s.r.engine.mu.Lock()
	defer s.r.engine.mu.Unlock()
	got := slices.Clone(s.r.engine.signals)
	for len(got) > 1 && got[len(got)-1] == unix.SIGKILL && got[len(got)-2] == unix.SIGKILL {
		got = got[:len(got)-1] // each who waited kills
	}
	if !slices.Equal(got, want) {
		s.Errorf("init was sent %v, want %v", s.r.engine.signals, want)
	}
}

// took runs f and checks how long that took.
func (s stopped) took(want time.Duration, f func() error) {
	s.Helper()
	start := time.Now()
	if err := f(); err != nil {
		s.Errorf("Stop = %v", err)
	}
	if got := time.Since(start); got != want {
		s.Errorf("Stop took %v, want %v", got, want)
	}
}

// One that is paused between the look at its state and the signal is as frozen.
func TestStop_ThawsWhatIsPausedMeanwhile(t *testing.T) {
	inBubble(t, false, func(s stopped) {
		s.r.engine.deaf = func(sig syscall.Signal) bool {
			if sig == unix.SIGTERM {
				testx.Must(t, s.c.Pause(s.Context()))
			}
			return sig != unix.SIGKILL
		}
		s.took(time.Minute, func() error { return s.c.Stop(s.Context(), time.Minute) })
		if s.r.thawed != unix.SIGTERM {
			s.Errorf("thawed after signal %d, want %d", s.r.thawed, unix.SIGTERM)
		}
	})
}

// A mount that hangs, for instance. Nor does it keep the others from being asked at once.
func TestStopContainers_GivesUpOnACreateThatDoesNotEnd(t *testing.T) {
	bundle, other := testx.NewBundle(t, goodSpec()), testx.NewBundle(t, annotated("stop-timeout", "20s"))
	synctest.Test(t, func(t *testing.T) {
		hang, created := make(chan struct{}), make(chan struct{})
		engine := &fakeEngine{}
		box := newManager(t, engine)
		runs := create(t, box, "c2", other)
		testx.Must(t, runs.Init().Start(t.Context()))
		engine.create = func(process.Config) error { <-hang; return errors.New("at last") }
		go func() {
			defer close(created)
			_, err := box.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle})
			testx.WantText(t, err, "at last")
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		start := time.Now()
		err := box.StopContainers(ctx)
		testx.WantText(t, err, "being created", "c1")
		if after := runs.Init().Status().Exit.At.Sub(start); after != 0 {
			t.Errorf("the container that runs ended after %v, want at once", after)
		}
		if took := time.Since(start); took != deathTimeout {
			t.Errorf("StopContainers took %v, want %v", took, deathTimeout)
		}
		close(hang)
		<-created
	})
}

func TestStop_KillsAnUnstartedContainerAtOnce(t *testing.T) {
	s := newManager(t, &fakeEngine{})
	c := create(t, s, "c1", testx.NewBundle(t, goodSpec()))
	testx.Must(t, c.Stop(t.Context(), time.Hour))
	if got := c.Init().Status(); got.Exit.Status != 137 {
		t.Errorf("exit status = %d, want 137", got.Exit.Status)
	}
}

func TestStop_SecondJoinsTheFirst(t *testing.T) {
	for _, tc := range []struct {
		name          string
		first, second time.Duration
		end           time.Duration // of both
	}{
		{"a longer grace does not put the end off", time.Minute, time.Hour, time.Minute},
		{"a shorter one brings it forward", time.Minute, 10 * time.Second, 11 * time.Second},
		{"none kills at once", time.Minute, 0, time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, false, func(s stopped) {
				var first sync.WaitGroup
				first.Go(func() { s.took(tc.end, func() error { return s.c.Stop(s.Context(), tc.first) }) })
				time.Sleep(time.Second)
				s.took(tc.end-time.Second, func() error { return s.c.Stop(s.Context(), tc.second) })
				first.Wait()
				s.wantHeard(unix.SIGTERM, unix.SIGKILL)
			})
		})
	}
}

func TestStop_GoesOnAfterOneThatWasCancelled(t *testing.T) {
	inBubble(t, false, func(s stopped) {
		ctx, cancel := context.WithTimeout(s.Context(), 20*time.Second)
		defer cancel()
		if err := s.c.Stop(ctx, time.Minute); !errors.Is(err, context.DeadlineExceeded) {
			s.Errorf("Stop = %v, want that its context ended", err)
		}
		s.wantHeard(unix.SIGTERM)
		s.took(40*time.Second, func() error { return s.c.Stop(s.Context(), time.Minute) })
		s.wantHeard(unix.SIGTERM, unix.SIGKILL)
	})
}

func TestStopContainers(t *testing.T) {
	engine := &fakeEngine{}
	box := newManager(t, engine)
	asked := create(t, box, "asked", testx.NewBundle(t, annotated("stop-timeout", "0")))
	other := create(t, box, "other", testx.NewBundle(t, goodSpec()))
	engine.entered, engine.gate = make(chan string, 1), make(chan struct{})
	bundle := testx.NewBundle(t, goodSpec())
	created := make(chan error, 1)
	go func() {
		_, err := box.Create(t.Context(), CreateRequest{ID: "new", Bundle: bundle})
		created <- err
	}()
	<-engine.entered
	testx.Must(t, box.StopContainers(t.Context()))
	if err := <-created; !errors.Is(err, context.Canceled) {
		t.Errorf("Create under way = %v, want that it was cancelled", err)
	}
	if got := asked.Init().Status().State; got != process.Stopped {
		t.Errorf("the container with a timeout is %v, want stopped", got)
	}
	if got := other.Init().Status().State; got != process.Created {
		t.Errorf("the container without is %v, want created: it is for containerd", got)
	}
	engine.entered = nil
	if _, err := box.Create(t.Context(), CreateRequest{ID: "late", Bundle: bundle}); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "late") {
		t.Errorf("Create afterwards = %v, want unavailable", err)
	}
}

// hungCheckpoint is a container whose checkpoints do not end before the gate is open.
type hungCheckpoint struct {
	process.RuntimeContainer
	gate chan struct{}
}

func (h hungCheckpoint) Checkpoint(process.CheckpointRequest) error {
	<-h.gate
	return nil
}

// A checkpoint of a paused container keeps it from being thawed, and so from handling the stop signal.
func TestStop_KillsAtTheEndOfTheGraceUnderACheckpoint(t *testing.T) {
	inBubble(t, false, func(s stopped) {
		gate := make(chan struct{})
		s.r.RuntimeContainer = hungCheckpoint{gate: gate}
		testx.Must(s.T, s.c.Pause(s.Context()))
		checkpointed := make(chan error, 1)
		go func() { checkpointed <- s.c.Checkpoint(s.Context(), process.CheckpointRequest{}) }()
		synctest.Wait()
		done := make(chan error, 1)
		began := time.Now()
		go func() { done <- s.c.Stop(s.Context(), 20*time.Second) }()
		time.Sleep(21 * time.Second)
		synctest.Wait()
		s.wantHeard(unix.SIGTERM, unix.SIGKILL)
		close(gate)
		testx.Must(s.T, <-checkpointed)
		testx.Must(s.T, <-done)
		if took := time.Since(began); took > 22*time.Second {
			s.Errorf("Stop took %v, want the grace of 20s", took)
		}
	})
}

// It is killed with the process whose namespace it is in.
func TestStopContainers_StopsMembersOfAPIDNamespaceFirst(t *testing.T) {
	in := func(path string, pairs ...string) *specs.Spec {
		spec := annotated(pairs...)
		spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.PIDNamespace, Path: path}}
		return spec
	}
	pause := testx.NewBundle(t, in("", "stop-signal", "QUIT"))
	member := testx.NewBundle(t, in("/proc/4321/ns/pid", "stop-timeout", "5s"))
	synctest.Test(t, func(t *testing.T) {
		s := newManager(t, &fakeEngine{deaf: func(sig syscall.Signal) bool { return sig == unix.SIGTERM }})
		began := time.Now()
		var inits []*process.Process
		for id, bundle := range map[string]string{"pause": pause, "member": member} {
			c := create(t, s, id, bundle)
			testx.Must(t, c.Init().Start(t.Context()))
			inits = append(inits, c.Init())
		}
		testx.Must(t, s.StopContainers(t.Context()))
		for _, init := range inits {
			if took := init.Status().Exit.At.Sub(began); took != 5*time.Second {
				t.Errorf("an init of the two ended after %v, want both after the 5 s of the member", took)
			}
		}
	})
}

func TestStop(t *testing.T) {
	for _, tc := range []struct {
		name   string
		hears  bool
		paused bool
		grace  time.Duration
		took   time.Duration
		heard  []syscall.Signal
	}{
		{"init ends by the signal", true, false, time.Minute, 0, []syscall.Signal{unix.SIGTERM}},
		{"init does not end by the signal", false, false, time.Minute, time.Minute, []syscall.Signal{unix.SIGTERM, unix.SIGKILL}},
		{"no grace", true, false, 0, 0, []syscall.Signal{unix.SIGKILL}},
		{"a paused container is thawed after the signal", false, true, time.Minute, time.Minute, []syscall.Signal{unix.SIGTERM, unix.SIGKILL}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, tc.hears, func(s stopped) {
				if tc.paused {
					testx.Must(s.T, s.c.Pause(s.Context()))
				}
				s.took(tc.took, func() error { return s.c.Stop(s.Context(), tc.grace) })
				s.wantHeard(tc.heard...)
				if got := s.r.thawed; tc.paused && got != unix.SIGTERM {
					s.Errorf("it was thawed after signal %d, want after SIGTERM", got)
				}
				s.took(0, func() error { return s.c.Stop(s.Context(), tc.grace) }) // it has ended
			})
		})
	}
}
