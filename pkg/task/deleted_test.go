// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"fmt"
	"testing"

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
		if status, err := s.Status(id, ""); err != nil || status.State != want {
			t.Errorf("status of %s = %v (%v), want %v", id, status.State, err, want)
		}
	}
	if status, err := s.Status("c0", ""); !errdefs.IsNotFound(err) {
		t.Errorf("status of the first = %v (%v), want not found", status.State, err)
	}
}
