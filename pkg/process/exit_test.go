// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/process/processtest"
	"sandbox.internal/shim/pkg/reaper"
	"sandbox.internal/shim/pkg/stdio"
)

// No process of the exec exists yet, so there is nothing to wait for.
func TestExit_DoesNotWaitForTheStreamsOfAnExec(t *testing.T) {
	dir := t.TempDir()
	program, began := filepath.Join(dir, "log"), filepath.Join(dir, "began")
	must(t, os.WriteFile(program, []byte("#!/bin/sh\n: >"+began+"\nexec sleep 1000\n"), 0o700)) // and never says it is ready
	w := running(t, &processtest.Runtime{})
	must(t, w.AddExec("e", &specs.Process{}, stdio.Config{
		Stdout: "binary://" + program, ID: "e", Host: stdio.NewHost("ns", reaper.New()),
	}))
	e, err := w.Process("e")
	must(t, err)
	started := async(func() error { return e.Start(ctx) })
	for deadline := time.Now().Add(time.Minute); ; <-time.After(time.Millisecond) {
		if _, err := os.Stat(began); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the logging binary does not begin")
		}
	}
	died := time.Now()
	w.dies(0)
	const ready = 10 * time.Second // of a logging binary (package stdio)
	if took := time.Since(died); took > ready/2 {
		t.Errorf("init's exit was published after %v", took)
	}
	wantClass(t, <-started, errdefs.ErrFailedPrecondition)
}
