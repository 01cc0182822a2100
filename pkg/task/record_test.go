// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sandbox.internal/shim/pkg/process"
)

func TestRecordIsReadAsWritten(t *testing.T) {
	for _, want := range []record{
		{Root: "/r"},
		{Root: "/r", SystemdCgroup: true, Pid: 7},
		{Root: "/r", Pid: 7, Exit: &process.Exit{Status: 137, At: time.Unix(1, 2).UTC()}},
		{Root: "/r", Pid: 7, Exit: &process.Exit{}},
	} {
		bundle := t.TempDir()
		must(t, want.write(bundle))
		got, err := readRecord(bundle)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("read back: %v (-want +got):\n%s", err, diff)
		}
		if got := files(t, bundle); got != recordFile {
			t.Errorf("files = %q, want %q", got, recordFile)
		}
		for range 2 {
			must(t, removeRecord(bundle))
		}
		if got := files(t, bundle); got != "" {
			t.Errorf("files = %q, want none", got)
		}
	}
}

func TestRecordIsReplacedAtOnce(t *testing.T) {
	bundle := t.TempDir()
	short, long := record{Root: "/r"}, record{Root: "/rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr", Pid: 1 << 20, SystemdCgroup: true}
	must(t, short.write(bundle))
	written := make(chan struct{})
	go func() {
		defer close(written)
		for i := range 500 {
			r := short
			if i%2 == 0 {
				r = long
			}
			if err := r.write(bundle); err != nil {
				t.Error(err)
			}
		}
	}()
	for !isClosed(written) {
		got, err := readRecord(bundle)
		if err != nil || got != short && got != long {
			t.Fatalf("readRecord = %+v, %v, want one of those written", got, err)
		}
	}
}

func TestRecordThatCannotBeRead(t *testing.T) {
	bundle := t.TempDir()
	if _, err := readRecord(bundle); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("readRecord without one = %v, want that it does not exist", err)
	}
	must(t, os.WriteFile(filepath.Join(bundle, recordFile), []byte("{half"), 0o600))
	_, err := readRecord(bundle)
	wantText(t, err, recordFile)
}

// As when the disk is full, or the name is taken.
func TestRecordThatCannotBeWrittenLeavesNothing(t *testing.T) {
	bundle := t.TempDir()
	taken := filepath.Join(bundle, recordFile)
	must(t, os.Mkdir(taken, 0o700))
	if err := (record{}).write(bundle); err == nil {
		t.Error("write over a directory succeeded")
	}
	if got := files(t, bundle); got != recordFile {
		t.Errorf("files = %q, want %q", got, recordFile)
	}
}
