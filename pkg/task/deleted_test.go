// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/process"
)

// A shim that lives for long does not remember all that it ever had, and forgets a container when its id is used again,
// even if that fails.
func TestDelete_IsRememberedForTheLastContainers(t *testing.T) {
	engine := &fakeEngine{}
	s := newManager(t, engine)
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
	engine.create = func(process.Config) error { return errors.New("no container") }
	if _, err := s.Create(t.Context(), CreateRequest{ID: "c3", Bundle: bundle}); err == nil {
		t.Error("Create = nil, want an error")
	}
	for _, id := range []string{"c0", "c3"} {
		if status, err := s.Status(t.Context(), id, ""); !errdefs.IsNotFound(err) {
			t.Errorf("status of %s = %v (%v), want not found", id, status.State, err)
		}
		if status, err := s.Delete(t.Context(), id, ""); !errdefs.IsNotFound(err) {
			t.Errorf("Delete of %s = %v (%v), want not found", id, status.State, err)
		}
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
