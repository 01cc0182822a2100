// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

//go:build failpoints

package fail_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandbox.internal/shim/pkg/fail"
)

func set(t *testing.T, dir, name, action string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(action+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAfter_DoesWhatTheFileSaysOnce(t *testing.T) {
	if err := fail.At("a.b"); err != nil {
		t.Errorf("without a directory: %v", err)
	}
	dir := t.TempDir()
	t.Setenv(fail.Directory, dir)
	set(t, dir, "a.b", "error")
	own := errors.New("the step's own")
	if err := fail.After("a.b", own); !errors.Is(err, own) {
		t.Errorf("After a step that failed = %v, want %v", err, own)
	}
	if err := fail.At("a.b"); err == nil || !strings.Contains(err.Error(), "a.b") {
		t.Errorf("error = %v, want one that names a.b", err)
	}
	if err := fail.At("a.b"); err != nil {
		t.Errorf("for the second time: %v", err)
	}
	set(t, dir, "a.b", "explode")
	if err := fail.At("a.b"); err == nil || !strings.Contains(err.Error(), "explode") {
		t.Errorf("action that is not known: %v", err)
	}
	set(t, dir, "a.b", "panic")
	func() {
		defer func() {
			if p := recover(); p == nil {
				t.Error("no panic")
			}
		}()
		_ = fail.At("a.b")
	}()
	set(t, dir, "a.b", "delay 20ms")
	if began := time.Now(); fail.At("a.b") != nil || time.Since(began) < 20*time.Millisecond {
		t.Errorf("delay took %v", time.Since(began))
	}
	log, err := os.ReadFile(filepath.Join(dir, "log"))
	if want := "a.b error\na.b -\na.b explode\na.b panic\na.b delay 20ms\n"; err != nil || string(log) != want {
		t.Errorf("log = %q, %v, want %q", log, err, want)
	}
}

func TestAt_HangsUntilItIsReleased(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(fail.Directory, dir)
	set(t, dir, "a.b", "hang")
	ended := make(chan error)
	go func() { ended <- fail.At("a.b") }()
	hangs := filepath.Join(dir, "a.b.hang")
	for {
		if _, err := os.Stat(hangs); err == nil {
			break
		}
		<-time.After(time.Millisecond)
	}
	if err := os.Remove(hangs); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("after a hang: %v", err)
	}
}
