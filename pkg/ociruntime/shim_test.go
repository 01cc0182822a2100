// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/reaper"
	"sandbox.internal/shim/pkg/stdio"
)

// shimEnv names the file that makes this binary a shim which is going to be
// killed.
const shimEnv = "ENGINE_TEST_SHIM"

// life is what such a shim does.
type life struct {
	Config process.Config
	Stage  string // until when: "created", "running", "paused" or "restored"
}

// shim lives until it is killed, and says on stdout when it has come to its stage.
func shim(file string) int {
	if err := live(file); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(os.Stdout, "ready")
	_, _ = os.Stdin.Read(make([]byte, 1)) // ends when the test is gone
	return 0
}

func live(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var l life
	if err := json.Unmarshal(data, &l); err != nil {
		return err
	}
	ctx := context.Background()
	streams, err := stdio.Open(ctx, l.Config.IO, l.Config.IOOwner)
	if err != nil {
		return err
	}
	c, err := New(reaper.New()).Create(ctx, l.Config, streams)
	if err != nil || l.Stage == "created" {
		return err
	}
	if l.Stage == "restored" {
		_, err := c.Restore(ctx, streams)
		return err
	}
	if err := c.Start(); err != nil || l.Stage == "running" {
		return err
	}
	return c.Pause()
}

// killedShim runs a shim up to the stage, or up to the file entered, and kills it.
func killedShim(t *testing.T, l life, entered string) {
	t.Helper()
	t.Cleanup(func() { wantNothingLeft(t, l.Config) })
	data, err := json.Marshal(l)
	must(t, err)
	file := filepath.Join(filepath.Dir(l.Config.Bundle), "life.json")
	must(t, os.WriteFile(file, data, 0o600))
	defer testReaper.Suspend()() // the shim is a child that only we wait for
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), shimEnv+"="+file)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	must(t, err)
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	if entered == "" {
		if n, err := stdout.Read(make([]byte, 16)); n == 0 {
			t.Errorf("the shim did not come to %q: %v", l.Stage, err)
		}
	} else {
		eventually(t, entered, func() bool { _, err := os.Stat(entered); return err == nil })
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
}

// members are the processes in the container's cgroup.
func members(t *testing.T, c process.Config) []int {
	t.Helper()
	var pids []int
	for _, dir := range cgroupDirs(t, c) {
		data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		must(t, err)
		for field := range strings.FieldsSeq(string(data)) {
			pid, err := strconv.Atoi(field)
			must(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

func wantDead(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		// The test process adopted it; the reaper collects it soon.
		eventually(t, fmt.Sprintf("the end of process %d", pid), func() bool { return unix.Kill(pid, 0) == unix.ESRCH })
	}
}
