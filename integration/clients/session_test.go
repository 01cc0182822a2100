// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"sandbox.internal/shim/integration/harness"
)

// daemon is what a kind of client talks to. One goroutine at a time may use it.
type daemon interface {
	kind() string                    // of client
	versions() string                // of what runs, for the table
	place() string                   // a directory for those of cases
	environ(runtime string) []string // of scripts, beside what all have; PATH is what comes before theirs
	inspect(s *session)              // puts what the client says of what is there into the account
	clean(ctx context.Context) error // removes what a case left, as a user would
	left() []string                  // what is there although nothing should be, after clean
	remove() error                   // removes that
	logs() string                    // the end of what it wrote
}

// session is one run of a case with one runtime. Its methods end it when something is not as the case wants it.
type session struct {
	*dockerd // nil with other clients
	daemon   daemon
	ctx      context.Context //nolint:containedctx // a session is one call
	runtime  string          // as docker run --runtime has it
	dir      string          // $W of scripts
	account  strings.Builder
}

// failure is what ends a session.
type failure struct{ error }

func (s *session) fatalf(format string, arg ...any) { panic(failure{fmt.Errorf(format, arg...)}) }

func (s *session) must(err error, what string) {
	if err != nil {
		s.fatalf("%s: %w", what, err)
	}
}

// play runs a case with a runtime, and cleans up. It returns what was seen.
func play(ctx context.Context, d daemon, c clientCase, runtime string) (account string, err error) {
	played.Add(1)
	dir, err := os.MkdirTemp(d.place(), "w")
	if err != nil {
		return "", err
	}
	s := &session{ctx: ctx, daemon: d, runtime: runtime, dir: dir}
	s.dockerd, _ = d.(*dockerd)
	func() {
		defer func() {
			switch p := recover().(type) {
			case nil:
			case failure:
				err = p.error
			default:
				panic(p)
			}
		}()
		s.must(os.Chmod(dir, 0o755), "directory of the case")
		if c.run != nil {
			c.run(s)
		}
		if got := s.shell(c.script); got != c.want {
			s.fatalf("output is %q, want %q", got, c.want)
		}
		d.inspect(s)
	}()
	err = errors.Join(err, s.cleanUp())
	return s.plain(s.account.String()), err
}

// shell runs a script that must succeed, and returns its output.
func (s *session) shell(script string) string {
	stdout, stderr := s.sh(script)
	fmt.Fprintf(&s.account, "%s\n%s\n", stdout, stderr)
	return stdout
}

// quiet is shell with an output that differs each time.
func (s *session) quiet(script string) string {
	stdout, _ := s.sh(script)
	return strings.TrimSpace(stdout)
}

func (s *session) sh(script string) (stdout, stderr string) {
	ctx, cancel := context.WithTimeout(s.ctx, harness.Slow(3*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-euc", script)
	cmd.Env = append(s.environ(), "W="+s.dir)
	cmd.Dir = s.dir
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		s.fatalf("script: %w (%v)\nstdout: %sstderr: %s", err, ctx.Err(), out.Bytes(), errs.Bytes())
	}
	return out.String(), errs.String()
}

// environ is that of a user's shell.
func (s *session) environ() []string {
	patience := harness.Slow(time.Minute) / time.Second
	env := []string{
		"LC_ALL=C", "TERM=dumb", "RUNTIME=" + s.runtime, fmt.Sprintf("PATIENCE=%d", patience),
		fmt.Sprintf("SLOWNESS=%d", harness.Slowness()),
	}
	return append(env, s.daemon.environ(s.runtime)...)
}

// cleanUp removes what the case left, and returns what is there then, which it removes, too.
func (s *session) cleanUp() error {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Slow(2*time.Minute))
	defer cancel()
	err := s.daemon.clean(ctx)
	left := harness.PollFor(harness.Slow(15*time.Second), func() error {
		if more := s.daemon.left(); len(more) > 0 {
			return fmt.Errorf("left behind:\n\t%s", strings.Join(more, "\n\t"))
		}
		return nil
	})
	if left != nil {
		left = errors.Join(left, s.daemon.remove())
	}
	return errors.Join(err, left, os.RemoveAll(s.dir))
}

// beyond is what is in now and not in before.
func beyond(before, now []string) []string {
	return slices.DeleteFunc(now, func(leak string) bool { return slices.Contains(before, leak) })
}

// What differs between any two runs.
var volatile = []struct {
	pattern *regexp.Regexp
	plain   string
}{
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "<id>"},
	{regexp.MustCompile(`\b[0-9a-f]{12}\b`), "<short id>"},
	{regexp.MustCompile(`\b[0-9a-f]{2}(:[0-9a-f]{2}){5}\b`), "<mac>"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)`), "<time>"},
}

func (s *session) plain(text string) string {
	text = strings.ReplaceAll(text, filepath.Base(s.dir), "<dir>")
	for _, v := range volatile {
		text = v.pattern.ReplaceAllString(text, v.plain)
	}
	return text
}
