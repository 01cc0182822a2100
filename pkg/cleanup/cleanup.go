// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package cleanup removes what a shim that died left behind, using only what is on disk. containerd's `delete` command
// calls it. The shim writes the files that it reads: the state of each container in its bundle ([State]), and the index
// of a pod's containers in one of them ([Index]).
//
// Goroutines: [Request.Run] runs one for each container of the pod, and joins them.
// Locks: the flock of the index bundle, before that of another bundle. Index has a mutex, and calls nobody with it.
//
// Promises: it may be called again, and by several processes at the same time. A container of a running shim is removed
// only if it is the one that was asked for. The delete command makes no file in a bundle.
package cleanup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/identifiers"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/extension"
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
	// Extensions are those of the program.
	Extensions extension.List
}

// removalReserve is the last part of the delete command's time, in which nothing is waited for any more: as much as
// Request.Container keeps for the kill.
const removalReserve = 1500 * time.Millisecond

// Run removes the container, and returns the pid and exit of its init. While the shim is running, only the container
// that was asked for is removed: containerd calls `delete` after each container of a pod. When the shim is dead, nobody
// can look after the others or end them, so the first call, for whichever container, removes all of them and the pod.
func (r Request) Run(ctx context.Context) (int, process.Exit, error) {
	if err := identifiers.Validate(r.ID); err != nil {
		return 0, process.Exit{}, fmt.Errorf("id %q: %w", r.ID, err)
	}
	r.Bundle = resolveBundle(r.Bundle)
	at, err := indexBundle(r.Bundle)
	if err != nil {
		return 0, process.Exit{}, err
	}
	index, err := readIndex(at)
	if errors.Is(err, os.ErrNotExist) {
		return r.container(ctx)
	}
	if isReadError(err) {
		return 0, process.Exit{}, fmt.Errorf("read the list of the pod's containers in %s: %w", at, err)
	}
	if err != nil {
		log.L.WithError(err).WithField("bundle", at).Warn("read the list of the pod's containers; removing one only")
		return r.container(ctx)
	}
	serves, err := r.Serves(ctx, index.Socket, r.ID)
	if err != nil {
		return 0, process.Exit{}, fmt.Errorf("check whether the shim at socket %s is alive: %w", index.Socket, err)
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

// isReadError reports whether err is a failure to read a file, for example for lack of descriptors, and not a malformed
// file. The delete command must fail then: if it succeeded, containerd would remove the bundles, and with them the
// only record of what still runs.
func isReadError(err error) bool {
	_, ok := errors.AsType[*os.PathError](err)
	return ok && !errors.Is(err, os.ErrNotExist)
}

// all removes all that the dead shim had. The first call does so; others remove only their container. The call for the
// index bundle waits for the first: containerd removes the bundle, and the index with it, when that call succeeds.
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
	othersErr := r.members(ctx, at, index.Members, func() {
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

// members removes the members of the pod whose index is in the bundle at and, by removeOwner, the container of that
// bundle. All have their time to end concurrently, except that those in the PID namespace of another container come
// before that one. One that cannot die does not delay the others.
func (r Request) members(ctx context.Context, at string, members map[string]podEntry, removeOwner func()) error {
	var mu sync.Mutex // guards errs
	var errs []error
	var early, late sync.WaitGroup
	begin := make(chan struct{}) // closed when the late ones may begin
	run := func(bundle string, remove func()) {
		if spec, _ := readSpec(bundle); JoinsPIDs(spec) { // the removal reports the error
			early.Go(remove)
		} else {
			late.Go(func() { <-begin; remove() })
		}
	}
	for id, e := range members {
		run(e.Bundle, func() {
			if err := r.member(ctx, at, id, e); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("container %q of the same pod: %w", id, err))
			}
		})
	}
	run(at, removeOwner)
	ended := make(chan struct{})
	go func() { early.Wait(); close(ended) }()
	var reserve <-chan time.Time // when it begins
	if end, ok := ctx.Deadline(); ok {
		reserve = time.After(time.Until(end) - removalReserve)
	}
	select {
	case <-ended:
	case <-reserve:
	}
	close(begin)
	late.Wait()
	<-ended
	return errors.Join(errs...)
}

// member removes a container of the pod, unless its bundle belongs to another pod by now: a new container has its id.
// The link of one that is removed goes, so that the next call skips it. The index cannot say so: a file that is made in
// a bundle while containerd removes it would keep it.
func (r Request) member(ctx context.Context, at, id string, e podEntry) error {
	unlock, err := lockBundle(ctx, e.Bundle)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(e.Bundle); err == nil {
		if other, err := indexBundle(e.Bundle); err != nil || other != at {
			return err
		}
	}
	if _, _, err = r.containerLocked(ctx, e.Root, id, e.Bundle); err != nil {
		return err
	}
	_ = unixfile.Remove(filepath.Join(e.Bundle, indexLink)) // if it stays, the next call finds nothing to remove
	return nil
}

// killed is the exit status of an init whose exit nobody saw: it was alive when its shim died, and is killed here.
// 128 + SIGKILL, as the runc shim answers.
const killed = 128 + int(unix.SIGKILL)

// container removes only the container of the request. Concurrent calls take turns.
func (r Request) container(ctx context.Context) (int, process.Exit, error) {
	unlock, err := lockBundle(ctx, r.Bundle)
	if err != nil {
		return 0, process.Exit{}, err
	}
	defer unlock()
	return r.containerLocked(ctx, DefaultRoot(r.Namespace), r.ID, r.Bundle)
}

// lockBundle locks a bundle until unlock, or waits until ctx ends. One that is gone needs no lock.
func lockBundle(ctx context.Context, bundle string) (unlock func(), err error) {
	unlock, err = unixfile.Lock(ctx, bundle)
	if errors.Is(err, os.ErrNotExist) {
		return func() {}, nil
	}
	return unlock, err
}

// containerLocked ends and removes a container, and returns init's pid and exit. The caller has the bundle's lock. root
// applies if no state names another.
func (r Request) containerLocked(ctx context.Context, root, id, bundle string) (int, process.Exit, error) {
	s, err := ReadState(bundle)
	if isReadError(err) {
		return 0, process.Exit{}, fmt.Errorf("state of container %q: %w", id, err)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.L.WithError(err).WithField("container", id).Warn("read the container's state; using defaults")
	}
	if s.Root == "" {
		s.Root = root
	}
	config := process.Config{
		ID: id, Bundle: bundle, Stop: s.Stop, Options: process.Options{Root: s.Root, SystemdCgroup: s.SystemdCgroup},
	}
	if config.Spec, err = readSpec(bundle); err != nil {
		return 0, process.Exit{}, err
	}
	if config.Spec != nil {
		if config.Rootfs = config.Spec.Root.Path; !filepath.IsAbs(config.Rootfs) {
			config.Rootfs = filepath.Join(bundle, config.Rootfs)
		}
	}
	err = r.Container(ctx, config)
	left := extension.Left{ID: id, Bundle: bundle, Pid: s.Pid}
	err = errors.Join(err, r.Extensions.CleanUp(ctx, left, s.Extensions), UnmountRootfs(bundle))
	exit := process.Exit{Status: killed, At: time.Now()}
	if s.Exit != nil {
		exit = *s.Exit
	}
	return s.Pid, exit, err
}

// UnmountRootfs unmounts all that is mounted at a bundle's rootfs or below it. A process that still uses a file there
// does not prevent that: the mount disappears when the last of them does, and immediately if there is none.
func UnmountRootfs(bundle string) error {
	const flags = unix.UMOUNT_NOFOLLOW | unix.MNT_DETACH
	target := filepath.Join(bundle, "rootfs")
	// The first attempts ask no file system there: the daemon of a FUSE file system may be dead.
	err := unix.Unmount(target, flags)
	for err == nil {
		err = unix.Unmount(target, flags)
	}
	if errors.Is(err, unix.EINVAL) { // nothing is mounted there any more
		err = mount.UnmountRecursive(target, flags)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("unmount %q: %w", target, err)
	}
	return nil
}

// readSpec reads the configuration of a container. It returns nil if there is none from which a container was made.
func readSpec(bundle string) (*specs.Spec, error) {
	var s specs.Spec
	err := unixfile.ReadJSON(filepath.Join(bundle, "config.json"), &s)
	if isReadError(err) {
		return nil, err
	}
	if err != nil || s.Root == nil || s.Process == nil || s.Linux == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	return &s, nil
}

// JoinsPIDs reports whether a container is in the PID namespace of another, whose end kills it (pid_namespaces(7)).
func JoinsPIDs(spec *specs.Spec) bool {
	return spec != nil && spec.Linux != nil &&
		slices.ContainsFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
			return n.Type == specs.PIDNamespace && n.Path != ""
		})
}
