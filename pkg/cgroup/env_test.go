// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3"

	"sandbox.internal/shim/pkg/internal/testx"
)

// serial makes the names of the cgroups of one test binary differ.
var serial atomic.Int64

// patience bounds what a test waits for; nothing takes that long unless it is broken.
const patience = time.Minute

// layouts makes a cgroup of each kind that a kernel can have.
var layouts = map[string]func(testing.TB) *Cgroup{"v1": makeV1, "hybrid": makeHybrid, "v2": makeV2}

// eachLayout runs a test with a cgroup of each kind.
func eachLayout(t *testing.T, test func(t *testing.T, c *Cgroup)) {
	t.Helper()
	for name, makeCgroup := range layouts {
		t.Run(name, func(t *testing.T) { test(t, makeCgroup(t)) })
	}
}

// makeV1 returns a fresh v1 cgroup with a directory in each of four hierarchies.
func makeV1(tb testing.TB) *Cgroup {
	tb.Helper()
	if cgroups.Mode() == cgroups.Unified {
		testx.Lacking(tb, "cgroup1", "cgroup v1 hierarchies at /sys/fs/cgroup")
	}
	return makeIn(tb, map[string]string{"memory": "memory", "freezer": "freezer", "pids": "pids", "devices": "devices"})
}

// makeHybrid returns a fresh v1 cgroup that has a directory in the v2 hierarchy as well.
func makeHybrid(tb testing.TB) *Cgroup {
	tb.Helper()
	if cgroups.Mode() != cgroups.Hybrid {
		testx.Lacking(tb, "hybrid", "a v2 hierarchy at /sys/fs/cgroup/unified")
	}
	return makeIn(tb, map[string]string{"freezer": "freezer", "pids": "pids", "": "unified"})
}

// makeV2 returns a fresh v2 cgroup; on hybrid its hierarchy has no memory controller, but can kill and freeze.
func makeV2(tb testing.TB) *Cgroup {
	tb.Helper()
	switch cgroups.Mode() {
	case cgroups.Unified:
		return makeIn(tb, map[string]string{"": ""})
	case cgroups.Hybrid:
		return makeIn(tb, map[string]string{"": "unified"})
	case cgroups.Legacy, cgroups.Unavailable:
	}
	testx.Lacking(tb, "cgroup2", "a cgroup v2 hierarchy")
	return nil
}

// makeIn makes a cgroup in hierarchies below /sys/fs/cgroup, and removes it with all in it at the end of the test.
func makeIn(tb testing.TB, hierarchies map[string]string) *Cgroup {
	tb.Helper()
	testx.NeedRoot(tb)
	paths, name := map[string]string{}, fmt.Sprintf("shim-test-%d-%d", os.Getpid(), serial.Add(1))
	for controller, dir := range hierarchies {
		paths[controller] = filepath.Join("/sys/fs/cgroup", dir, name)
	}
	c := New(paths)
	for _, dir := range c.dirs {
		if err := os.Mkdir(dir, 0o755); err != nil {
			tb.Fatalf("make a cgroup: %v", err)
		}
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := c.Kill(ctx); err != nil {
			tb.Errorf("processes of the test are left: %v", err)
		}
		remove(tb, c)
	})
	return c
}

// remove removes the cgroup and those nested in it. The kernel refuses for a moment after the last process ended.
func remove(tb testing.TB, c *Cgroup) {
	tb.Helper()
	for _, dir := range c.dirs {
		testx.Eventually(tb, "remove "+dir, func() bool { return removeTree(dir) == nil })
	}
}

// nest makes a cgroup below c in every hierarchy and returns it.
func nest(tb testing.TB, c *Cgroup, name string) *Cgroup {
	tb.Helper()
	paths := make(map[string]string)
	for controller, dir := range c.paths {
		paths[controller] = filepath.Join(dir, name)
		testx.Must(tb, os.Mkdir(paths[controller], 0o755))
	}
	return New(paths)
}

// process is a shell that runs a script inside of a cgroup.
type process struct {
	*exec.Cmd
	ended chan struct{} // closed when it was waited for
}

// start runs script with a shell that is in the cgroup before the script begins.
func start(tb testing.TB, c *Cgroup, script string) *process {
	tb.Helper()
	return startIn(tb, c, nil, script)
}

// startIn is start in directories nested in those of c.
func startIn(tb testing.TB, c *Cgroup, nested []*os.File, script string) *process {
	tb.Helper()
	cmd := exec.Command("/bin/sh", "-c", "read go; "+script)
	gate, err := cmd.StdinPipe()
	testx.Must(tb, err)
	testx.Must(tb, cmd.Start())
	p := &process{cmd, make(chan struct{})}
	go func() { // ends with the process, which the cleanup of the cgroup kills; the cleanup below joins it
		_ = cmd.Wait() // that it was killed is looked up in ProcessState
		close(p.ended)
	}()
	tb.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		p.wait(tb)
	})
	for _, dir := range c.dirs {
		testx.Must(tb, Write(filepath.Join(dir, procsFile), strconv.Itoa(cmd.Process.Pid)))
	}
	for _, dir := range nested {
		testx.Must(tb, Write(filepath.Join(pathOf(dir), procsFile), strconv.Itoa(cmd.Process.Pid)))
	}
	_, err = io.WriteString(gate, "\n")
	testx.Must(tb, err)
	return p
}

func (p *process) wait(tb testing.TB) {
	tb.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		tb.Errorf("process %d did not end", p.Process.Pid)
	}
}

// signalled returns the signal that ended the process, or 0.
func (p *process) signalled(tb testing.TB) syscall.Signal {
	tb.Helper()
	p.wait(tb)
	if s := p.ProcessState.Sys().(syscall.WaitStatus); s.Signaled() {
		return s.Signal()
	}
	return 0
}
