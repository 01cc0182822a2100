// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"errors"
	"fmt"
	"testing"

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
		if status, err := s.Status(id, ""); err != nil || status.State != want {
			t.Errorf("status of %s = %v (%v), want %v", id, status.State, err, want)
		}
	}
	engine.create = func(process.Config) error { return errors.New("no container") }
	if _, err := s.Create(t.Context(), CreateRequest{ID: "c3", Bundle: bundle}); err == nil {
		t.Error("Create = nil, want an error")
	}
	for _, id := range []string{"c0", "c3"} {
		if status, err := s.Status(id, ""); !errdefs.IsNotFound(err) {
			t.Errorf("status of %s = %v (%v), want not found", id, status.State, err)
		}
		if status, err := s.Delete(t.Context(), id, ""); !errdefs.IsNotFound(err) {
			t.Errorf("Delete of %s = %v (%v), want not found", id, status.State, err)
		}
	}
}
