// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

func TestUndo_TriesAgainWhatMayPass(t *testing.T) {
	occupied := fmt.Errorf("occupied: %w", errdefs.ErrFailedPrecondition)
	for _, tc := range []struct {
		name  string
		errs  []error // of the first calls; the last one is that of all others
		calls int
		want  error
	}{
		{name: "that succeeds", errs: []error{nil}, calls: 1},
		{name: "that lacks descriptors twice", errs: []error{unix.EMFILE, unix.ENFILE, nil}, calls: 3},
		{name: "that never succeeds", errs: []error{unix.EIO}, calls: 5, want: unix.EIO},
		{name: "that has waited", errs: []error{occupied}, calls: 1, want: occupied},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, calls := time.Now(), 0
				err := Undo(func() error {
					calls++
					return tc.errs[min(calls, len(tc.errs))-1]
				})
				if !errors.Is(err, tc.want) || calls != tc.calls {
					t.Errorf("Undo = %v after %d calls, want %v after %d", err, calls, tc.want, tc.calls)
				}
				if took := time.Since(began); took > 100*time.Millisecond {
					t.Errorf("Undo took %v", took)
				}
			})
		})
	}
}
