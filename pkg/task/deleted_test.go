// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/process"
)

// A shim that lives for long does not remember all that it ever had, and a new container hides one that was deleted.
func TestDelete_IsRememberedForTheLastContainers(t *testing.T) {
	s := newManager(t, &fakeEngine{})
	bundle := newBundle(t, goodSpec())
	create := func(id string) {
		t.Helper()
		_, err := s.Create(t.Context(), CreateRequest{ID: id, Bundle: bundle})
		must(t, err)
	}
	for i := range keptDeleted + 1 {
		create(fmt.Sprint("c", i))
		_, err := s.Delete(t.Context(), fmt.Sprint("c", i), "")
		must(t, err)
	}
	create("c2")
	for id, want := range map[string]process.State{"c1": process.Deleted, "c2": process.Created} {
		if status, err := s.Status(t.Context(), id, ""); err != nil || status.State != want {
			t.Errorf("status of %s = %v (%v), want %v", id, status.State, err, want)
		}
	}
	if status, err := s.Status(t.Context(), "c0", ""); !errdefs.IsNotFound(err) {
		t.Errorf("status of the first = %v (%v), want not found", status.State, err)
	}
}

func TestStatus_WaitsForACreateButNotForOneThatHangs(t *testing.T) {
	for name, hangs := range map[string]bool{"hangs": true, "ends": false} {
		t.Run(name, func(t *testing.T) {
			bundle := newBundle(t, goodSpec())
			synctest.Test(t, func(t *testing.T) {
				engine := &fakeEngine{entered: make(chan string, 1), gate: make(chan struct{})}
				s := newManager(t, engine)
				created := make(chan error, 1)
				go func() {
					_, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle})
					created <- err
				}()
				<-engine.entered
				answered := make(chan error, 1)
				go func() { _, err := s.Status(t.Context(), "c1", ""); answered <- err }()
				synctest.Wait()
				if hangs {
					if err := <-answered; !errdefs.IsNotFound(err) {
						t.Errorf("Status = %v, want not found", err)
					}
				}
				close(engine.gate)
				must(t, <-created)
				if !hangs {
					must(t, <-answered)
				}
				_, err := s.Delete(t.Context(), "c1", "")
				must(t, err)
			})
		})
	}
}
