// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/hostrootfs"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
)

// killed is the exit status of an init that nobody saw exit: it was alive when
// its shim died, and is killed here. 128 + SIGKILL, as the runc shim answers.
const killed = 128 + int(unix.SIGKILL)

// Remove ends and removes a container whose shim is dead, with nothing but what
// is on disk, and answers init's pid and exit. removeContainer is engine.Remove. It may
// be called again, and by several processes at once: they take turns.
func Remove(ctx context.Context, namespace, containerID, bundle string, removeContainer func(context.Context, process.Config) error) (int, process.Exit, error) {
	if err := CheckID("id", containerID); err != nil {
		return 0, process.Exit{}, err
	}
	unlock, err := lock(ctx, bundle)
	if err != nil {
		return 0, process.Exit{}, err
	}
	defer unlock()
	return removeLocked(ctx, defaultRoot(namespace), containerID, bundle, removeContainer)
}

// defaultRoot is where state directories are if nothing says otherwise.
func defaultRoot(namespace string) string { return filepath.Join(options.DefaultRoot, namespace) }

// removeLocked is Remove for a caller that has the bundle's lock. root is used
// if there is no record to name another.
func removeLocked(ctx context.Context, root, containerID, bundle string, removeContainer func(context.Context, process.Config) error) (int, process.Exit, error) {
	rec, err := readRecord(bundle)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.L.WithError(err).WithField("container", containerID).Warn("read record; removing what the defaults name")
	}
	if rec.Root == "" {
		rec.Root = root
	}
	config := process.Config{
		ID: containerID, Bundle: bundle,
		Options: process.Options{Root: rec.Root, SystemdCgroup: rec.SystemdCgroup},
		Stop:    rec.Stop,
	}
	if spec, err := ReadSpec(bundle); err == nil && checkSpec(spec) == nil {
		config.Spec, config.Rootfs = spec, rootfsPath(bundle, spec)
	}
	err = removeContainer(ctx, config)
	removeSockets(ctx, containerID, bundle) // before the root file system goes, on which they may be
	err = errors.Join(err, unmountRootfs(bundle), hostrootfs.Remove(bundle), removePidFile(rec.PidFile, rec.Pid))
	if rec.Pid == 0 {
		err = errors.Join(err, removeForsaken(rec.PidFile))
	}
	exit := process.Exit{Status: killed, At: time.Now()}
	if rec.Exit != nil {
		exit = *rec.Exit
	}
	return rec.Pid, exit, err
}

// errHeld says that another delete has a lock.
var errHeld = errors.New("another delete holds it")

// lock takes the bundle for this process until unlock, or waits until ctx ends.
// A bundle that is gone needs no lock.
func lock(ctx context.Context, bundle string) (unlock func(), err error) {
	return lockPod(ctx, bundle, true)
}

// lockPod is lock, which answers errHeld instead of waiting if wait is not set.
func lockPod(ctx context.Context, bundle string, wait bool) (unlock func(), err error) {
	dir, err := os.Open(bundle)
	if errors.Is(err, os.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, err
	}
	const again = 5 * time.Millisecond
	for {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = dir.Close() }, nil // closing it unlocks
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = dir.Close() // the error that matters is the other
			return nil, fmt.Errorf("lock bundle %q: %w", bundle, err)
		}
		var gaveUp error
		if wait {
			select {
			case <-time.After(again):
			case <-ctx.Done():
				gaveUp = fmt.Errorf("%w: %w", errHeld, ctx.Err())
			}
		} else if errors.Is(err, unix.EWOULDBLOCK) {
			gaveUp = errHeld
		}
		if gaveUp != nil {
			_ = dir.Close() // the error that matters is the other
			return nil, fmt.Errorf("lock bundle %q: %w", bundle, gaveUp)
		}
	}
}
