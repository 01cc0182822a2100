// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cleanup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/hostrootfs"
	"sandbox.internal/shim/pkg/listen"
	"sandbox.internal/shim/pkg/pidfile"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/unixfile"
)

// killed is the exit status of an init whose exit nobody saw: it was alive when its shim died, and is killed here.
// 128 + SIGKILL, as the runc shim answers.
const killed = 128 + int(unix.SIGKILL)

// container removes the container of the request alone. Several may be called at once: they take turns.
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
// counts if there is no state that names another.
func (r Request) containerLocked(ctx context.Context, root, id, bundle string) (int, process.Exit, error) {
	s, err := ReadState(bundle)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.L.WithError(err).WithField("container", id).Warn("read the container's state; using defaults")
	}
	if s.Root == "" {
		s.Root = root
	}
	config := process.Config{
		ID: id, Bundle: bundle, Stop: s.Stop, Options: process.Options{Root: s.Root, SystemdCgroup: s.SystemdCgroup},
	}
	if config.Spec = readSpec(bundle); config.Spec != nil {
		if config.Rootfs = config.Spec.Root.Path; !filepath.IsAbs(config.Rootfs) {
			config.Rootfs = filepath.Join(bundle, config.Rootfs)
		}
	}
	err = r.Container(ctx, config)
	removeSockets(ctx, id, s.Sockets) // before the rootfs goes, in which they may be
	err = errors.Join(err, UnmountRootfs(bundle), hostrootfs.Remove(bundle), pidfile.Remove(s.PidFile, s.Pid))
	if s.Pid == 0 {
		err = errors.Join(err, pidfile.RemoveStale(s.PidFile))
	}
	exit := process.Exit{Status: killed, At: time.Now()}
	if s.Exit != nil {
		exit = *s.Exit
	}
	return s.Pid, exit, err
}

// socketsTimeout is the part of the delete command's time for sockets on volumes, which may hang.
const socketsTimeout = time.Second

// removeSockets removes the sockets of `listen`. One that stays is no reason to keep the bundle.
func removeSockets(ctx context.Context, id string, sockets []listen.File) {
	if len(sockets) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, socketsTimeout)
	defer cancel()
	if err := listen.RemoveLeft(ctx, sockets); err != nil {
		log.L.WithError(err).WithField("container", id).Warn("remove sockets; one may be left")
	}
}

// UnmountRootfs unmounts all that is mounted at a bundle's rootfs. A process that still uses a file there does not keep
// the mount: it goes when the last of them does, and at once when there is none.
func UnmountRootfs(bundle string) error {
	target := filepath.Join(bundle, "rootfs")
	err := mount.UnmountRecursive(target, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("unmount %q: %w", target, err)
	}
	return nil
}

// readSpec reads the configuration of a container, or returns nil where there is none by which a container was made.
func readSpec(bundle string) *specs.Spec {
	data, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	var s specs.Spec
	if err != nil || json.Unmarshal(data, &s) != nil || s.Root == nil || s.Process == nil || s.Linux == nil {
		return nil
	}
	return &s
}

// JoinsPIDs reports whether a container is in the PID namespace of another, whose end kills it (pid_namespaces(7)).
func JoinsPIDs(spec *specs.Spec) bool {
	return spec != nil && spec.Linux != nil &&
		slices.ContainsFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
			return n.Type == specs.PIDNamespace && n.Path != ""
		})
}
