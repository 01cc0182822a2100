// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"io"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/internal/testx"
)

func TestTerminal_WhetherItHasAStderrBesideIt(t *testing.T) {
	dir := fifos(t, "stdout", "stderr")
	stdout, stderr := filepath.Join(dir, "stdout"), filepath.Join(dir, "stderr")
	for _, tc := range []struct {
		name string
		c    Config
		want bool
	}{
		{"a fifo of its own", Config{Stdout: stdout, Stderr: stderr, SplitStderr: true}, true},
		{"no stdout", Config{Stderr: stderr, SplitStderr: true}, true},
		{"a file", Config{Stdout: stdout, Stderr: "file://" + dir + "/log", SplitStderr: true}, true},
		{"for a process that cannot", Config{Stdout: stdout, Stderr: stderr}, false},
		{"none", Config{Stdout: stdout, SplitStderr: true}, false},
		{"a fifo that containerd's client names and does not make", Config{Stdout: stdout, Stderr: dir + "/no", SplitStderr: true}, false},
		{"the same as stdout", Config{Stdout: "file://" + dir + "/log", Stderr: "file://" + dir + "/log", SplitStderr: true}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			checkLeaks(t)
			tc.c.Terminal = true
			_, _, child := mustOpen(t, tc.c).Child()
			if got := child != nil; got != tc.want {
				t.Errorf("a stderr beside the terminal: %t, want %t", got, tc.want)
			}
		})
	}
	_, err := Open(t.Context(), Config{Terminal: true, Stdout: stdout, Stderr: "ftp:///x", SplitStderr: true, readersLater: true}, idmap.Owner{})
	if !errdefs.IsInvalidArgument(err) {
		t.Errorf("Open with a stderr of scheme ftp = %v, want an invalid argument", err)
	}
}

func TestTerminal_BothOutputs(t *testing.T) {
	checkLeaks(t)
	dir := fifos(t, "stdout", "stderr")
	r := &env{t, mustOpen(t, Config{
		Terminal: true, SplitStderr: true, Stdout: filepath.Join(dir, "stdout"), Stderr: filepath.Join(dir, "stderr"),
	}), dir}
	out, errOut := r.client("stdout"), r.client("stderr")
	slave := openSlave(t, r.attach())
	cmd := exec.Command("sh", "-c", "echo out; echo error >&2; head -c 300000 /dev/zero >&2")
	cmd.Stdin, cmd.Stdout = slave, slave
	_, _, cmd.Stderr = r.Child()
	testx.Must(t, cmd.Start())
	slave.Close()
	r.started()
	wantRead(t, out, "out\r\n")
	wantRead(t, errOut, "error\n")
	rest := make(chan int64)
	go func() { n, _ := io.Copy(io.Discard, errOut); rest <- n }()
	testx.Must(t, cmd.Wait())
	if err := r.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	if n := <-rest; n != 300000 {
		t.Errorf("stderr has %d bytes more, want 300000", n)
	}
}
