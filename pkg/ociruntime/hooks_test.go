// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

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
	if err := b.Destroy(); err != nil {
		t.Errorf("Destroy: %v", err)
	}
	if data, err := os.ReadFile(note(c, "log")); string(data) != "second\n" {
		t.Errorf("the hook after the failing one left %q, %v, want %q", data, err, "second\n")
	}
	// Create undoes what it did in the same way.
	bad := newConfig(t, "nope")
	bad.Spec.Hooks = &specs.Hooks{Poststop: []specs.Hook{shell("exit 3")}}
	if _, err := tryCreate(t, t.Context(), bad); err == nil || strings.Contains(err.Error(), "undo") {
		t.Errorf("Create = %v, want only why the program does not run", err)
	}
}

// interrupted is a Create whose context ends when entered exists, or has ended
// before if that is empty. It returns how long Create went on after that.
func interrupted(t *testing.T, c process.Config, entered string) time.Duration {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan time.Time, 1)
	if entered == "" {
		cancel()
		ended <- time.Now()
	} else {
		go func() {
			defer cancel()
			tick := time.NewTicker(time.Millisecond) // polled, since a hook cannot tell in another way
			defer tick.Stop()
			for end := time.Now().Add(10 * time.Second); time.Now().Before(end); <-tick.C {
				if _, err := os.Stat(entered); err == nil {
					break
				}
			}
			ended <- time.Now()
		}()
	}
	_, err := tryCreate(t, ctx, c)
	took := time.Since(<-ended)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Create whose context ended = %v, want that it was cancelled", err)
	}
	wantNothingLeft(t, c)
	return took
}

func TestCreate_EndsWithItsContext(t *testing.T) {
	const sleep = "exec sleep 4"
	for _, tc := range []struct {
		name string
		set  func(h *specs.Hooks, l []specs.Hook)
		late bool // the context ends while the hook runs, and not before Create
	}{
		{"a createContainer hook hangs", func(h *specs.Hooks, l []specs.Hook) { h.CreateContainer = l }, true},
		{"a createRuntime hook hangs, and the context has ended before", func(h *specs.Hooks, l []specs.Hook) { h.CreateRuntime = l }, false},
		{"a createContainer hook hangs, and the context has ended before", func(h *specs.Hooks, l []specs.Hook) { h.CreateContainer = l }, false},
		{"nothing hangs, and the context has ended before", func(*specs.Hooks, []specs.Hook) {}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wantNoLeaks(t)
			c := newConfig(t, "true")
			entered := note(c, "entered")
			c.Spec.Hooks = &specs.Hooks{}
			tc.set(c.Spec.Hooks, []specs.Hook{shell("echo $$ > " + entered + ".new; mv " + entered + ".new " + entered + "; " + sleep)})
			event := entered
			if !tc.late {
				event = ""
			}
			if took := interrupted(t, c, event); took > 2*time.Second {
				t.Errorf("Create went on for %v after its context had ended", took)
			}
			if data, err := os.ReadFile(entered); err == nil {
				pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
				testx.Must(t, err)
				if pid > 1 && unix.Kill(pid, 0) == nil {
					cmdline, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline") // gone is as good
					if strings.HasPrefix(string(cmdline), "sleep\x004") {
						t.Errorf("the hook, process %d, still runs", pid)
						_ = unix.Kill(pid, unix.SIGKILL) // the test's own
					}
				}
			}
		})
	}
}
