// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package cleanup removes what a dead shim left, for containerd's `delete` command, by what is on disk. The shim
// writes the states with an [Index], which has a mutex. [Request.Run] joins one goroutine for each container of the
// pod, and takes the flock of its own bundle before that of another.
//
// Promises: it may be called again, and by several processes at the same time. Of a running shim it removes only the
// container that was asked for. The delete command makes no file in a bundle.
package cleanup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	Namespace, ID string
	Bundle        string                                                     // absolute
	Container     func(context.Context, process.Config) error                // ociruntime.Remove
	Pod           func(bundle string) error                                  // pod.Remove
	Serves        func(ctx context.Context, socket, id string) (bool, error) // bootstrap.Serves
	Extensions    extension.List
}

// killed is the exit status of an init whose exit nobody saw: 128 + SIGKILL, as the runc shim answers.
const killed = 128 + int(unix.SIGKILL)

// Run removes the container, and returns the pid and exit of its init. If the shim was started for it and is dead, all
// else of the shim is removed too: containerd up to 2.3 calls `delete` for no other container. containerd also calls
// `delete` after the container of a running shim.
func (r Request) Run(ctx context.Context) (pid int, exit process.Exit, err error) {
	if err := identifiers.Validate(r.ID); err != nil {
		return 0, process.Exit{}, fmt.Errorf("id %q: %w", r.ID, err)
	}
	unlock, err := lockBundle(ctx, r.Bundle)
	if err != nil {
		return 0, process.Exit{}, err
	}
	defer unlock()
	s, err := readState(r.ID, r.Bundle)
	if err != nil {
		return 0, process.Exit{}, err
	}
	if !s.Pod && len(s.Members) == 0 {
		return r.containerLocked(ctx, r.ID, r.Bundle, s)
	}
	serves, err := r.Serves(ctx, s.Socket, r.ID)
	switch {
	case err != nil:
		return 0, process.Exit{}, fmt.Errorf("check whether the shim at socket %s is alive: %w", s.Socket, err)
	case serves && s.Pod:
		// The shim ends when it finds that the bundle is gone.
		return 0, process.Exit{Status: killed, At: time.Now()}, r.Pod(r.Bundle)
	case serves:
		return r.containerLocked(ctx, r.ID, r.Bundle, s)
	}
	var mu sync.Mutex // guards errs
	var errs []error
	var others sync.WaitGroup
	for id, m := range s.Members {
		others.Go(func() {
			if err := r.member(ctx, id, m, s.Socket); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("container %q of the same pod: %w", id, err))
			}
		})
	}
	pid, exit, err = r.containerLocked(ctx, r.ID, r.Bundle, s)
	others.Wait()
	if s.Pod {
		err = errors.Join(err, r.Pod(r.Bundle))
	}
	return pid, exit, errors.Join(err, errors.Join(errs...))
}

func (r Request) member(ctx context.Context, id string, m Member, socket string) error {
	unlock, err := lockBundle(ctx, m.Bundle)
	if err != nil {
		return err
	}
	defer unlock()
	s, err := readState(id, m.Bundle)
	if err != nil || s.Socket != "" && s.Socket != socket {
		return err
	}
	if s.Root == "" {
		s.Root = m.Root
	}
	_, _, err = r.containerLocked(ctx, id, m.Bundle, s)
	return err
}

// lockBundle locks a bundle until unlock, or waits until ctx ends. A bundle that is gone needs no lock.
func lockBundle(ctx context.Context, bundle string) (unlock func(), err error) {
	unlock, err = unixfile.Lock(ctx, bundle)
	if errors.Is(err, os.ErrNotExist) {
		return func() {}, nil
	}
	return unlock, err
}

// readState fails if the file cannot be read, for example for lack of descriptors: after a delete without error,
// containerd removes the only record of what still runs. A malformed file counts as none.
func readState(id, bundle string) (State, error) {
	s, err := ReadState(bundle)
	if isReadError(err) {
		return State{}, fmt.Errorf("state of container %q: %w", id, err)
	}
	if err != nil {
		log.L.WithError(err).WithField("container", id).Warn("read the container's state; using defaults")
	}
	return s, nil
}

func isReadError(err error) bool {
	_, ok := errors.AsType[*os.PathError](err)
	return ok && !errors.Is(err, os.ErrNotExist)
}

// containerLocked ends and removes a container, whose bundle is locked, and returns init's pid and exit.
func (r Request) containerLocked(ctx context.Context, id, bundle string, s State) (int, process.Exit, error) {
	if s.Root == "" {
		s.Root = DefaultRoot(r.Namespace)
	}
	config := process.Config{
		ID: id, Bundle: bundle, Stop: s.Stop, Options: process.Options{Root: s.Root, SystemdCgroup: s.SystemdCgroup},
	}
	var err error
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

// UnmountRootfs unmounts all that is mounted at a bundle's rootfs or below it, even in use.
func UnmountRootfs(bundle string) error {
	const flags = unix.UMOUNT_NOFOLLOW | unix.MNT_DETACH
	target := filepath.Join(bundle, "rootfs")
	// Unmounting asks no file system there: the daemon of a FUSE file system may be dead.
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

// readSpec reads a configuration from which a container can have been made, or returns nil.
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
