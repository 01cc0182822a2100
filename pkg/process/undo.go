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

// The waits between the attempts of Undo, each four times as long as the one before.
const (
	firstUndo = time.Millisecond
	lastUndo  = 64 * time.Millisecond
)

// ErrLeft means that a failed creation could not be undone. The first of [Config.Hooks] then stays.
var ErrLeft = errors.New("something of the container is left")

// Undo calls undo until it succeeds, at most five times within a tenth of a second. A lack of descriptors, for example,
// makes an operation and its undo fail, but often passes; nobody else would undo it. An undo that has waited in vain,
// for example for a cgroup to become empty, is not retried. undo may be called again after it has failed midway.
func Undo(undo func() error) error {
	for wait := firstUndo; ; wait *= 4 {
		err := undo()
		if err == nil || wait > lastUndo || errors.Is(err, context.DeadlineExceeded) || errdefs.IsFailedPrecondition(err) {
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
