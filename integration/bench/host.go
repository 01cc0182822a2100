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
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// host is a containerd of our own, with a rootfs for its containers.
type host struct {
	dir       string // short: a unix socket's path has 107 bytes
	namespace string // also the name of the cgroup that holds all containers
	rootfs    string
	client    *containerd.Client
	daemon    *exec.Cmd
	log       *os.File
}

// bootTimeout bounds containerd's start; it takes well under a second. goneTimeout bounds how long the last shims take
// to end, which nobody waits for when a container is deleted.
var (
	bootTimeout = harness.Slow(20 * time.Second)
	goneTimeout = harness.Slow(20 * time.Second)
)

// start starts containerd from the directory tools. Shims are looked up in tools and in shimDir.
func start(ctx context.Context, tools, shimDir string, v1Only bool) (_ *host, err error) {
	// Not below /run, which may be mounted noexec, unless TMPDIR says so.
	dir, err := os.MkdirTemp("", harness.NamespacePrefix)
	if err != nil {
		return nil, err
	}
	h := &host{dir: dir, namespace: filepath.Base(dir), rootfs: filepath.Join(dir, "rootfs")}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.stop())
		}
	}()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return nil, err
	}
	if err := harness.WriteRootfs(harness.Env{Busybox: busybox}, h.rootfs); err != nil {
		return nil, fmt.Errorf("make rootfs: %w", err)
	}
	configFile := filepath.Join(h.dir, "config.toml")
	if err := os.WriteFile(configFile, h.config(), 0o600); err != nil {
		return nil, err
	}
	if h.log, err = os.OpenFile(filepath.Join(h.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
		return nil, err
	}
	daemon := command(v1Only, filepath.Join(tools, "containerd"), "--config", configFile)
	daemon.Env = append(os.Environ(), fmt.Sprintf("PATH=%s:%s:%s", shimDir, tools, os.Getenv("PATH")))
	daemon.Stdout, daemon.Stderr = h.log, h.log
	if err := daemon.Start(); err != nil {
		return nil, fmt.Errorf("start containerd: %w", err)
	}
	h.daemon = daemon
	return h, h.serving(ctx)
}

// serving connects to containerd and returns when it answers.
func (h *host) serving(ctx context.Context) (err error) {
	h.client, err = containerd.New(h.address(), containerd.WithTimeout(bootTimeout),
		containerd.WithDefaultNamespace(h.namespace))
	if err != nil {
		return fmt.Errorf("connect to containerd: %w\n%s", err, h.logTail())
	}
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	for { // its socket is there a little before it listens
		_, err := h.client.Version(ctx)
		if err == nil {
			return nil
		}
		if !pause(ctx, 10*time.Millisecond) {
			return fmt.Errorf("ask containerd for its version: %w\n%s",
				errors.Join(err, context.Cause(ctx)), h.logTail())
		}
	}
}

// config keeps the disk out of what is measured: it is the same for all.
func (h *host) config() []byte {
	return fmt.Appendf(nil, `version = 3
root = "%[1]s/root"
state = "%[1]s/state"
disabled_plugins = [
  "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri",
  "io.containerd.nri.v1.nri",
]
[debug]
  level = "warn"
[grpc]
  address = "%[1]s/containerd.sock"
[plugins."io.containerd.shim.v1.manager"]
  socket_dir = "%[1]s/s"
[plugins."io.containerd.metadata.v1.bolt"]
  no_sync = true
`, h.dir)
}

// command is containerd's. With v1Only, it and what it starts have a mount namespace of their own in which no cgroup v2
// is mounted beside v1: crun up to 1.8 refuses to run where one has controllers. A tmpfs takes its place, since crun
// makes files where the hierarchy used to be.
func command(v1Only bool, name string, args ...string) *exec.Cmd {
	const hybrid = "/sys/fs/cgroup/unified"
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl-C is for us; stop needs containerd
	var fs unix.Statfs_t
	if err := unix.Statfs(hybrid, &fs); !v1Only || err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
		return cmd
	}
	cmd = exec.Command("/bin/sh",
		append([]string{"-c", `mount -t tmpfs none "$0" && exec "$@"`, hybrid, name}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Unshareflags: unix.CLONE_NEWNS} // Go makes its mounts private
	return cmd
}

func (h *host) address() string { return filepath.Join(h.dir, "containerd.sock") }

// logTail is what containerd said last.
func (h *host) logTail() string {
	data, err := os.ReadFile(h.log.Name())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}

// scope is where anything may be that the host or a shim made.
func (h *host) scope() harness.Scope {
	return harness.Scope{
		Namespace: h.namespace,
		Dirs: []string{
			filepath.Join(h.dir, "s"),
			filepath.Join(h.dir, "state/io.containerd.runtime.v2.task", h.namespace),
		},
		MountsIn: h.dir,
	}
}

// stop deletes every container that is left, ends containerd and removes all that was made. Its error names what should
// have been gone by then.
func (h *host) stop() error {
	var err error
	if h.client != nil {
		ctx, cancel := context.WithTimeout(namespaces.WithNamespace(context.Background(), h.namespace), bootTimeout)
		defer cancel()
		err = h.deleteAll(ctx)
		_ = h.client.Close() // containerd ends next
	}
	scope := h.scope()
	err = errors.Join(err, gone(scope))
	if h.daemon != nil {
		_ = h.daemon.Process.Signal(syscall.SIGTERM) // Wait tells whether it is gone
		_ = h.daemon.Wait()                          // its exit status is of no interest
	}
	if h.log != nil {
		_ = h.log.Close() // removed next
	}
	return errors.Join(err, scope.Remove(), os.RemoveAll(h.dir))
}

// gone waits until nothing of a scope is there. Its error names what still is after a while.
func gone(scope harness.Scope) error {
	for deadline := time.Now().Add(goneTimeout); ; {
		closeAccount(scope.Namespace)
		leaks := scope.Leaks()
		if len(leaks) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("left behind:\n\t%s", strings.Join(leaks, "\n\t"))
		}
		pause(context.Background(), 20*time.Millisecond)
	}
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
