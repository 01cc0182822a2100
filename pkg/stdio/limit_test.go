// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestLimit_DropsWhatIsOver(t *testing.T) {
	checkLeaks(t)
	for _, tt := range []struct {
		limit, written int64
	}{{0, 300000}, {100, 300000}, {100000, 300000}, {300000, 300000}, {299999, 300000}} {
		dir := fifos(t, "stdout", "stderr")
		r := &env{t, mustOpen(t, Config{
			Stdout: filepath.Join(dir, "stdout"), Stderr: filepath.Join(dir, "stderr"),
			MaxOutput: tt.limit,
		}), dir}
		out, errs := r.client("stdout"), r.client("stderr")
		cmd := r.run("sh", "-c", "head -c 300000 /dev/zero; echo error >&2")
		kept := tt.written
		if tt.limit > 0 {
			kept = min(kept, tt.limit)
		}
		wantRest(t, out, strings.Repeat("\x00", int(kept)))
		wantRest(t, errs, "error\n")
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
		if err := r.Drain(t.Context()); err != nil {
			t.Errorf("limit %d: %v, but what is dropped is not lost", tt.limit, err)
		}
		want := [2]Output{{tt.written, tt.written - kept}, {6, 0}}
		if got := r.Written(); got != want {
			t.Errorf("limit %d: %+v, want %+v", tt.limit, got, want)
		}
	}
}

// A process that has exited may have written more than was read.
func TestWritten_CountsWhatIsInThePipe(t *testing.T) {
	r := newEnv(t, false, "stdout")
	process := r.process()
	r.started()
	write(t, process, strings.Repeat("x", 150000)) // its reader is away: the fifo and the pipe hold some of it
	if got := r.Written()[0]; got != (Output{Written: 150000}) {
		t.Errorf("Written = %+v, want 150000", got)
	}
	out := r.client("stdout")
	process.Close()
	wantRest(t, out, strings.Repeat("x", 150000))
}
