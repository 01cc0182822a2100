// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A pod that was never started is not taken for one that somebody stops, after the first time.
func TestUnattendedIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p, r := newPodManager(t, &fakeEngine{})
		must(t, s.CreatePod(t.Context(), r))
		p.fail("close", errors.New("busy"))
		began := time.Now()
		s.Unattended()
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
		if isClosed(s.Done()) {
			t.Error("the shim ends although it could not end the pod")
		}
		p.fail("close", nil)
		time.Sleep(lastRetry)
		synctest.Wait()
		if !isClosed(s.Done()) {
			t.Error("the shim does not end")
		}
		last := tries()
		time.Sleep(24 * time.Hour)
		if got := tries(); got != last {
			t.Errorf("tried %d times more after that", got-last)
		}
	})
}

func TestUnattended(t *testing.T) {
	for _, tc := range []struct {
		name    string
		prepare func(t *testing.T, s *Manager, r PodRequest)
		ends    bool
	}{
		{"nothing", func(*testing.T, *Manager, PodRequest) {}, true},
		{"a container", func(t *testing.T, s *Manager, _ PodRequest) {
			t.Helper()
			_, err := s.Create(t.Context(), CreateRequest{ID: "c", Bundle: newBundle(t, goodSpec())})
			must(t, err)
		}, false},
		{"a pod that nobody started", func(t *testing.T, s *Manager, r PodRequest) {
			t.Helper()
			must(t, s.CreatePod(t.Context(), r))
		}, true},
		{"a pod that runs", func(t *testing.T, s *Manager, r PodRequest) {
			t.Helper()
			must(t, s.CreatePod(t.Context(), r))
			_, err := s.StartPod(t.Context(), "s")
			must(t, err)
		}, false},
		{"a pod that was stopped", func(t *testing.T, s *Manager, r PodRequest) {
			t.Helper()
			must(t, s.CreatePod(t.Context(), r))
			must(t, s.StopPod(t.Context(), "s", 0))
		}, false},
		{"a pod that runs, and whose bundle is gone", func(t *testing.T, s *Manager, r PodRequest) {
			t.Helper()
			must(t, s.CreatePod(t.Context(), r))
			_, err := s.StartPod(t.Context(), "s")
			must(t, err)
			must(t, os.RemoveAll(r.Bundle))
		}, true},
		{"a container in a pod whose bundle is gone", func(t *testing.T, s *Manager, r PodRequest) {
			t.Helper()
			must(t, s.CreatePod(t.Context(), r))
			_, err := s.StartPod(t.Context(), "s")
			must(t, err)
			_, err = s.Create(t.Context(), CreateRequest{ID: "m", Bundle: newBundle(t, goodSpec())})
			must(t, err)
			must(t, os.RemoveAll(r.Bundle))
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, _, r := newPodManager(t, &fakeEngine{})
			tc.prepare(t, s, r)
			s.Unattended()
			if got := isClosed(s.Done()); got != tc.ends {
				t.Errorf("the shim ends: %t, want %t", got, tc.ends)
			}
		})
	}
}
