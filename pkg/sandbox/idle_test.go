// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"sandbox.internal/shim/pkg/task"
)

// A pod that was never started is not taken for one that somebody stops, after the first time.
func TestShutdownIdle_IsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p, r := newController(t, newRuntime())
		must(t, s.Create(t.Context(), r))
		p.fail("close", errors.New("busy"))
		began := time.Now()
		s.ShutdownIdle()
		tries := func() int { return strings.Count(p.log(), "close") }
		for tried, after := range []time.Duration{0, 15 * time.Second, 45 * time.Second, 105 * time.Second} {
			time.Sleep(time.Until(began.Add(after)))
			synctest.Wait()
			if got := tries(); got != tried+1 {
				t.Errorf("tried %d times within %v, want %d", got, after, tried+1)
			}
		}
		time.Sleep(24 * time.Hour)
		if got := tries(); got < 90 || got > 110 {
			t.Errorf("tried %d times within a day, want about every 15 minutes", got)
		}
		if isClosed(s.tasks.Done()) {
			t.Error("the shim ends although it could not end the pod")
		}
		p.fail("close", nil)
		time.Sleep(lastRetry)
		synctest.Wait()
		if !isClosed(s.tasks.Done()) {
			t.Error("the shim does not end")
		}
		last := tries()
		time.Sleep(24 * time.Hour)
		if got := tries(); got != last {
			t.Errorf("tried %d times more after that", got-last)
		}
	})
}

// Neither one that lives nor one that cannot be deleted keeps others, and it is not forgotten.
func TestShutdownIdle_ComesBackForAnAbandonedContainerThatLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, _ := newController(t, newRuntime())
		kill := map[string]func(){}
		for _, id := range []string{"a", "b", "c"} {
			bundle := newBundle(t, goodSpec())
			c := runIn(t, s, id, bundle)
			kill[id] = func() { killed(t, c) }
			must(t, os.RemoveAll(bundle))
		}
		kill["b"]()
		kill["c"]()
		s.ShutdownIdle()
		for _, id := range []string{"b", "c"} {
			if _, err := s.tasks.Container(id); err == nil {
				t.Errorf("container %s, which is dead, was not deleted", id)
			}
		}
		time.Sleep(24 * time.Hour)
		if isClosed(s.tasks.Done()) {
			t.Error("the shim has ended, and a container lives")
		}
		kill["a"]()
		time.Sleep(lastRetry + time.Minute)
		synctest.Wait()
		if !isClosed(s.tasks.Done()) {
			t.Error("the shim does not end, although all containers are dead")
		}
	})
}

func TestShutdownIdle(t *testing.T) {
	for _, tc := range []struct {
		name, steps string
		ends        bool
	}{
		{"nothing", "", true},
		{"a container", "container", false},
		{"a pod that nobody started", "create", true},
		{"a pod that runs", "create start", false},
		{"a pod that was stopped", "create stop", false},
		{"a pod that runs, and whose bundle is gone", "create start lose-pod", true},
		{"a container in a pod whose bundle is gone", "create start container lose-pod", false},
		{"a container that has died and whose bundle is gone", "container die lose-container", true},
		{"a container that has died", "container die", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, _, r := newController(t, newRuntime())
			bundle := newBundle(t, goodSpec())
			var c *task.Container
			for step := range strings.FieldsSeq(tc.steps) {
				var err error
				switch step {
				case "create":
					err = s.Create(t.Context(), r)
				case "start":
					_, err = s.Start(t.Context(), "s")
				case "stop":
					err = s.Stop(t.Context(), "s", 0)
				case "container":
					c, err = s.tasks.Create(t.Context(), task.CreateRequest{ID: "c", Bundle: bundle})
				case "die":
					killed(t, c)
				case "lose-pod":
					err = os.RemoveAll(r.Bundle)
				case "lose-container":
					err = os.RemoveAll(bundle)
				}
				must(t, err)
			}
			s.ShutdownIdle()
			if got := isClosed(s.tasks.Done()); got != tc.ends {
				t.Errorf("the shim ends: %t, want %t", got, tc.ends)
			}
		})
	}
}

// killed kills a container and waits for its exit.
func killed(t *testing.T, c *task.Container) {
	t.Helper()
	must(t, c.KillAll(t.Context(), syscall.SIGKILL))
	_, err := c.Init().Wait(t.Context())
	must(t, err)
}
