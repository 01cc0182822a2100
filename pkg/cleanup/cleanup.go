// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package cleanup removes what a shim that died left behind, from what is on disk alone. containerd's `delete` command
// calls it. The shim writes the files that it reads: the state of each container in its bundle ([State]), and the index
// of a pod's containers in one of them ([Index]).
//
// Goroutines: [Request.Run] runs one for each container of the pod, and joins them.
// Locks: the flock of the index bundle, before that of another bundle. Index has a mutex, and calls nobody with it.
//
// Promises: it may be called again, and by several processes at once. A container of a shim that lives is removed only
// if it is the one that was asked for.
package cleanup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/pkg/identifiers"
	"github.com/containerd/log"

	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/unixfile"
)

// Request is a call of the delete command, for a container or a sandbox.
type Request struct {
	Namespace string
	ID        string
	Bundle    string // absolute
	// Container ends and removes a container whose shim is dead: ociruntime.Remove.
	Container func(context.Context, process.Config) error
	// Pod removes what CreateSandbox made in a bundle: pod.Remove.
	Pod func(bundle string) error
	// Serves reports whether a shim listens on a socket, which is asked about a container: bootstrap.Serves.
	Serves func(ctx context.Context, socket, id string) (bool, error)
}

// removalReserve is the end of the delete command's time, in which nobody is waited for any more: as much as
// Request.Container keeps for the kill.
const removalReserve = 1500 * time.Millisecond

// Run removes, and returns the pid and exit of the container's init. While the shim lives, only the container that was
// asked for is removed: containerd calls `delete` after each container of a pod. When the shim is dead, nobody can look
// after the others or end them, so the first call, for whichever container, removes all of them and the pod.
func (r Request) Run(ctx context.Context) (int, process.Exit, error) {
	if err := identifiers.Validate(r.ID); err != nil {
		return 0, process.Exit{}, fmt.Errorf("id %q: %w", r.ID, err)
	}
	r.Bundle = resolveBundle(r.Bundle)
	at := indexBundle(r.Bundle)
	index, err := readIndex(at)
	if errors.Is(err, os.ErrNotExist) {
		return r.container(ctx)
	}
	if _, unread := errors.AsType[*os.PathError](err); unread {
		// For want of descriptors, say. containerd would remove the bundles, and with them the way to the others,
		// which would go on.
		return 0, process.Exit{}, fmt.Errorf("which containers the shim has: %w", err)
	}
	if err != nil {
		log.L.WithError(err).WithField("bundle", at).Warn("read the list of the pod's containers; removing one only")
		return r.container(ctx)
	}
	serves, err := r.Serves(ctx, index.Socket, r.ID)
	if err != nil {
		return 0, process.Exit{}, fmt.Errorf("whether the shim lives: %w", err)
	}
	if !serves {
		return r.all(ctx, at)
	}
	if index.Pod && at == r.Bundle {
		// containerd removes the bundle next. The shim ends when it finds that the bundle is gone; containers keep
		// what they have mounted.
		return 0, process.Exit{Status: killed, At: time.Now()}, r.Pod(at)
	}
	return r.container(ctx)
}

// all removes all that the dead shim had. The first call does so; others remove only their container. The call for the
// index bundle waits for the first: containerd removes the bundle, and the index with it, when it succeeds.
func (r Request) all(ctx context.Context, at string) (pid int, exit process.Exit, err error) {
	var unlock func()
	if at == r.Bundle {
		unlock, err = lockBundle(ctx, at)
	} else if unlock, err = unixfile.TryLock(at); errors.Is(err, unixfile.ErrLocked) || errors.Is(err, os.ErrNotExist) {
		return r.container(ctx)
	}
	if err != nil {
		return 0, process.Exit{}, err
	}
	defer unlock()
	index, err := readIndex(at) // another delete may have been faster
	if errors.Is(err, os.ErrNotExist) && at != r.Bundle {
		return r.container(ctx)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, process.Exit{}, err
	}
	owner := r.ID
	if at != r.Bundle {
		owner = index.ID // it ends now; its own call removes its bundle
	}
	var ownerErr error
	othersErr := r.members(ctx, at, &index, func() {
		if owner != "" { // else it was never made
			pid, exit, ownerErr = r.containerLocked(ctx, DefaultRoot(r.Namespace), owner, at)
		}
	})
	if index.Pod {
		ownerErr = errors.Join(ownerErr, r.Pod(at))
	}
	err = errors.Join(ownerErr, othersErr)
	if at == r.Bundle {
		return pid, exit, err // containerd removes the index bundle next, and with it the list of what is left
	}
	if err != nil {
		log.L.WithError(err).Warn("others of the pod are not removed yet")
	}
	return r.container(ctx)
}

// members removes the members of index, and by removeOwner the container of the index bundle. Those that are gone are
// taken off the index. All have their time to end at once, but those in the PID namespace of another before that one.
// One that cannot die does not hold up the others.
func (r Request) members(ctx context.Context, at string, index *podIndex, removeOwner func()) error {
	var mu sync.Mutex // guards errs and index.Members
	var errs []error
	var first, then []func()
	add := func(bundle string, remove func()) {
		if JoinsPIDs(readSpec(bundle)) {
			first = append(first, remove)
		} else {
			then = append(then, remove)
		}
	}
	for id, e := range index.Members {
		add(e.Bundle, func() {
			err := r.member(ctx, at, id, e)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("container %q of the same pod: %w", id, err))
			} else {
				delete(index.Members, id)
			}
		})
	}
	add(at, removeOwner)
	ended := together(first)
	var reserve <-chan time.Time // when it begins
	if end, ok := ctx.Deadline(); ok {
		reserve = time.After(time.Until(end) - removalReserve)
	}
	select {
	case <-ended:
	case <-reserve:
	}
	<-together(then)
	<-ended
	if err := index.write(at); err != nil && !errors.Is(err, os.ErrNotExist) {
		log.L.WithError(err).WithField("bundle", at).Warn("list what is left of the pod; all is removed again")
	}
	return errors.Join(errs...)
}

// together runs all at the same time. The channel is closed when they have ended.
func together(all []func()) <-chan struct{} {
	ended := make(chan struct{})
	go func() { // ends with them
		defer close(ended)
		var group sync.WaitGroup
		for _, f := range all {
			group.Go(f)
		}
		group.Wait()
	}()
	return ended
}

// member removes a container of the pod, unless its bundle belongs to another pod by now: a new container has its id.
func (r Request) member(ctx context.Context, at, id string, e podEntry) error {
	if _, err := os.Stat(e.Bundle); err == nil && indexBundle(e.Bundle) != at {
		return nil
	}
	unlock, err := lockBundle(ctx, e.Bundle)
	if err != nil {
		return err
	}
	defer unlock()
	_, _, err = r.containerLocked(ctx, e.Root, id, e.Bundle)
	return err
}
