// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/containerd/log"

	"sandbox.internal/shim/pkg/process"
)

// Removal is what containerd's delete command asks for: that of one container, or of
// a sandbox, by whoever is left when its shim is not there to do it.
type Removal struct {
	Namespace string
	ID        string
	Bundle    string // absolute
	// Container is engine.Remove.
	Container func(context.Context, process.Config) error
	// Pod is pod.Remove: what CreateSandbox made in a bundle.
	Pod func(bundle string) error
	// Serves tells whether a shim listens on a socket.
	Serves func(socket string) (bool, error)
}

// removalTime is what is left of the time of a delete when nobody is waited for
// any more: as much as engine.Remove has for the kill.
const removalTime = 1500 * time.Millisecond

// Run removes. As long as the shim lives it is only what was asked for that goes:
// containerd calls the delete command after each container of a pod. When the
// shim is dead nobody can tend the others any more, nor end them; so the first
// call, for whichever of them, ends and removes all, and the pod with them. It
// may be called again, and for all of them at once.
func (r Removal) Run(ctx context.Context) (int, process.Exit, error) {
	if err := CheckID("id", r.ID); err != nil {
		return 0, process.Exit{}, err
	}
	r.Bundle = physical(r.Bundle)
	home := homeOf(r.Bundle)
	list, err := readRoster(home)
	if errors.Is(err, os.ErrNotExist) {
		return Remove(ctx, r.Namespace, r.ID, r.Bundle, r.Container)
	}
	if _, unread := errors.AsType[*os.PathError](err); unread {
		// For want of descriptors, say. With the bundles containerd would remove what leads to the others, which then run on.
		return 0, process.Exit{}, fmt.Errorf("which containers the shim has: %w", err)
	}
	if err != nil {
		log.L.WithError(err).WithField("bundle", home).Warn("read the list of the pod's containers; removing one only")
		return Remove(ctx, r.Namespace, r.ID, r.Bundle, r.Container)
	}
	serves, err := r.Serves(list.Socket)
	if err != nil {
		return 0, process.Exit{}, fmt.Errorf("whether the shim lives: %w", err)
	}
	if !serves {
		return r.all(ctx, home)
	}
	if list.Pod && home == r.Bundle {
		// containerd removes the bundle next. The shim ends when it finds itself
		// without it; containers keep what they have mounted.
		return 0, process.Exit{Status: killed, At: time.Now()}, r.Pod(home)
	}
	return Remove(ctx, r.Namespace, r.ID, r.Bundle, r.Container)
}

// all removes all that the dead shim had. One call does it for the others: those
// come to their own container only, but that for home waits for the end, since
// with home containerd removes the list.
func (r Removal) all(ctx context.Context, home string) (int, process.Exit, error) {
	unlock, err := lockPod(ctx, home, home == r.Bundle)
	if errors.Is(err, errHeld) {
		return Remove(ctx, r.Namespace, r.ID, r.Bundle, r.Container)
	}
	if err != nil {
		return 0, process.Exit{}, err
	}
	defer unlock()
	list, err := readRoster(home) // another delete may have been faster
	if errors.Is(err, os.ErrNotExist) && home != r.Bundle {
		return Remove(ctx, r.Namespace, r.ID, r.Bundle, r.Container)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, process.Exit{}, err
	}
	var pid int
	var exit process.Exit
	if home == r.Bundle {
		var homeErr error
		othersErr := r.eachOf(ctx, home, &list, func() error {
			pid, exit, homeErr = removeLocked(ctx, defaultRoot(r.Namespace), r.ID, r.Bundle, r.Container)
			return nil
		})
		if list.Pod {
			homeErr = errors.Join(homeErr, r.Pod(home))
		}
		// containerd removes home next, and with it the list of what is left.
		return pid, exit, errors.Join(homeErr, othersErr)
	}
	removeHome := func() error { // left to its own call, but ends now
		_, _, err := removeLocked(ctx, defaultRoot(r.Namespace), list.ID, home, r.Container)
		if list.Pod {
			err = errors.Join(err, r.Pod(home))
		}
		return err
	}
	if list.ID == "" { // it may never have been made
		removeHome = nil
	}
	othersErr := r.eachOf(ctx, home, &list, removeHome)
	pid, exit, err = Remove(ctx, r.Namespace, r.ID, r.Bundle, r.Container)
	if othersErr != nil {
		log.L.WithError(othersErr).Warn("others of the pod are not removed yet")
	}
	return pid, exit, err
}

// eachOf removes the containers of list, and takes those off it that are gone, and
// calls removeHome for that of home. All of them have their time to end at once, but
// those in the PID namespace of another before that one. One that cannot die does not
// keep the others.
func (r Removal) eachOf(ctx context.Context, home string, list *roster, removeHome func() error) error {
	var mu sync.Mutex // guards errs and list.Members
	var errs []error
	var first, then []func()
	add := func(containerID, bundle string, remove func() error) {
		run := func() {
			err := remove()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("container %q of the same pod: %w", containerID, err))
			} else {
				delete(list.Members, containerID)
			}
		}
		if spec, err := ReadSpec(bundle); err == nil && joinsPIDs(spec) {
			first = append(first, run)
		} else {
			then = append(then, run)
		}
	}
	for id, m := range list.Members {
		add(id, m.Bundle, func() error { return r.member(ctx, home, id, m) })
	}
	if removeHome != nil {
		add(list.ID, home, removeHome)
	}
	ended := together(first)
	select {
	case <-ended:
	case <-late(ctx):
	}
	<-together(then)
	<-ended
	if err := list.write(home); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// together runs all at the same time; it is closed when they have ended.
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

// late comes when the time that is left is needed to kill and remove.
func late(ctx context.Context) <-chan time.Time {
	end, ok := ctx.Deadline()
	if !ok {
		return nil
	}
	return time.After(time.Until(end) - removalTime)
}

// member removes a container of the pod, unless its bundle is one of another pod
// by now: only its id was the same then.
func (r Removal) member(ctx context.Context, home, containerID string, m member) error {
	if _, err := os.Stat(m.Bundle); err == nil && homeOf(m.Bundle) != home {
		return nil
	}
	unlock, err := lock(ctx, m.Bundle)
	if err != nil {
		return err
	}
	defer unlock()
	_, _, err = removeLocked(ctx, m.Root, containerID, m.Bundle, r.Container)
	return err
}
