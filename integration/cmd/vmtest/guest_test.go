// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A log of an earlier run says nothing of this one, and the boot has a bound of its own.
func TestWatch_EndsAGuestThatStandsStill(t *testing.T) {
	logs, console := t.TempDir(), filepath.Join(t.TempDir(), "console.log")
	write := func(name, text string, when time.Time) {
		if err := errors.Join(os.WriteFile(name, []byte(text), 0o600), os.Chtimes(name, when, when)); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(logs, "earlier.log"), "=== RUN TestEarlier\n", time.Now().Add(-time.Hour))
	const silence = 400 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 3*silence)
	defer cancel()
	ctx, still := context.WithCancelCause(ctx)
	watch(ctx, still, logs, console, silence)
	if err := context.Cause(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("before the first log: %v, want %v", err, context.DeadlineExceeded)
	}

	ctx, cancel = context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ctx, still = context.WithCancelCause(ctx)
	write(console, "Booting\r\nrcu: stall\r\n", time.Now())
	write(filepath.Join(logs, "now.log"), "=== RUN TestThatHangs\n", time.Now().Add(time.Hour))
	began := time.Now()
	time.AfterFunc(silence, func() { write(filepath.Join(logs, "now.log"), "=== RUN TestThatHangs\n", time.Now()) })
	watch(ctx, still, logs, console, silence)
	if took := time.Since(began); took < 2*silence {
		t.Errorf("it ended after %v, while the log was written", took)
	}
	err := context.Cause(ctx)
	if !errors.Is(err, errStill) {
		t.Fatalf("watch: %v, want %v", err, errStill)
	}
	for _, want := range []string{"now.log", "TestThatHangs", "Booting\nrcu: stall"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
}
