// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// testLength is how long the rounds of the test go on; the last one may take longer.
var testLength = harness.Slow(90 * time.Second)

// A short part of a campaign, with more faults than usual, always the same: a failure that it shows can be looked at.
func TestCampaign_FindsNothing(t *testing.T) {
	harness.OursOnly(t, "all of P1 to P7")
	mix := DefaultMix()
	mix.Daemon, mix.Shim, mix.Process, mix.Stop, mix.Pod = 6, 12, 30, 12, 8
	sum := Totals{}
	began := time.Now()
	ctx, enough := context.WithCancel(t.Context())
	defer enough()
	w := Worker{Programs: programs, Isolation: isolation, Seed: 1, Mix: mix}
	err := w.Work(ctx, func(r Report) {
		sum.Add(r.Totals)
		if r.Failure != nil {
			t.Errorf("%v\n%s", *r.Failure, r.Failure.Log)
		} else if time.Since(began) > testLength {
			enough()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(sum)
	if sum["containers"] == 0 || sum["execs"] == 0 || sum["events"] == 0 {
		t.Errorf("totals = %v, want containers, execs and events", sum)
	}
}

// If check missed something that was left behind, no campaign could fail because of it.
func TestCheck_FindsWhatIsLeftBehind(t *testing.T) {
	e, err := NewEnv(t.Context(), programs, isolation, fmt.Sprintf("%d-check", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	if found := e.check(t.Context()); len(found) > 0 {
		t.Fatalf("check of nothing = %v", found)
	}
	goneLimit = 100 * time.Millisecond // nothing of what follows goes
	t.Cleanup(func() { goneLimit = harness.Slow(15 * time.Second) })

	wantFound(t, e, Leak, "mount "+e.bundle("left"), func() {
		must(t, os.Mkdir(e.bundle("left"), 0o755))
		must(t, harness.Mount("none", e.bundle("left"), "tmpfs", 0))
	}, func() {
		must(t, unix.Unmount(e.bundle("left"), unix.MNT_DETACH))
		must(t, os.Remove(e.bundle("left")))
	})
	fifo := filepath.Join(e.daemon.Fifos, "left")
	wantFound(t, e, Leak, "file "+fifo, func() { must(t, unix.Mkfifo(fifo, 0o600)) }, func() { must(t, os.Remove(fifo)) })
	wantFound(t, e, Leak, "left", func() {
		_, err := e.record(e.namespaced(t.Context()), "left", "")
		must(t, err)
	}, func() { must(t, e.forgetRecord(e.namespaced(t.Context()), "left")) })
	lostProcess(t, e)

	// A bystander that somebody else's step killed.
	wantFound(t, e, Harmed, e.stayers[0].id, func() { must(t, unix.Kill(e.stayers[0].shim, unix.SIGKILL)) }, func() {})
}

func lostProcess(t *testing.T, e *Env) {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.Dir = e.daemon.Fifos // as a process of a container whose root is there
	wantFound(t, e, Leak, "sleep 1000", func() { must(t, cmd.Start()) }, func() {
		must(t, cmd.Process.Kill())
		_ = cmd.Wait() // by a signal, as told to
	})
}

// wantFound checks that check finds something while it is there.
func wantFound(t *testing.T, e *Env, kind Kind, text string, do, undo func()) {
	t.Helper()
	do()
	found := e.check(t.Context())
	undo()
	if !slices.ContainsFunc(found, func(v Violation) bool { return v.Kind == kind && strings.Contains(v.Text, text) }) {
		t.Errorf("check = %v, want a %s with %q", found, kind, text)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
