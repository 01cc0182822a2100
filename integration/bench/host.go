// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
)

// host is a containerd of our own, with a rootfs for its containers.
type host struct {
	dir       string // short: a unix socket's path has 107 bytes
	namespace string
	rootfs    string
	client    *containerd.Client
	daemon    *exec.Cmd
	log       *os.File
}

// bootTimeout bounds containerd's start; it takes well under a second.
const bootTimeout = 20 * time.Second

// start starts containerd from the folder tools. Shims are looked up in tools and in shimDir.
func start(ctx context.Context, tools, shimDir string) (_ *host, err error) {
	h := &host{namespace: fmt.Sprintf("shim-bench-%d", os.Getpid())}
	h.dir = filepath.Join("/run", h.namespace)
	h.rootfs = filepath.Join(h.dir, "rootfs")
	if err := os.Mkdir(h.dir, 0o700); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h.stop()
		}
	}()
	if err := makeRootfs(h.rootfs); err != nil {
		return nil, fmt.Errorf("make rootfs: %w", err)
	}
	config := fmt.Sprintf(`version = 3
root = "%[1]s/root"
state = "%[1]s/state"
disabled_plugins = ["io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "io.containerd.nri.v1.nri"]
[debug]
  level = "warn"
[grpc]
  address = "%[1]s/containerd.sock"
[plugins."io.containerd.shim.v1.manager"]
  socket_dir = "%[1]s/s"
`, h.dir)
	configFile := filepath.Join(h.dir, "config.toml")
	if err := os.WriteFile(configFile, []byte(config), 0o600); err != nil {
		return nil, err
	}
	if h.log, err = os.OpenFile(filepath.Join(h.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
		return nil, err
	}
	h.daemon = exec.Command(filepath.Join(tools, "containerd"), "--config", configFile)
	h.daemon.Env = append(os.Environ(), fmt.Sprintf("PATH=%s:%s:%s", shimDir, tools, os.Getenv("PATH")))
	h.daemon.Stdout, h.daemon.Stderr = h.log, h.log
	h.daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl-C is for us; stop needs containerd
	if err := h.daemon.Start(); err != nil {
		h.daemon = nil
		return nil, fmt.Errorf("start containerd: %w", err)
	}
	h.client, err = containerd.New(h.address(), containerd.WithTimeout(bootTimeout), containerd.WithDefaultNamespace(h.namespace))
	if err != nil {
		return nil, fmt.Errorf("connect to containerd: %w\n%s", err, h.logTail())
	}
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	if _, err = h.client.Version(ctx); err != nil {
		return nil, fmt.Errorf("ask containerd for its version: %w\n%s", err, h.logTail())
	}
	return h, nil
}

func (h *host) address() string { return filepath.Join(h.dir, "containerd.sock") }

// logTail is what containerd said last.
func (h *host) logTail() string {
	data, err := os.ReadFile(h.log.Name())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// stop deletes every container that is left, ends containerd and removes all that was made. It reports what it could
// not remove.
func (h *host) stop() {
	if h.client != nil {
		ctx, cancel := context.WithTimeout(namespaces.WithNamespace(context.Background(), h.namespace), bootTimeout)
		defer cancel()
		h.deleteAll(ctx)
		_ = h.client.Close() // containerd ends next
	}
	if h.daemon != nil {
		_ = h.daemon.Process.Signal(syscall.SIGTERM) // Wait tells whether it is gone
		_ = h.daemon.Wait()                          // its exit status is of no interest
	}
	if h.log != nil {
		_ = h.log.Close() // removed next
	}
	// Cgroups below the namespace's are the containers', and gone; the parent that containerd asked for is ours.
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == h.namespace {
			if err := os.Remove(path); err != nil {
				fmt.Fprintln(os.Stderr, "bench: left behind:", err)
			}
			return fs.SkipDir
		}
		return nil
	})
	for _, dir := range []string{h.dir, filepath.Join("/run/containerd/runc", h.namespace)} {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, "bench: left behind:", err)
		}
	}
}

// deleteAll is for a run that ended early.
func (h *host) deleteAll(ctx context.Context) {
	containers, err := h.client.Containers(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: list containers:", err)
	}
	for _, c := range containers {
		if task, err := c.Task(ctx, nil); err == nil {
			if _, err := task.Delete(ctx, containerd.WithProcessKill); err != nil {
				fmt.Fprintln(os.Stderr, "bench: left behind:", err)
			}
		}
		if err := c.Delete(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "bench: left behind:", err)
		}
	}
}

// makeRootfs makes a rootfs of Debian's static busybox.
func makeRootfs(dir string) error {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	data, err := os.ReadFile(busybox)
	if err != nil {
		return err
	}
	for _, d := range []string{"bin", "proc", "dev", "sys", "run"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "bin/busybox"), data, 0o755); err != nil {
		return err
	}
	for _, applet := range []string{"true", "sleep", "sh"} {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", applet)); err != nil {
			return err
		}
	}
	return nil
}
