// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/process"
)

// shell is a hook. The state that it gets on stdin is read, or writing it
// could fail.
func shell(script string) specs.Hook {
	return specs.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", "cat >/dev/null; " + script}}
}

// note is the path of a file beside the bundle.
func note(c process.Config, name string) string { return filepath.Join(filepath.Dir(c.Bundle), name) }

// A hook is a child that libcontainer waits for. The reaper, which runs beside
// it and is woken by other children that die, must not collect it first.
func TestHooks_TheReaperLeavesThemAlone(t *testing.T) {
	wantNoLeaks(t)
	b := create(t, newConfig(t, "sh", "-c", "while :; do true; sleep 0.001; done")).start()
	for range 10 {
		c := newConfig(t, "true")
		log := note(c, "log")
		orphans := "(true &) ; (true &) ; "
		c.Spec.Hooks = &specs.Hooks{
			Prestart:        []specs.Hook{shell(orphans + "echo prestart >> " + log)}, //nolint:staticcheck // deprecated, and still in use
			CreateRuntime:   []specs.Hook{shell(orphans + "echo createRuntime >> " + log)},
			CreateContainer: []specs.Hook{shell(orphans + "echo createContainer >> " + log)},
			Poststop:        []specs.Hook{shell(orphans + "echo poststop >> " + log)},
		}
		h := create(t, c).start()
		if got := h.wait().Status; got != 0 {
			t.Errorf("status = %d, want 0", got)
		}
		if err := h.Destroy(); err != nil {
			t.Errorf("Destroy: %v", err)
		}
		if got, want := testx.Read(t, log), "prestart\ncreateRuntime\ncreateContainer\npoststop\n"; got != want {
			t.Errorf("hooks that ran = %q, want %q", got, want)
		}
	}
	testx.Must(t, b.Init().Signal(syscall.SIGKILL))
}

func TestHooks_FailureFailsCreate(t *testing.T) {
	for _, tc := range []struct {
		name string
		set  func(*specs.Hooks, []specs.Hook)
	}{
		{"createRuntime", func(h *specs.Hooks, l []specs.Hook) { h.CreateRuntime = l }},
		{"createContainer", func(h *specs.Hooks, l []specs.Hook) { h.CreateContainer = l }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wantNoLeaks(t)
			c := newConfig(t, "true")
			c.Spec.Hooks = &specs.Hooks{}
			tc.set(c.Spec.Hooks, []specs.Hook{shell("echo reason >&2; exit 3")})
			_, err := tryCreate(t, t.Context(), c)
			testx.WantText(t, err, "exit status 3", "reason")
		})
	}
}

// The specification has the runtime log what a poststop hook does wrong, and go
// on (runtime.md, Lifecycle): a container must be possible to delete.
func TestHooks_FailingPoststopDoesNotKeepTheContainer(t *testing.T) {
	c := newConfig(t, "true")
	c.Spec.Hooks = &specs.Hooks{Poststop: []specs.Hook{shell("exit 3"), shell("echo second >> " + note(c, "log"))}}
	b := create(t, c).start()
	b.wait()
	testx.Must(t, b.Destroy())
	if got := testx.Read(t, note(c, "log")); got != "second\n" {
		t.Errorf("the hook after the failing one left %q, want %q", got, "second\n")
	}
	// Create undoes what it did in the same way.
	bad := newConfig(t, "nope")
	bad.Spec.Hooks = &specs.Hooks{Poststop: []specs.Hook{shell("exit 3")}}
	if _, err := tryCreate(t, t.Context(), bad); err == nil || strings.Contains(err.Error(), "undo") {
		t.Errorf("Create = %v, want only why the program does not run", err)
	}
}

func TestCreate_EndsWithItsContext(t *testing.T) {
	for _, tc := range []struct {
		name string
		set  func(h *specs.Hooks, l []specs.Hook) // nil: nothing hangs
		late bool                                 // the context ends while the hook runs, and not before Create
	}{
		{"a createContainer hook hangs", func(h *specs.Hooks, l []specs.Hook) { h.CreateContainer = l }, true},
		{"a createRuntime hook would hang", func(h *specs.Hooks, l []specs.Hook) { h.CreateRuntime = l }, false},
		{"a createContainer hook would hang", func(h *specs.Hooks, l []specs.Hook) { h.CreateContainer = l }, false},
		{"no hook", nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wantNoLeaks(t)
			c := newConfig(t, "true")
			entered := note(c, "entered")
			c.Spec.Hooks = &specs.Hooks{}
			if tc.set != nil {
				tc.set(c.Spec.Hooks, []specs.Hook{shell(enters(entered) + "exec sleep 1000")})
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			if !tc.late {
				cancel()
			}
			go func() {
				_, err := tryCreate(t, ctx, c)
				done <- err
			}()
			if tc.late {
				testx.Eventually(t, "the hook", func() bool { return testx.Exists(entered) })
				cancel()
			}
			testx.WantError(t, <-done, context.Canceled)
			wantNothingLeft(t, c)
			data, err := os.ReadFile(entered)
			if err != nil {
				return // the hook did not run
			}
			pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
			testx.Must(t, err)
			cmdline, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline") // gone is as good
			if pid > 1 && strings.HasPrefix(string(cmdline), "sleep\x001000") {
				t.Errorf("the hook, process %d, still runs", pid)
				_ = unix.Kill(pid, unix.SIGKILL) // the test's own
			}
		})
	}
}

// enters is the part of a hook that makes a file with its pid, at once.
func enters(path string) string {
	return "echo $$ > " + path + ".new; mv " + path + ".new " + path + "; "
}
