// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"

	"sandbox.internal/shim/integration/harness"
)

// The state that a shim hands over is recorded for each release, and read by all later ones that say they can
// (cmd/containerd-shim-sandbox-v1/state_test.go). SHIM_RECORD_STATE names the file; make record-state sets it.
func TestRecordState(t *testing.T) {
	e := newUpgradable(t)
	file := os.Getenv("SHIM_RECORD_STATE")
	if file == "" {
		file = filepath.Join(t.TempDir(), "state.json")
	}
	e.allow("pid-file", "verdict-file")
	dir := publicDir(t)
	c := e.run("c1", config{opts: with(inOneShim, execLimits("wall-time=60s,memory=64Mi"), oci.WithMemoryLimit(64*mib),
		annotations(annotationPidFile, filepath.Join(dir, "pid"), "io.containerd.sandbox.v1/stop-signal", "TERM",
			"io.containerd.sandbox.v1/verdict-file", dir+"/{id}:{exec}.json"))}, "sleep", "1000")
	_, in := typed(e.env)
	started := c.startExec("started", config{stdin: in}, nil, "cat")
	added := c.exec("added", config{}, nil, "true")
	gone := c.startExec("gone", config{}, nil, "true")
	if got := gone.exit(); got != 0 {
		t.Errorf("exit status of gone = %d", got)
	}
	_, keys := typed(e.env)
	terminal := e.create("c2", config{opts: with(inOneShim), stdin: keys, terminal: true}, "sh")
	// A program that keeps what it is to check, and refuses it.
	e.installed.Replace(t, fmt.Appendf(nil, "#!/bin/sh\ncat >%s\necho recorded >&2\nexit 1\n", filepath.Join(dir, "state")))
	_, _, err := harness.Upgrade(e.ctx, e.address("c1"), false)
	wantError(t, err, errdefs.ErrFailedPrecondition, "recorded")
	text, err := os.ReadFile(filepath.Join(dir, "state"))
	e.must(err, "the state")
	var indented bytes.Buffer
	e.must(json.Indent(&indented, text, "", "\t"), "indent")
	e.must(os.WriteFile(file, indented.Bytes(), 0o644), "write the state")
	e.installed.Restore(t)
	terminal.process.Kill(e.ctx, 9) //nolint:errcheck // it is to be deleted
	started.kill()
	added.delete()
	gone.delete()
	terminal.wantExit(137)
	c.kill()
}
