// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/task"
)

// annotated is a configuration with one annotation.
func annotated(key, value string) *specs.Spec {
	spec := goodSpec()
	spec.Annotations = map[string]string{"io.containerd.sandbox.v1/" + key: value}
	return spec
}

func TestStop_SendsTheStopSignalsOfContainers(t *testing.T) {
	bundle := newBundle(t, annotated("stop-signal", "QUIT"))
	synctest.Test(t, func(t *testing.T) {
		engine := newRuntime()
		s, _ := runPod(t, engine)
		runIn(t, s, "m", bundle)
		must(t, s.Stop(t.Context(), "s", time.Minute))
		if got := fmt.Sprint(engine.Signals()); got != "[quit]" {
			t.Errorf("init was sent %s, want [quit]", got)
		}
	})
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
			bundle := newBundle(t, annotated("stop-timeout", grace.String()))
			synctest.Test(t, func(t *testing.T) {
				engine := newRuntime(unix.SIGTERM)
				s, _ := runPod(t, engine)
				runIn(t, s, "m", bundle)
				first := func() error { return s.tasks.StopContainers(t.Context()) }
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
	bundle := newBundle(t, goodSpec())
	for range 100 {
		s, _ := runPod(t, newRuntime())
		var both sync.WaitGroup
		var c *task.Container
		var err error
		both.Go(func() { c, err = s.tasks.Create(t.Context(), task.CreateRequest{ID: "m", Bundle: bundle}) })
		both.Go(func() { must(t, s.Stop(t.Context(), "s", 0)) })
		both.Wait()
		switch {
		case err == nil && c.Init().Status().State != process.Stopped:
			t.Fatalf("the container is %v in a pod that is stopped", c.Init().Status().State)
		case err != nil && !errdefs.IsFailedPrecondition(err) && !errors.Is(err, context.Canceled):
			t.Fatalf("Create = %v, want that the pod is stopping, or that it was cancelled", err)
		}
		must(t, s.Shutdown(t.Context(), "s"))
	}
}

// If something may be left of the pod, the delete command looks for it, and needs the files that say what.
func TestShutdown_LeavesToDeleteWhatCloseDoesNot(t *testing.T) {
	for want, failure := range map[string]error{
		"rootfs shim.deleted":            nil,
		"rootfs shim.json shim.pod.json": errors.New("busy"),
	} {
		s, p, r := newController(t, newRuntime())
		answer := ""
		s.tasks.KeepIndex(r.Bundle, "/the/socket", func(pid int, exit process.Exit) ([]byte, error) {
			answer = fmt.Sprintf("pid %d, status %d", pid, exit.Status)
			return []byte(answer), nil
		})
		must(t, s.Create(t.Context(), r))
		started, err := s.Start(t.Context(), "s")
		must(t, err)
		must(t, s.Stop(t.Context(), "s", 0))
		p.fail("close", failure)
		must(t, s.Shutdown(t.Context(), "s"))
		if !isClosed(s.tasks.Done()) {
			t.Errorf("with the error %v of Close, the shim does not end", failure)
		}
		if got := files(t, r.Bundle); got != want {
			t.Errorf("with the error %v of Close, files = %q, want %q", failure, got, want)
		}
		if want := fmt.Sprintf("pid %d, status 0", started.Pid); failure == nil && answer != want {
			t.Errorf("answer = %q, want %q", answer, want)
		}
	}
}
