// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// host is a containerd of our own, with a rootfs for its containers.
type host struct {
	*harness.Containerd
	namespace string // also the name of the cgroup that holds all containers
	rootfs    string
	client    *containerd.Client
}

// goneTimeout bounds how long the last shims take to end, which nobody waits for when a container is deleted.
var goneTimeout = harness.Slow(20 * time.Second)

// start starts containerd from the directory tools. Shims are looked up in tools and beside shim.
func start(ctx context.Context, tools, shim string, v1Only bool) (_ *host, err error) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return nil, err
	}
	env := harness.Env{Shim: shim, Tools: tools, Daemon: filepath.Join(tools, "containerd"), Busybox: busybox}
	h := &host{}
	if h.Containerd, err = harness.NewConfigured(env, daemonConfig); err != nil {
		return nil, err
	}
	h.namespace, h.rootfs = filepath.Base(h.Dir), filepath.Join(h.Dir, "rootfs")
	defer func() {
		if err != nil {
			err = errors.Join(err, h.stop())
		}
	}()
	if err := harness.WriteRootfs(env, h.rootfs); err != nil {
		return nil, fmt.Errorf("make rootfs: %w", err)
	}
	if v1Only {
		if err := h.hideV2(); err != nil {
			return nil, err
		}
	}
	if err := h.Start(ctx); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, h.logTail())
	}
	h.client, err = containerd.New(h.Address,
		containerd.WithTimeout(goneTimeout), containerd.WithDefaultNamespace(h.namespace))
	return h, err
}

// daemonConfig keeps the disk out of what is measured: it is the same for all.
func daemonConfig(c *harness.Containerd) []byte {
	return fmt.Appendf(nil, `version = 3
root = "%[1]s/root"
state = %[2]q
disabled_plugins = [
  "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri",
  "io.containerd.nri.v1.nri",
]
[debug]
  level = "warn"
[grpc]
  address = %[3]q
[plugins."io.containerd.shim.v1.manager"]
  socket_dir = %[4]q
[plugins."io.containerd.metadata.v1.bolt"]
  no_sync = true
`, c.Dir, c.State, c.Address, c.Sockets)
}

// hideV2 gives containerd and what it starts a mount namespace of their own in which no cgroup v2 is mounted beside v1:
// crun up to 1.8 refuses to run where one has controllers. A tmpfs takes its place, since crun makes files where the
// hierarchy used to be.
func (h *host) hideV2() error {
	const hybrid = "/sys/fs/cgroup/unified"
	var fs unix.Statfs_t
	if err := unix.Statfs(hybrid, &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
		return nil //nolint:nilerr // there is none to hide
	}
	script := fmt.Sprintf("#!/bin/sh\nexec unshare -m sh -c 'mount -t tmpfs none %s && exec \"$0\" \"$@\"' %s \"$@\"\n",
		hybrid, h.Env.Daemon)
	h.Env.Daemon = filepath.Join(h.Dir, "containerd")
	return os.WriteFile(h.Env.Daemon, []byte(script), 0o700)
}

// logTail is what containerd said last.
func (h *host) logTail() string {
	lines := strings.Split(strings.TrimSpace(h.LogFrom(max(0, h.LogSize()-4000))), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}

// stop deletes every container that is left, ends containerd and removes all that was made. Its error names what should
// have been gone by then.
func (h *host) stop() error {
	var err error
	if h.client != nil {
		ctx, cancel := context.WithTimeout(namespaces.WithNamespace(context.Background(), h.namespace), goneTimeout)
		defer cancel()
		err = h.deleteAll(ctx)
		_ = h.client.Close() // containerd ends next
	}
	scope := harness.Scope{
		Namespace: h.namespace,
		Dirs:      []string{h.Sockets, filepath.Join(h.State, "io.containerd.runtime.v2.task", h.namespace)},
		MountsIn:  h.Dir,
	}
	return errors.Join(err, gone(scope), scope.Remove(), h.Close())
}

// gone waits until nothing of a scope is there. Its error names what still is after a while.
func gone(scope harness.Scope) error {
	return harness.PollFor(goneTimeout, func() error {
		closeAccount(scope.Namespace)
		if leaks := scope.Leaks(); len(leaks) > 0 {
			return fmt.Errorf("left behind:\n\t%s", strings.Join(leaks, "\n\t"))
		}
		return nil
	})
}

// deleteAll deletes the containers that a group has left, which is an error in itself.
func (h *host) deleteAll(ctx context.Context) error {
	containers, err := h.client.Containers(ctx)
	for _, c := range containers {
		err = errors.Join(err, fmt.Errorf("left behind: container %s", c.ID()))
		if task, e := c.Task(ctx, nil); e == nil {
			_, e = task.Delete(ctx, containerd.WithProcessKill)
			err = errors.Join(err, e)
		}
		err = errors.Join(err, c.Delete(ctx))
	}
	return err
}
