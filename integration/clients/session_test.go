// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/script"
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

// session is one run of a case with one runtime.
type session struct {
	*dockerd // nil with other clients
	*script.Session
	daemon  daemon
	runtime string // as docker run --runtime has it
}

// play runs a case with a runtime, and cleans up. It returns what was seen.
func play(ctx context.Context, d daemon, c clientCase, runtime string) (account string, err error) {
	played.Add(1)
	dir, err := os.MkdirTemp(d.place(), "w")
	if err != nil {
		return "", err
	}
	s := &session{
		Session: &script.Session{Context: ctx, Dir: dir, Limit: harness.Slow(3 * time.Minute)},
		daemon:  d, runtime: runtime,
	}
	s.Environ = s.environ
	s.dockerd, _ = d.(*dockerd)
	err = s.Run(func() {
		s.Must(os.Chmod(dir, 0o755), "directory of the case")
		if c.run != nil {
			c.run(s)
		}
		if got := s.Shell(c.script); got != c.want {
			s.Fatalf("output is %q, want %q", got, c.want)
		}
		d.inspect(s)
	})
	err = errors.Join(err, s.cleanUp())
	return s.plain(s.Account()), err
}

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
	return errors.Join(err, left, os.RemoveAll(s.Session.Dir))
}

func beyond(before, now []string) []string {
	return slices.DeleteFunc(now, func(leak string) bool { return slices.Contains(before, leak) })
}

// What differs between any two runs.
var volatile = []script.Replacement{
	{Pattern: regexp.MustCompile(`\b[0-9a-f]{64}\b`), By: "<id>"},
	{Pattern: regexp.MustCompile(`\b[0-9a-f]{12}\b`), By: "<short id>"},
	{Pattern: regexp.MustCompile(`\b[0-9a-f]{2}(:[0-9a-f]{2}){5}\b`), By: "<mac>"},
	{Pattern: regexp.MustCompile(`(?m)^time=.* msg="forward signal.*\n`), By: ""}, // nerdctl's, of one that comes at the end
	{Pattern: regexp.MustCompile(`FATA\x1b\[0m\[\d{4}\]`), By: "FATA[<seconds>]"},
	{Pattern: regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)`), By: "<time>"},
}

func (s *session) plain(text string) string {
	return script.Replace(strings.ReplaceAll(text, filepath.Base(s.Session.Dir), "<dir>"), volatile)
}
