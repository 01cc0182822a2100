// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"sandbox.internal/shim/pkg/internal/testx"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/process/processtest"
)

// stopped is a container in a bubble of time.
type stopped struct {
	*testing.T
	c *Task
	r *processtest.Runtime
}

// inBubble runs a container that ends by SIGKILL only, unless it hears.
func inBubble(t *testing.T, hears bool, test func(stopped)) {
	t.Helper()
	bundle := testx.NewBundle(t, annotated("stop-timeout", "20s"))
	synctest.Test(t, func(t *testing.T) {
		r := newRuntime()
		if !hears {
			r = newRuntime(unix.SIGTERM)
		}
		box := newManager(t, r)
		c, err := box.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle})
		testx.Must(t, err)
		testx.Must(t, c.Init().Start(t.Context()))
		test(stopped{T: t, c: c, r: r})
		remove(t, box, "c1")
	})
}

// stop is Stop with a grace period.
func (s stopped) stop(grace time.Duration) error {
	ctx, cancel := context.WithTimeout(s.Context(), grace)
	defer cancel()
	return s.c.Stop(ctx)
}

func (s stopped) wantHeard(want ...syscall.Signal) {
	s.Helper()
	if got := s.r.Signals(); !slices.Equal(got, want) {
		s.Errorf("init was sent %v, want %v", got, want)
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
		s.r.SetDeaf(func(sig syscall.Signal) bool {
			if sig == unix.SIGTERM {
				testx.Must(t, s.c.Pause(s.Context()))
			}
			return sig != unix.SIGKILL
		})
		thawed := 0
		s.r.Do("resume", func(process.Config) error { thawed++; s.wantHeard(unix.SIGTERM); return nil })
		s.took(time.Minute, func() error { return s.stop(time.Minute) })
		if thawed != 1 {
			s.Errorf("thawed %d times, want once", thawed)
		}
	})
}

// A mount that hangs, for instance. Nor does it keep the others from being asked at once.
func TestStopContainers_GivesUpOnACreateThatDoesNotEnd(t *testing.T) {
	bundle, other := testx.NewBundle(t, goodSpec()), testx.NewBundle(t, annotated("stop-timeout", "20s"))
	synctest.Test(t, func(t *testing.T) {
		hang, created := make(chan struct{}), make(chan struct{})
		engine := newRuntime()
		box := newManager(t, engine)
		runs, err := box.Create(t.Context(), CreateRequest{ID: "c2", Bundle: other})
		testx.Must(t, err)
		testx.Must(t, runs.Init().Start(t.Context()))
		engine.Do("create", func(process.Config) error { <-hang; return errors.New("at last") })
		go func() {
			defer close(created)
			_, err := box.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle})
			testx.WantText(t, err, "at last")
		}()
		synctest.Wait()
		start := time.Now()
		err = box.StopContainers()
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

func TestStopContainers(t *testing.T) {
	engine := newRuntime()
	box := newManager(t, engine)
	asked := create(t, box, "asked", annotated("stop-timeout", "0"))
	other := create(t, box, "other", goodSpec())
	entered, _ := engine.Hold("create")
	bundle := testx.NewBundle(t, goodSpec())
	created := make(chan error, 1)
	go func() {
		_, err := box.Create(t.Context(), CreateRequest{ID: "new", Bundle: bundle})
		created <- err
	}()
	<-entered
	testx.Must(t, box.StopContainers())
	testx.WantError(t, <-created, context.Canceled)
	if got := asked.Init().Status().State; got != process.Stopped {
		t.Errorf("the container with a timeout is %v, want stopped", got)
	}
	if got := other.Init().Status().State; got != process.Created {
		t.Errorf("the container without is %v, want created: it is for containerd", got)
	}
	_, err := box.Create(t.Context(), CreateRequest{ID: "late", Bundle: bundle})
	testx.WantError(t, err, errdefs.ErrUnavailable, "late")
}

// A checkpoint of a paused container keeps it from being thawed, and so from handling the stop signal.
func TestStop_KillsAtTheEndOfTheGraceUnderACheckpoint(t *testing.T) {
	inBubble(t, false, func(s stopped) {
		entered, open := s.r.Hold("checkpoint")
		testx.Must(s.T, s.c.Pause(s.Context()))
		checkpointed := make(chan error, 1)
		go func() { checkpointed <- s.c.Checkpoint(s.Context(), process.CheckpointRequest{}) }()
		<-entered
		time.AfterFunc(21*time.Second, func() {
			s.wantHeard(unix.SIGTERM, unix.SIGKILL)
			open()
		})
		s.took(21*time.Second, func() error { return s.stop(20 * time.Second) })
		testx.Must(s.T, <-checkpointed)
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
	member := testx.NewBundle(t, in("/proc/101/ns/pid", "stop-timeout", "5s"))
	synctest.Test(t, func(t *testing.T) {
		s := newManager(t, newRuntime(unix.SIGTERM))
		began := time.Now()
		var inits []*process.Process
		for id, bundle := range map[string]string{"pause": pause, "member": member} {
			c, err := s.Create(t.Context(), CreateRequest{ID: id, Bundle: bundle})
			testx.Must(t, err)
			testx.Must(t, c.Init().Start(t.Context()))
			inits = append(inits, c.Init())
		}
		testx.Must(t, s.StopContainers())
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
				thawed := !tc.paused
				if tc.paused {
					testx.Must(s.T, s.c.Pause(s.Context()))
					s.r.Do("resume", func(process.Config) error { thawed = true; s.wantHeard(unix.SIGTERM); return nil })
				}
				s.took(tc.took, func() error { return s.stop(tc.grace) })
				s.wantHeard(tc.heard...)
				if !thawed {
					s.Error("it was not thawed")
				}
				s.took(0, func() error { return s.stop(tc.grace) }) // it has ended
			})
		})
	}
}
