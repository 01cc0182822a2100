// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"

	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/tools"
)

const (
	shimName  = "containerd-shim-sandbox-v1"
	installer = "../../deploy/install.sh"
)

// node is a machine as install.sh sees it: a containerd, its configuration, and a command that restarts it.
type node struct {
	*testing.T
	config   string // of containerd
	conf     string // directory of drop-ins
	bindir   string // where the shim is installed; containerd looks there and nowhere else
	binary   string // the shim to install; empty: a package has done that
	daemon   string // what --containerd names
	restart  string // what --restart names
	applets  string // directory with the only programs that there are, if not all
	upgrade  string // UPGRADE_SHIMS
	tool     string // sandboxctl in the image of the pod, if it is there
	mu       sync.Mutex
	c        *harness.Containerd
	restarts int
}

// newNode makes a node with the given configuration, to which it adds where everything is, and starts its containerd.
func newNode(t *testing.T, daemon string, config func(n *node) string) *node {
	t.Helper()
	harness.OursOnly(t, "to be installed by deploy/install.sh")
	env, err := harness.Require(t.Context())
	harness.Must(t, err)
	n := &node{T: t, binary: env.Shim, daemon: daemon}
	env.Daemon, env.Shim = daemon, "" // so the shim is not in containerd's PATH before it is installed
	if n.c, err = harness.NewContainerd(env); err != nil {
		t.Fatal(err)
	}
	n.bindir = filepath.Join(n.c.Dir, "bin")
	n.c.Env.Shim = filepath.Join(n.bindir, shimName)
	n.config, n.conf = filepath.Join(n.c.Dir, "config.toml"), filepath.Join(n.c.Dir, "conf.d")
	n.write(n.config, config(n))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of containerd:\n%s", n.c.LogFrom(0))
		}
		if err := n.c.Close(); err != nil {
			t.Error(err)
		}
	})
	n.serveRestarts()
	harness.Must(t, n.c.Start(t.Context()))
	return n
}

// serveRestarts makes the restart command and starts the goroutine that does what it asks for.
func (n *node) serveRestarts() {
	n.Helper()
	ask, answer := filepath.Join(n.c.Dir, "ask"), filepath.Join(n.c.Dir, "answer")
	var pipes []*os.File
	for _, name := range []string{ask, answer} {
		harness.Must(n, syscall.Mkfifo(name, 0o600))
		f, err := os.OpenFile(name, os.O_RDWR, 0) // both ends: no open and no write waits for the command
		harness.Must(n, err)
		pipes = append(pipes, f)
	}
	n.restart = filepath.Join(n.c.Dir, "restart")
	n.script(n.restart,
		fmt.Sprintf("echo restart >%s\nread -r answer <%s\necho \"$answer\"\n[ \"$answer\" = ok ]\n", ask, answer))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(pipes[0]); lines.Scan(); {
			text := "ok"
			if err := n.restartContainerd(); err != nil {
				text = strings.ReplaceAll(err.Error(), "\n", " ")
			}
			fmt.Fprintln(pipes[1], text)
		}
	}()
	n.Cleanup(func() {
		_ = pipes[0].Close() // ends the goroutine
		<-done
		_ = pipes[1].Close() // nothing is in it that anybody wants
	})
}

func (n *node) restartContainerd() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.restarts++
	return errors.Join(n.c.Stop(), n.c.Start(context.Background()))
}

// wantRestarts checks how often containerd was restarted since the last call.
func (n *node) wantRestarts(want int) {
	n.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.restarts != want {
		n.Errorf("containerd was restarted %d times, want %d", n.restarts, want)
	}
	n.restarts = 0
}

// command is install.sh for this node. A later option counts, so args can say otherwise.
func (n *node) command(args ...string) *exec.Cmd {
	n.Helper()
	all := []string{
		args[0], "--bindir", n.bindir, "--config", n.config,
		"--ctr", filepath.Join(n.c.Env.Tools, "ctr"), "--timeout", "30",
	}
	if n.daemon != "" {
		all = append(all, "--containerd", n.daemon)
	}
	if n.binary != "" {
		all = append(all, "--binary", n.binary)
	}
	if n.restart != "" {
		all = append(all, "--restart", n.restart)
	}
	args = append(all, args[1:]...)
	ctx, cancel := context.WithTimeout(n.Context(), harness.Slow(2*time.Minute))
	n.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, installer, args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+n.TempDir(), "UPGRADE_SHIMS="+n.upgrade)
	if n.applets != "" {
		cmd = exec.CommandContext(ctx, filepath.Join(n.applets, "sh"), append([]string{installer}, args...)...)
		cmd.Env = []string{"PATH=" + n.applets}
	}
	return cmd
}

// run runs install.sh and returns its exit status and everything it printed.
func (n *node) run(args ...string) (int, string) {
	n.Helper()
	cmd := n.command(args...)
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() < 0) {
		n.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// want runs install.sh and checks its exit status and that it printed each of the texts.
func (n *node) want(status int, texts []string, args ...string) {
	n.Helper()
	got, out := n.run(args...)
	if got != status {
		n.Fatalf("install.sh %q: exit status %d, want %d:\n%s", args, got, status, out)
	}
	for _, text := range texts {
		if !strings.Contains(out, text) {
			n.Errorf("install.sh %q printed\n%s\nwant %q in it", args, out, text)
		}
	}
}

// files returns what install.sh could have changed, by name: kind, mode and content.
func (n *node) files() map[string]string {
	n.Helper()
	found := map[string]string{}
	for _, pattern := range []string{
		n.config + "*", n.conf, n.conf + "/*", n.bindir, n.bindir + "/*", n.conf + "/.*",
		n.bindir + "/.*",
	} {
		names, err := filepath.Glob(pattern)
		harness.Must(n, err)
		for _, name := range names {
			info, err := os.Lstat(name)
			harness.Must(n, err)
			text := info.Mode().String()
			if info.Mode().IsRegular() {
				text += "\n" + n.read(name)
			}
			found[name] = text
		}
	}
	return found
}

func (n *node) read(name string) string {
	n.Helper()
	text, err := os.ReadFile(name)
	harness.Must(n, err)
	return string(text)
}

func (n *node) write(name, text string) {
	n.Helper()
	harness.Must(n, os.MkdirAll(filepath.Dir(name), 0o755))
	harness.Must(n, os.WriteFile(name, []byte(text), 0o644))
}

func (n *node) script(name, text string) {
	n.Helper()
	n.write(name, "#!/bin/sh\n"+text)
	harness.Must(n, os.Chmod(name, 0o755))
}

func (n *node) dump() string {
	n.Helper()
	out, err := exec.CommandContext(n.Context(), n.daemon, "--config", n.config, "config", "dump").Output()
	if err != nil {
		n.Fatalf("containerd config dump: %v", err)
	}
	return string(out)
}

func (n *node) client() *client.Client {
	n.Helper()
	cl, err := n.c.Client()
	harness.Must(n, err)
	n.Cleanup(func() { _ = cl.Close() })
	return cl
}

// ctr makes the test image known in a namespace and returns how to call ctr there.
func (n *node) ctr(namespace string) func(args ...string) (string, error) {
	n.Helper()
	cl := n.client()
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(n.Context(), namespace), harness.Slow(time.Minute))
	n.Cleanup(cancel)
	_, snapshotter, err := n.c.Load(ctx, cl)
	harness.Must(n, err)
	return func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, filepath.Join(n.c.Env.Tools, "ctr"),
			append([]string{"--address", n.c.Address, "--namespace", namespace}, args...)...)
		cmd.Env = append(os.Environ(), "CONTAINERD_SNAPSHOTTER="+snapshotter,
			"CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1")
		cmd.WaitDelay = time.Second // a container keeps its output open
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

// release returns the binary of a series of containerd.
func release(t *testing.T, series string) string {
	t.Helper()
	for _, r := range tools.Releases() {
		if r.Name != series {
			continue
		}
		binary, err := r.Provide(t.Context())
		if err != nil {
			if os.Getenv("CI") != "" {
				t.Fatalf("containerd %s: %v", series, err)
			}
			t.Skipf("NOT TESTED: containerd %s: %v", series, err)
		}
		return binary
	}
	t.Fatalf("no release of series %s", series)
	return ""
}
