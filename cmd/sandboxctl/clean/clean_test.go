// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clean

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/shim/cmd/sandboxctl/cli"
	"sandbox.internal/shim/cmd/sandboxctl/leftover"
	"sandbox.internal/shim/cmd/sandboxctl/removal"
)

// node has a socket on which nobody listens, and a shim that is left.
type node struct {
	*testing.T
	socket string
	list   []leftover.Leftover
	later  []leftover.Leftover // what there is after a removal
	out    strings.Builder
	err    strings.Builder
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{T: t, socket: filepath.Join(t.TempDir(), "s")}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: n.socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	n.list = []leftover.Leftover{
		{Kind: leftover.Sockets, Path: n.socket, Text: n.socket + ": nobody\x1b[2J listens", Fix: "rm -- " + n.socket},
		{Kind: leftover.Shims, Pid: 4711, Text: "the shim of c", Keep: "it has 1 processes", Fix: "kill -TERM 4711"},
	}
	return n
}

func (n *node) run(answer, output string) error {
	s := Session{
		Remover: removal.Remover{Look: func(context.Context) ([]leftover.Leftover, error) {
			if _, err := os.Lstat(n.socket); err != nil {
				return n.later, nil
			}
			return n.list, nil
		}},
		Options: &cli.Options{Output: output}, Out: &n.out, Err: &n.err,
	}
	if answer != "" {
		s.Ask = strings.NewReader(answer)
	}
	return s.Run(n.Context(), n.list)
}

func (n *node) removed() bool {
	_, err := os.Lstat(n.socket)
	return errors.Is(err, os.ErrNotExist)
}

func TestRun_AsksOnceAndShowsAll(t *testing.T) {
	for answer, want := range map[string]bool{"y\n": true, "YES\n": true, "y": true, "n\n": false, "\n": false, "yy\n": false, "no, why?\n": false} {
		n := newNode(t)
		n.later = n.list[1:]
		err := n.run(answer, cli.TableOutput)
		if exit, _ := errors.AsType[cli.Exit](err); n.removed() != want || err == nil || (exit == ExitLeft) != want {
			t.Errorf("%q: removed: %t, %v, want %t and an error", answer, n.removed(), err, want)
		}
		for _, text := range []string{"nobody\ufffd[2J listens", "the shim of c", "it has 1 processes", "kill -TERM 4711"} {
			if !strings.Contains(n.out.String(), text) {
				t.Errorf("%q: it shows\n%swithout %q", answer, &n.out, text)
			}
		}
		if got := n.err.String(); got != "Remove the 1 not marked \"left\"? [y/N] " {
			t.Errorf("%q: the question is %q", answer, got)
		}
	}
}

func TestRun_SaysWhatBecameOfEach(t *testing.T) {
	n := newNode(t)
	n.later = append(n.list[1:2:2], leftover.Leftover{Kind: leftover.Mounts, Path: "/new", Fix: "umount /new"})
	if err := n.run("", cli.JSONOutput); err != cli.Exit(ExitLeft) { //nolint:errorlint // it is not wrapped
		t.Errorf("Run = %v, want status %d", err, ExitLeft)
	}
	var r struct {
		Removed, Left []struct{ Check, Reason, Fix string }
	}
	if err := json.Unmarshal([]byte(n.out.String()), &r); err != nil {
		t.Fatalf("%v: %s", err, &n.out)
	}
	if len(r.Removed) != 1 || r.Removed[0].Check != "leftover-sockets" {
		t.Errorf("removed %+v, want the socket", r.Removed)
	}
	if len(r.Left) != 2 || r.Left[0].Reason != "it has 1 processes" || !strings.Contains(r.Left[1].Reason, "none before") || r.Left[1].Fix == "" {
		t.Errorf("left %+v, want the shim and what is new", r.Left)
	}
	if n.err.Len() > 0 {
		t.Errorf("it asks %q", &n.err)
	}
}

func TestRun_WhatCannotBeRemovedIsLeft(t *testing.T) {
	n := newNode(t)
	n.list = n.list[:1]
	if err := os.Remove(n.socket); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", n.socket); err != nil {
		t.Fatal(err)
	}
	err := n.run("", cli.TableOutput)
	if exit, _ := errors.AsType[cli.Exit](err); exit != ExitLeft || !strings.Contains(n.out.String(), "is no socket") || !strings.Contains(n.out.String(), "fix:") {
		t.Errorf("Run = %v, and says\n%s\nwant status %d and the reason", err, &n.out, ExitLeft)
	}
}

func TestRun_NothingIsLeft(t *testing.T) {
	n := newNode(t)
	n.list = n.list[:1]
	if err := n.run("", cli.TableOutput); err != nil || !n.removed() || !strings.Contains(n.out.String(), "removed: leftover-sockets") {
		t.Errorf("Run = %v, and says\n%s", err, &n.out)
	}
	n.list = nil
	if err := n.run("", cli.TableOutput); err != nil || !strings.Contains(n.out.String(), "no shim left anything") {
		t.Errorf("Run = %v, and says\n%s", err, &n.out)
	}
}

func TestRun_WhatIsNoLeftoverAnyMoreIsNotRemoved(t *testing.T) {
	for output, want := range map[string]string{
		cli.TableOutput: "gone:    leftover-sockets %s is no leftover any more\n",
		cli.JSONOutput:  `"removed":[],"gone":[{"check":"leftover-sockets","path":"%s",`,
	} {
		n := newNode(t)
		none := func(context.Context) ([]leftover.Leftover, error) { return nil, nil }
		s := Session{Remover: removal.Remover{Look: none}, Options: &cli.Options{Output: output}, Out: &n.out, Err: &n.err}
		err := s.Run(t.Context(), n.list[:1])
		got := n.out.String()
		if output == cli.JSONOutput {
			got = strings.Join(strings.Fields(got), "")
		}
		if want := fmt.Sprintf(want, n.socket); err != nil || n.removed() || !strings.Contains(got, want) || strings.Contains(got, "removed:") {
			t.Errorf("Run = %v, removed: %t, and says\n%s\nwant %q", err, n.removed(), &n.out, want)
		}
	}
}

// What was removed is told even if it cannot be seen what is left.
func TestRun_TheLastLookFails(t *testing.T) {
	n := newNode(t)
	broken := errors.New("containerd does not answer")
	look := func(context.Context) ([]leftover.Leftover, error) {
		if n.removed() {
			return nil, broken
		}
		return n.list, nil
	}
	s := Session{Remover: removal.Remover{Look: look}, Options: &cli.Options{Output: cli.JSONOutput}, Out: &n.out, Err: &n.err}
	err := s.Run(t.Context(), n.list[:1])
	var r Report
	if decodeErr := json.Unmarshal([]byte(n.out.String()), &r); !errors.Is(err, broken) || decodeErr != nil || len(r.Removed) != 1 {
		t.Errorf("Run = %v, and says %q (%v), want %v and what was removed", err, &n.out, decodeErr, broken)
	}
}
