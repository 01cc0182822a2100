// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/ociruntime/criu"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// needCriu skips a test where there is no criu that works with the kernel:
// Debian 12's 3.17 does not with Linux 6.18.
func needCriu(t *testing.T) {
	t.Helper()
	if out, err := exec.Command(criu.Program, "check").CombinedOutput(); err != nil {
		lacking(t, "criu", fmt.Sprintf("a criu that works with this kernel: %v\n%s", err, out))
	}
	if _, err := exec.LookPath("iptables-restore"); err != nil {
		lacking(t, "criu", "iptables-restore, which criu calls: "+err.Error())
	}
}

func TestCheckpoint_NeedsAPathToItsNetwork(t *testing.T) {
	if _, err := exec.LookPath(criu.Program); err != nil {
		lacking(t, "criu", err.Error())
	}
	holder := exec.Command("/bin/busybox", "sleep", "1000")
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	must(t, holder.Start())
	end := sync.OnceFunc(func() { _, _ = holder.Process.Kill(), holder.Wait() })
	t.Cleanup(end)
	config := newConfig(t, "sleep", "1000")
	config.Spec.Linux.Namespaces = append(slices.DeleteFunc(config.Spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool {
		return ns.Type == specs.NetworkNamespace
	}), specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: fmt.Sprintf("/proc/%d/ns/net", holder.Process.Pid)})
	b := create(t, config).start()
	end()
	err := b.Checkpoint(process.CheckpointRequest{Path: filepath.Join(t.TempDir(), "image")})
	if !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Checkpoint = %v, want a failed precondition", err)
	}
	wantText(t, err, "linux.namespaces", "ns/net")
}

// counter says a number whenever it is sent SIGUSR1, and ends with it at SIGTERM.
var counter = []string{"sh", "-c", `n=5; trap 'n=$((n+1)); echo $n' USR1; trap 'exit $n' TERM; echo up; while :; do sleep 0.05; done`}

// restore makes a container of image and has it run.
func restore(t *testing.T, image string, args ...string) (*box, process.Handle) {
	t.Helper()
	config := newConfig(t, args...)
	config.Checkpoint = image
	t.Cleanup(func() { wantNothingLeft(t, config) })
	runtime, err := New(testReaper).Create(t.Context(), config, nil)
	must(t, err)
	t.Cleanup(func() { must(t, runtime.Destroy()) })
	streams, err := stdio.Open(t.Context(), config.IO, config.IOOwner)
	must(t, err)
	t.Cleanup(func() { must(t, streams.Close()) })
	init, err := runtime.Restore(t.Context(), streams)
	must(t, err)
	b := &box{RuntimeContainer: runtime, t: t, config: config, streams: streams, dead: make(chan struct{})}
	go func() { defer close(b.dead); b.exit = init.Wait() }()
	t.Cleanup(func() {
		_ = init.Signal(syscall.SIGKILL) // dead already is as good
		b.wait()
	})
	return b, init
}

func (b *box) says(what string) {
	b.t.Helper()
	path := strings.TrimPrefix(b.config.IO.Stdout, "file://")
	eventually(b.t, "the output "+what, func() bool {
		text, err := os.ReadFile(path)
		return err == nil && strings.HasSuffix(string(text), what+"\n")
	})
}

func TestCheckpoint_AndRestore(t *testing.T) {
	needCriu(t)
	wantNoLeaks(t)
	b := create(t, newConfig(t, counter...)).start()
	b.says("up")
	must(t, b.Init().Signal(syscall.SIGUSR1))
	b.says("6")
	image := filepath.Join(t.TempDir(), "image")
	must(t, b.Checkpoint(process.CheckpointRequest{Path: image, Exit: true}))
	if exit := b.wait(); exit.Status != 137 {
		t.Errorf("status after a checkpoint that ends the container = %d, want 137", exit.Status)
	}

	// Twice, the second time from a checkpoint of what was restored.
	for _, n := range []string{"7", "8"} {
		r, init := restore(t, image, "true")
		must(t, init.Signal(syscall.SIGUSR1))
		r.says(n)
		if got := r.exec(t.Context(), command("sh", "-c", "kill -0 1 && echo in; exit 3")); got.status != 3 || got.out != "in\n" || got.err != nil {
			t.Errorf("exec in what was restored = %+v, want 3 and its output", got)
		}
		image = filepath.Join(t.TempDir(), "image")
		must(t, r.Checkpoint(process.CheckpointRequest{Path: image}))
		must(t, init.Signal(syscall.SIGTERM))
		if exit := r.wait(); exit.Status != int(n[0]-'0') {
			t.Errorf("status of what was restored = %d, want %s, from its memory", exit.Status, n)
		}
	}
}

func TestCheckpoint_FailureLeavesTheContainerRunning(t *testing.T) {
	needCriu(t)
	b := create(t, newConfig(t, counter...)).start()
	b.says("up")
	image := filepath.Join(t.TempDir(), "image")
	err := b.Checkpoint(process.CheckpointRequest{Path: filepath.Join(image, "too", "deep")})
	wantText(t, err, "no such file")
	must(t, b.Init().Signal(syscall.SIGUSR1))
	b.says("6")
	if _, err := os.Stat(image); err == nil {
		t.Errorf("%s is left of a checkpoint that failed", image)
	}
}
