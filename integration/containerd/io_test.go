// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/cio"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// The client decides how long to wait for it.
func TestExec_WhatItLeavesBehindHasTheOutputUntilDelete(t *testing.T) {
	// left writes on a signal, and records the outcome in a file.
	const left = `trap '' PIPE; until [ -e /tmp/go ]; do usleep 10000; done; echo late; echo $? >/tmp/late
		until [ -e /tmp/deleted ]; do usleep 10000; done; echo later; echo $? >/tmp/later; exec sleep 1000`
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	x := c.startExec("x", config{}, nil, "sh", "-c", "("+left+") & echo first")
	if got := x.exit(); got != 0 {
		t.Errorf("exit status of x = %d, want 0", got)
	}
	// Longer than the default of any client: Docker waits 2 s for such output.
	e.run("clock", config{}, "sleep", "3").wantExit(0)
	c.runExec("go", "touch", "/tmp/go")
	x.out.WaitFor(e, "late")
	c.wantSaid("late", "0")
	_, err := x.Delete(e.ctx) // it comes back, although what holds the output lives on
	e.must(err, "delete x")
	c.runExec("deleted", "touch", "/tmp/deleted")
	c.wantSaid("later", "1") // there is nothing to write to any more
	if got := x.out.String(); got != "first\nlate\n" {
		t.Errorf("output after Delete: %q, want first and late", got)
	}
	c.kill()
}

// wantSaid waits for a file in the container's /tmp that has one line.
func (t *task) wantSaid(name, want string) {
	t.e.Helper()
	t.runExec("said-"+name, "sh", "-c", fmt.Sprintf(`until [ -s /tmp/%[1]s ]; do usleep 10000; done
		read -r said </tmp/%[1]s; echo $said; test "$said" = %[2]s`, name, want))
}

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

func TestShim_WithIdleContainersDoesNotWakeUp(t *testing.T) {
	harness.OursOnly(t, "an idle shim that does not wake up")
	e := newEnv(t)
	_, pipe := typed(e)
	_, terminal := typed(e)
	// No run is under way, so nothing looks at its limits.
	limits := execLimits("wall-time=20s,cpu-time=10s,memory=64Mi,pids=20,output=1Ki")
	a := e.create("a", config{opts: with(inOneShim, limits), stdin: pipe}, "cat")
	b := e.create("b", config{opts: with(inOneShim), stdin: terminal, terminal: true}, "cat")
	for _, c := range []*task{a, b} {
		e.must(c.process.Start(e.ctx), "start")
	}
	e.asExec(a, "e1", nil, "sleep 0.1; echo ended").wantExit(0)
	shims := harness.Shims(e.namespace, "")
	if len(shims) != 1 {
		t.Fatalf("shims = %v, want one for both containers", shims)
	}
	harness.CheckAsleep(t, shims[0].Pid)
	a.kill()
	b.kill()
}

// Output goes to files and to logging binaries, which may take their time, but not longer than CRI waits for a Delete.
// The tests of pkg/stdio have what a logger may do wrong.
func TestStreams_OutputGoesToFilesAndLoggers(t *testing.T) {
	harness.OursOnly(t, "a Delete well below the 10 s that CRI waits") // the runc shim waits 12 s for such a logger
	parent := newEnv(t)
	const size = 100000 // more than one pipe holds and less than two do
	lines := fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; echo err >&2", size)
	const stubborn = "trap '' TERM\necho $$ >pid\nexec 6<>never\n" // with "read line <&6" it goes on for ever
	for name, tt := range map[string]struct {
		scheme, logger, script string
		terminal               bool
		want                   string
	}{
		"file":          {"file", "", lines, false, strings.Repeat("x", size) + "err\n"},
		"terminal":      {"file", "", "tty; echo err >&2", true, "/dev/pts/0\r\nerr\r\n"},
		"logger":        {"binary-v2", "sleep 1\ncat <&3 >out\nsleep 1\necho end >>out", lines, false, strings.Repeat("x", size) + "end\n"},
		"stays":         {"binary", stubborn + "cat <&3 >out\nread line <&6", "echo hello", false, "hello\n"},
		"reads-nothing": {"binary-v2", stubborn + ">out\nread line <&6", "exec yes", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := parent.sub(t)
			dir := e.TempDir()
			e.must(unix.Mkfifo(filepath.Join(dir, "never"), 0o600), "fifo")
			script := "#!/bin/sh\ncd " + dir + "\nprintf x >&5\nexec 5>&-\n" + tt.logger + "\n"
			e.must(os.WriteFile(filepath.Join(dir, "log"), []byte(script), 0o700), "script")
			where := &url.URL{Scheme: tt.scheme, Path: filepath.Join(dir, "log")}
			if tt.scheme == "file" {
				where.Path = filepath.Join(dir, "out")
			}
			cfg := config{io: cio.LogURI(where), terminal: tt.terminal}
			if tt.terminal {
				cfg.io = cio.TerminalLogURI(where)
			}
			c := e.run(name, cfg, "sh", "-c", tt.script)
			if tt.want == "" {
				wantBlocked(t, &c.process)
				e.must(c.process.Kill(e.ctx, syscall.SIGKILL), "kill")
			}
			c.exit()
			began := time.Now()
			c.delete()
			if took := time.Since(began); took > 7*time.Second {
				t.Errorf("Delete took %v, want less than 7s", took)
			}
			text, err := os.ReadFile(filepath.Join(dir, "out"))
			got := string(text)
			if before, after, ok := strings.Cut(got, "err\n"); ok { // two pipes end in a file, in any order
				got = before + after + "err\n"
			}
			if err != nil || got != tt.want {
				t.Errorf("the log has %d bytes, %.100q, %v, want %d, %.100q", len(got), got, err, len(tt.want), tt.want)
			}
			var pid int
			if text, err := os.ReadFile(filepath.Join(dir, "pid")); err == nil {
				_, err = fmt.Sscan(string(text), &pid)
				e.must(err, "pid of the logger")
				if harness.Alive(pid) {
					t.Errorf("logger %d is alive after the Delete", pid)
				}
			}
		})
	}
}

// containerd#13377, for readers that are there and do not read. Those of all outputs share the time that Delete gives
// them, also those of execs that nobody deleted, and no other container waits.
func TestDelete_StalledReadersDelayOnlyTheirContainer(t *testing.T) {
	harness.OursOnly(t, "a Delete well below the 10 s that CRI waits")
	e := newEnv(t)
	other := e.run("other", config{opts: with(inOneShim)}, "sleep", "1000")
	c := e.run("c1", config{io: e.deaf, opts: with(inOneShim)}, "yes")
	wantBlocked(t, &c.process)
	for i := range 3 {
		x := c.startExec(fmt.Sprintf("x%d", i), config{io: e.deaf}, nil, "yes")
		wantBlocked(t, x)
		defer x.closeIO()
	}
	if shims := harness.Shims(e.namespace, ""); len(shims) != 1 {
		t.Fatalf("shims = %v, want one for both containers", shims)
	}
	e.must(c.process.Kill(e.ctx, syscall.SIGKILL), "kill")
	if got := c.exit(); got != 137 {
		t.Errorf("exit status = %d, want 137", got)
	}
	began, deleted := time.Now(), make(chan error, 1)
	go func() { _, err := c.Task.Delete(e.ctx); deleted <- err }()
	var slowest time.Duration
	for i := 0; ; i++ {
		start := time.Now()
		other.runExec(fmt.Sprintf("e%d", i), "echo", "hello")
		slowest = max(slowest, time.Since(start))
		select {
		case err := <-deleted:
			took := time.Since(began)
			if err != nil || took > 8*time.Second || slowest > 3*time.Second {
				t.Errorf("Delete = %v after %v, want less than 8s; an exec in the other container took %v", err, took, slowest)
			}
			other.kill()
			return
		default:
		}
	}
}

// typed is a keyboard: what a test writes to the first is what the container reads. It ends with the test.
func typed(e *env) (*io.PipeWriter, io.Reader) {
	r, w := io.Pipe()
	e.Cleanup(func() { _ = w.Close() })
	return w, r
}

func (e *env) typeLine(w io.Writer, line string) {
	e.Helper()
	_, err := io.WriteString(w, line+"\n")
	e.must(err, "type "+line)
}

func TestTerminal_HasItsSizeAndEachChange(t *testing.T) {
	e := newEnv(t)
	keyboard, stdin := typed(e)
	c := e.create("c1", config{stdin: stdin, terminal: true}, "sh")
	e.must(c.Resize(e.ctx, 132, 43), "resize before start")
	e.must(c.process.Start(e.ctx), "start")
	e.typeLine(keyboard, "tty; stty size")
	c.out.WaitFor(t, "/dev/pts/0")
	c.out.WaitFor(t, "43 132")
	e.must(c.Resize(e.ctx, 100, 50), "resize")
	e.typeLine(keyboard, "stty size")
	c.out.WaitFor(t, "50 100")
	e.typeLine(keyboard, "exit 4")
	c.wantExit(4)
	e.wantEvents("c1", "create c1 | start c1 | exit c1 4 | delete c1")
}
