// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cleanup

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sandbox.internal/shim/pkg/process"
)

func TestState_IsReadAsWritten(t *testing.T) {
	for _, want := range []State{
		{Root: "/r"},
		{Root: "/r", SystemdCgroup: true, Pid: 7},
		{Root: "/r", Pid: 7, Exit: &process.Exit{Status: 137, At: time.Unix(1, 2).UTC()}},
		{Root: "/r", Pid: 7, Exit: &process.Exit{}},
	} {
		bundle := t.TempDir()
		must(t, want.Write(bundle))
		got, err := ReadState(bundle)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("read back: %v (-want +got):\n%s", err, diff)
		}
		if got := files(t, bundle); got != stateFile {
			t.Errorf("files = %q, want %q", got, stateFile)
		}
		for range 2 {
			must(t, RemoveState(bundle))
		}
		if got := files(t, bundle); got != "" {
			t.Errorf("files = %q, want none", got)
		}
	}
}

func TestState_ThatCannotBeRead(t *testing.T) {
	bundle := t.TempDir()
	if _, err := ReadState(bundle); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("ReadState without one = %v, want that it does not exist", err)
	}
	must(t, os.WriteFile(filepath.Join(bundle, stateFile), []byte("{half"), 0o600))
	_, err := ReadState(bundle)
	wantText(t, err, stateFile)
}
