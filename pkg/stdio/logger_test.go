// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/internal/testx"
)

// logged is an env whose output goes to a logging binary.
type logged struct {
	*env
	to string
}

func newLogged(t *testing.T, scheme, mode string, change func(*Config)) *logged {
	t.Helper()
	checkLeaks(t)
	to := filepath.Join(t.TempDir(), "log")
	uri := loggerURI(t, scheme, mode, to)
	c := Config{Stdout: uri, Stderr: uri, ID: "c1", Host: NewHost("ns", newFakeChildren(t))}
	if change != nil {
		change(&c)
	}
	return &logged{&env{t, mustOpen(t, c), ""}, to}
}

// want compares a file that the binary wrote.
func (l *logged) want(suffix, want string) {
	l.t.Helper()
	if b, err := os.ReadFile(l.to + "." + suffix); err != nil || string(b) != want {
		l.t.Errorf("%s holds %q, %v, want %q", suffix, abbreviate(b), err, abbreviate([]byte(want)))
	}
}

func (l *logged) drain() {
	l.t.Helper()
	if err := l.Drain(l.t.Context()); err != nil {
		l.t.Errorf("Drain() = %v, want nil", err)
	}
}

// Whoever starts the shim with a strict umask has logs that only root reads.
func TestOpen_LogsHaveTheUmaskOfWhoStartedTheShim(t *testing.T) {
	defer unix.Umask(unix.Umask(0o022))
	dir := filepath.Join(t.TempDir(), "made")
	c := Config{Stdout: "file://" + dir + "/log", Host: NewHost("ns", newFakeChildren(t))}
	c.Host.Umask = 0o077
	mustOpen(t, c)
	for path, want := range map[string]os.FileMode{dir: 0o700, dir + "/log": 0o600} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want mode %v", path, st, err, want)
		}
	}
}

func TestLogger_GetsBothOutputsAndHasEndedAfterDrain(t *testing.T) {
	tests := []struct{ name, scheme, mode string }{
		{"binary that writes a byte", "binary", "copy"},
		{"binary that only closes", "binary", "closes-only"},
		{"binary-v2", "binary-v2", "copy"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLogged(t, tt.scheme, tt.mode, nil)
			text := pattern(1 << 20)
			in := filepath.Join(t.TempDir(), "in")
			testx.Must(t, os.WriteFile(in, []byte(text), 0o600))
			if err := l.run("sh", "-c", "cat "+in+"; echo err >&2").Wait(); err != nil {
				t.Fatal(err)
			}
			l.drain()
			l.want("out", text)
			l.want("err", "err\n")
			l.want("done", "")
		})
	}
}

func TestLogger_GetsStderrWhateverStderrNames(t *testing.T) {
	for _, stderr := range []string{"", "/nonexistent"} {
		t.Run(strconv.Quote(stderr), func(t *testing.T) {
			l := newLogged(t, "binary", "copy", func(c *Config) { c.Stderr = stderr })
			testx.Must(t, l.run("sh", "-c", "echo err >&2").Wait())
			l.drain()
			l.want("err", "err\n")
		})
	}
}

func TestLogger_GetsNothingElse(t *testing.T) {
	t.Setenv("SECRET", "of the shim")
	l := newLogged(t, "binary", "tells", func(c *Config) { c.Stdout += "&tplain&z=%26%3D+x&z=2" })
	testx.Eventually(t, "the binary is done", func() bool { _, err := os.Stat(l.to + ".done"); return err == nil })
	l.want("seen", fmt.Sprintf("env %q\nargs %q\nfds %q\n",
		[]string{"CONTAINER_ID=c1", "CONTAINER_NAMESPACE=ns"},
		[]string{loggerArg, "tells", "to", l.to, "tplain", "", "z", "&= x"},
		append([]string{"0", "1", "2", "3", "4"}, inherited(t)...)))
}

// inherited are the descriptors that this test was started with and that every child of it gets.
func inherited(t *testing.T) (fds []string) {
	t.Helper()
	for _, line := range openFDs() {
		fd, _, _ := strings.Cut(line, " ")
		n, err := strconv.Atoi(fd)
		testx.Must(t, err)
		if flags, err := unix.FcntlInt(uintptr(n), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 && n > 5 {
			fds = append(fds, fd)
		}
	}
	return fds
}

func TestLogger_ThatDoesNotGetReadyLeavesNothing(t *testing.T) {
	tests := []struct {
		name, scheme, mode string
		class              error
		want               string
	}{
		{"it ends without the byte", "binary-v2", "crash", errdefs.ErrFailedPrecondition, `closed descriptor 5 without the byte that says it is ready \(exit status 3\): failed precondition`},
		{"it closes without the byte", "binary-v2", "closes-only", errdefs.ErrFailedPrecondition, `closed descriptor 5 without the byte that says it is ready \(signal: killed\): failed precondition`},
		{"it gives no sign", "binary", "never-ready", context.DeadlineExceeded, `not ready: no sign on descriptor 5: context deadline exceeded`},
		{"it gives no sign of version 2", "binary-v2", "never-ready", context.DeadlineExceeded, `not ready: no sign on descriptor 5: context deadline exceeded`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			checkLeaks(t)
			host := NewHost("ns", newFakeChildren(t))
			if tt.mode == "never-ready" {
				host.bounds.ready = 50 * time.Millisecond
			}
			uri := loggerURI(t, tt.scheme, tt.mode, filepath.Join(t.TempDir(), "log"))
			s, err := Open(t.Context(), Config{Stdout: uri, Stderr: uri, Host: host}, idmap.Owner{})
			if s != nil || !errors.Is(err, tt.class) {
				t.Fatalf("Open() = %v, %v, want class %v", s, err, tt.class)
			}
			want := regexp.QuoteMeta(fmt.Sprintf("stdout %q: logging binary %q: ", uri, os.Args[0])) + tt.want
			if !regexp.MustCompile("^" + want + "$").MatchString(err.Error()) {
				t.Errorf("error\n got %v\nwant %v", err, want)
			}
		})
	}
}

func TestLogger_ProcessOutlivesIt(t *testing.T) {
	tests := []struct{ name, mode, script, out string }{
		{"one that dies", "die", "echo first; until [ -e GO ]; do :; done; i=0; while [ $i -lt 20000 ]; do echo 0123456789; echo err >&2; i=$((i+1)); done; echo end", "first\n"},
		{"one that closed stderr", "half-deaf", "i=0; while [ $i -lt 20000 ]; do echo err >&2; i=$((i+1)); done; echo end", "end\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLogged(t, "binary-v2", tt.mode, nil)
			gate := filepath.Join(t.TempDir(), "go")
			cmd := l.run("sh", "-c", string(bytes.ReplaceAll([]byte(tt.script), []byte("GO"), []byte(gate))))
			if tt.mode == "die" {
				within(t, "the logging binary", func() { <-l.binary.exited })
				testx.Must(t, os.WriteFile(gate, nil, 0o600))
			}
			within(t, "the process", func() {
				if err := cmd.Wait(); err != nil {
					t.Errorf("process: %v, want that it ends by itself", err)
				}
			})
			within(t, "Drain", func() {
				if err := l.Drain(t.Context()); !errors.Is(err, errdefs.ErrDataLoss) {
					t.Errorf("Drain() = %v, want ErrDataLoss", err)
				}
			})
			l.want("out", tt.out)
		})
	}
}

// A process that a container leaves behind keeps stderr open. The binary ends with Close, and what stdout brought is
// not lost.
func TestLogger_DrainDoesNotWaitForOneThatAGrandchildKeeps(t *testing.T) {
	l := newLogged(t, "binary-v2", "copy", nil)
	cmd := l.run("sh", "-c", "sleep 1000 >/dev/null & echo $! >"+l.to+".pid; echo hello")
	testx.Must(t, cmd.Wait())
	l.drainAsDelete()
	within(t, "Close", func() { _ = l.Close() })
	l.want("out", "hello\n")
	l.want("done", "")
	b, err := os.ReadFile(l.to + ".pid")
	testx.Must(t, err)
	pid, err := strconv.Atoi(string(bytes.TrimSpace(b)))
	testx.Must(t, err)
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Error(err)
	}
}

func TestLogger_OfATerminal(t *testing.T) {
	l := newLogged(t, "binary-v2", "copy", func(c *Config) { c.Terminal, c.Stderr = true, "" })
	slave := openSlave(t, l.attach())
	l.started()
	write(t, slave, "hello\n")
	slave.Close()
	within(t, "Drain", l.drain)
	l.want("out", "hello\r\n")
	l.want("err", "")
	l.want("done", "")
}

func TestBinaryArgs(t *testing.T) {
	tests := []struct {
		name, query string
		want        []string
	}{
		{"no query", "", nil},
		{"each key and its value", "b=2&a=1", []string{"a", "1", "b", "2"}},
		{"a key without value", "a&b=", []string{"a", "", "b", ""}},
		{"the first value of a key", "a=1&b=2&a=3", []string{"a", "1", "b", "2"}},
		{"escapes", "-c=printf%20x%20%3E%265&%3D=a+b", []string{"-c", "printf x >&5", "=", "a b"}},
		{"empty pairs", "&&a=1&", []string{"a", "1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parse("binary:///log?" + tt.query)
			if diff := cmp.Diff(tt.want, got.args); err != nil || diff != "" {
				t.Errorf("parse(%q), %v (-want +got):\n%s", tt.query, err, diff)
			}
		})
	}
}
