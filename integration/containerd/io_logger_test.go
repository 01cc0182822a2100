// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// loggerScript writes a logging binary, a shell script, and returns its directory. The script says that it is ready,
// and goes on with body in that directory.
func loggerScript(e *env, body string) string {
	e.Helper()
	dir := e.TempDir()
	e.must(unix.Mkfifo(filepath.Join(dir, "never"), 0o600), "fifo")
	script := "#!/bin/sh\ncd " + dir + "\nprintf x >&5\nexec 5>&-\n" + body + "\n"
	e.must(os.WriteFile(filepath.Join(dir, "log"), []byte(script), 0o700), "script")
	return dir
}

// logged runs a container whose output goes where create says.
func (e *env) logged(id string, create cio.Creator, opts []oci.SpecOpts, args ...string) *process {
	e.Helper()
	container, err := e.client.NewContainer(e.ctx, id,
		append(e.plain(id), clientSpec(e, append(opts, oci.WithProcessArgs(args...))...))...)
	e.must(err, "container")
	e.Cleanup(func() { e.remove(container) })
	created, err := container.NewTask(e.ctx, create)
	e.must(err, "task")
	p := &process{Process: created, e: e, err: &harness.Buffer{}}
	p.exited, err = created.Wait(e.ctx)
	e.must(err, "wait")
	e.must(created.Start(e.ctx), "start")
	return p
}

// logURI sends output to the logging binary in dir.
func logURI(scheme, dir string) cio.Creator {
	return cio.LogURI(&url.URL{Scheme: scheme, Path: filepath.Join(dir, "log")})
}

func TestLogger_ThatDoesNotEndDoesNotDelayDelete(t *testing.T) {
	harness.OursOnly(t, "a Delete well below the 10 s that CRI waits") // the runc shim waits 12 s for such a logger
	parent := newEnv(t)
	const stubborn = "trap '' TERM\necho $$ >pid\nexec 6<>never\n"
	const wait = "\nread line <&6" // for ever, in the shell itself
	for i, tt := range []struct {
		name, scheme, logger string
		args                 []string
		exit                 uint32
		out                  string
	}{
		{"it reads to the end", "binary", stubborn + "cat <&3 >out" + wait, []string{"echo", "hello"}, 0, "hello\n"},
		{"it reads to the end, version 2", "binary-v2", stubborn + "cat <&3 >out" + wait, []string{"echo", "hello"}, 0, "hello\n"},
		{"it reads nothing", "binary-v2", stubborn + ">out" + wait, []string{"yes"}, 137, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := parent.sub(t)
			dir := loggerScript(e, tt.logger)
			c := e.logged(fmt.Sprintf("c%d", i), logURI(tt.scheme, dir), nil, tt.args...)
			if tt.exit != 0 {
				wantBlocked(t, c)
				e.must(c.Kill(e.ctx, syscall.SIGKILL), "kill")
			}
			if got := c.exit(); got != tt.exit {
				t.Errorf("exit status = %d, want %d", got, tt.exit)
			}
			deleteInTime(t, c)
			wantFile(t, filepath.Join(dir, "out"), tt.out)
			text, err := os.ReadFile(filepath.Join(dir, "pid"))
			e.must(err, "pid of the logger")
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			e.must(err, "pid of the logger")
			if harness.Alive(pid) {
				t.Errorf("logger %d is alive after the Delete", pid)
			}
		})
	}
}

// deleteInTime deletes a process and fails the test when that takes 7 s.
func deleteInTime(t *testing.T, c interface{ delete() }) {
	t.Helper()
	began := time.Now()
	c.delete()
	took := time.Since(began)
	if took > 7*time.Second {
		t.Errorf("Delete took %v, want less than 7s", took)
	}
	t.Logf("Delete took %v", took)
}

// wantBlocked waits until the process cannot write any more.
func wantBlocked(t *testing.T, p *process) {
	t.Helper()
	harness.Eventually(t, "process blocked in a write", func() error {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", p.Pid()))
		if err == nil && strings.Contains(string(text), "pipe_write") {
			return nil
		}
		return fmt.Errorf("it waits in %q (%w)", text, err)
	})
}

func wantFile(t *testing.T, name, want string) {
	t.Helper()
	text, err := os.ReadFile(name)
	if got := string(text); err != nil || got != want {
		t.Errorf("%s has %d bytes, %.100q, %v, want %d, %.100q", name, len(got), got, err, len(want), want)
	}
}

// It begins to read when the process is long gone, and is not done with the last byte.
func TestLogger_SlowOneGetsAllOutputAndTimeToEnd(t *testing.T) {
	// The runc shim sends SIGTERM at the end of the output.
	harness.OursOnly(t, "that a logger is not cut off while it reads")
	e := newEnv(t)
	dir := loggerScript(e, "sleep 1\ncat <&3 >out\nsleep 1\necho end >>out")
	const n = 100000 // more than one pipe holds and less than two do
	c := e.logged("c1", logURI("binary-v2", dir), nil, "sh", "-c", fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x", n))
	c.wantExit(0)
	wantFile(t, filepath.Join(dir, "out"), strings.Repeat("x", n)+"end\n")
}

func TestTerminal_IsLoggedToAFileOrByALogger(t *testing.T) {
	parent := newEnv(t)
	for i, scheme := range []string{"file", "binary"} {
		t.Run(scheme, func(t *testing.T) {
			if scheme == "file" {
				harness.OursOnly(t, "a file for a terminal")
			}
			e := parent.sub(t)
			dir := loggerScript(e, "cat <&3 >out")
			path := map[string]string{"file": filepath.Join(dir, "out"), "binary": filepath.Join(dir, "log")}[scheme]
			terminal := cio.TerminalLogURI(&url.URL{Scheme: scheme, Path: path})
			c := e.logged(fmt.Sprintf("c%d", i), terminal, with(oci.WithTTY), "sh", "-c", "tty; echo err >&2")
			c.wantExit(0)
			text, err := os.ReadFile(filepath.Join(dir, "out"))
			e.must(err, "log")
			if got, want := string(text), "/dev/pts/0\r\nerr\r\n"; got != want {
				t.Errorf("log has %q, want %q", got, want)
			}
		})
	}
}
