// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRaiseOOMScore(t *testing.T) {
	for _, tt := range []struct{ parent, want string }{{"-999\n", "-998"}, {"0\n", "1"}, {"1000\n", "1000"}} {
		proc := t.TempDir()
		for name, text := range map[string]string{"7": tt.parent, "self": "unset"} {
			if err := os.Mkdir(filepath.Join(proc, name), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(proc, name, "oom_score_adj"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := raiseOOMScore(proc, 7); err != nil {
			t.Fatalf("raiseOOMScore above %q = %v", tt.parent, err)
		}
		got, err := os.ReadFile(filepath.Join(proc, "self", "oom_score_adj"))
		if err != nil || !strings.HasPrefix(string(got), tt.want) {
			t.Errorf("above %q the score is %q, %v, want %q", tt.parent, got, err, tt.want)
		}
	}
	if err := raiseOOMScore(t.TempDir(), 7); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("raiseOOMScore of a parent that is gone = %v, want not exist", err)
	}
}
