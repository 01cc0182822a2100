// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package removal removes what package leftover finds, and nothing else.
//
// What a bundle or a state directory names is ended and removed by the shim's own delete command, as containerd does.
// This package does what containerd does around it: it keeps others from the id meanwhile, and removes the bundle.
//
// Promises: right before each removal it looks again, and what is no longer a leftover, or is kept, stays. No path is
// followed through a symbolic link or a mount. A process is signalled only through a pidfd, after it was recognized.
// What cannot be removed stays, with an error that says why. It has no goroutines and no locks of its own, and takes
// the flock of bundles and of the directory of sockets, as shims do.
package removal

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"sandbox.internal/shim/cmd/sandboxctl/leftover"
)

// Remover removes leftovers.
type Remover struct {
	State   string // state directory of containerd, without symbolic links
	Address string // socket of containerd, as shims are told
	// Look returns what is a leftover now, or an error if nothing may be removed.
	Look func(ctx context.Context) ([]leftover.Leftover, error)
	// Binary checks that nobody except root can have written a shim, and returns its path. For "" it is the one that
	// containerd would start.
	Binary func(path string) (string, error)
}

// errKept means that only a person should remove something.
var errKept = errors.New("it is left")

// ErrGone means that something was no longer a leftover when it was looked at again: nothing was done.
var ErrGone = errors.New("it is no leftover any more")

// order is the order of removal. Shims come after containers, which they may have; mounts after processes that use
// them.
var order = []leftover.Kind{leftover.Bundles, leftover.States, leftover.Shims, leftover.Mounts, leftover.Sockets}

// Sort brings leftovers into the order in which they are removed: of bundles first those that containerd has begun to
// remove, which have the names that others need.
func Sort(list []leftover.Leftover) {
	slices.SortStableFunc(list, func(a, b leftover.Leftover) int {
		hidden := func(l leftover.Leftover) int {
			if l.Target.Hidden {
				return 0
			}
			return 1
		}
		kinds := cmp.Compare(slices.Index(order, a.Kind), slices.Index(order, b.Kind))
		return cmp.Or(kinds, cmp.Compare(hidden(a), hidden(b)))
	})
}

// Remove removes one leftover. The error is ErrGone if it is no longer one. Any other says why it, or a part of it, is
// left.
func (r Remover) Remove(ctx context.Context, l leftover.Leftover) error {
	now, err := r.again(ctx, l)
	if err != nil {
		return err
	}
	if now == nil {
		return ErrGone
	}
	switch now.Kind {
	case leftover.Bundles:
		return r.bundle(ctx, *now)
	case leftover.States:
		return r.stateDirectory(ctx, *now)
	case leftover.Shims:
		return r.shim(ctx, *now)
	case leftover.Mounts:
		return r.mounts(*now)
	case leftover.Sockets:
		return r.socket(ctx, *now)
	}
	return fmt.Errorf("%w: there is no removal of %s", errKept, now.Kind)
}

// again looks for a leftover once more, and returns nil if it is no longer one.
func (r Remover) again(ctx context.Context, l leftover.Leftover) (*leftover.Leftover, error) {
	list, err := r.Look(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list, func(now leftover.Leftover) bool {
		return now.Kind == l.Kind && now.Path == l.Path && now.Pid == l.Pid && now.Target.Name == l.Target.Name &&
			now.Target.Started == l.Target.Started
	})
	if i < 0 {
		return nil, nil //nolint:nilnil // it is gone
	}
	if list[i].Keep != "" {
		return nil, fmt.Errorf("%w: %s", errKept, list[i].Keep)
	}
	return &list[i], nil
}

// deleteTimeout is more than the shim's delete command takes.
const deleteTimeout = 10 * time.Second

// runDelete runs the shim's delete command, which ends and removes the container of a bundle, or all of a pod.
func (r Remover) runDelete(ctx context.Context, n leftover.Name, binary, bundle string) error {
	exe, err := r.Binary(binary)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, deleteTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe,
		"-namespace", n.Namespace, "-address", r.Address, "-id", n.ID, "-bundle", bundle, "delete")
	cmd.Dir = "/"
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil { // its answer is for containerd
		return fmt.Errorf("%s … -id %s delete: %w: %s", exe, n.ID, err, strings.TrimSpace(stderr.String()))
	}
	return nil
}
