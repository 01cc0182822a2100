// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
)

// ErrLeft means that a failed creation could not be undone. [Config.Record] then stays.
var ErrLeft = errors.New("something of the container is left")

// Undo calls undo until it succeeds, at most five times within a tenth of a second: a lack of descriptors, for example,
// often passes, and nobody else would undo it. An undo that has waited in vain is not tried again.
func Undo(undo func() error) error {
	const first, last = time.Millisecond, 64 * time.Millisecond
	for wait := first; ; wait *= 4 {
		err := undo()
		if err == nil || wait > last || errors.Is(err, context.DeadlineExceeded) || errdefs.IsFailedPrecondition(err) {
			return err
		}
		log.L.WithError(err).Warn("undo: tried again")
		<-time.After(wait)
	}
}

// UndoCreate is Undo for a Create that has failed. Its error is ErrLeft.
func UndoCreate(undo func() error) error {
	if err := Undo(undo); err != nil {
		return fmt.Errorf("%w: %w", ErrLeft, err)
	}
	return nil
}
