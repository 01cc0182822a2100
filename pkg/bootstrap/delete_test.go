// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"sandbox.internal/shim/pkg/internal/testx"
)

// What the constructor does not answer reaches main, which ends with this status.
const reachedMain = 73

func TestDelete_AnswersWithoutGo(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "socket")
	testx.Must(t, os.WriteFile(socket, nil, 0o600))
	gone := socket + ".gone"
	big := string(make([]byte, 600))
	for _, tt := range []struct {
		name, file, want string
		args             []string // in place of containerd's
	}{
		{name: "of a shim that goes on", file: "\x00answer", want: "answer"},
		{name: "of a shim that ended", file: gone + "\x00answer", want: "answer"},
		{name: "of nobody: all zero", file: "\x00", want: ""},
		{name: "after another flag", file: "\x00answer", want: "answer", args: []string{"-debug", "-bundle", "BUNDLE", "delete"}},
		{name: "not while the socket is there", file: socket + "\x00answer", want: "main"},
		{name: "not if it is a state", file: `{"Root":"/r"}`, want: "main"},
		{name: "not if it is empty", file: "", want: "main"},
		{name: "not if it is too big", file: "\x00" + big, want: "main"},
		{name: "not without a bundle", file: "\x00answer", args: []string{"-id", "c1", "delete"}, want: "main"},
		{name: "not for start", file: "\x00answer", args: []string{"-bundle", "BUNDLE", "start", "-x"}, want: "main"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bundle := t.TempDir()
			testx.Write(t, filepath.Join(bundle, "shim.json"), tt.file)
			args := tt.args
			if args == nil {
				args = []string{"-namespace", "ns", "-id", "c1", "-bundle", "BUNDLE", "delete"}
			}
			if got := runDelete(t, bundle, args); got != tt.want {
				t.Errorf("delete printed %q, want %q", got, tt.want)
			}
		})
	}
}

func TestDelete_FollowsNoLinkToItsAnswer(t *testing.T) {
	bundle := t.TempDir()
	elsewhere := filepath.Join(t.TempDir(), "file")
	testx.Write(t, elsewhere, "\x00answer")
	testx.Must(t, os.Symlink(elsewhere, filepath.Join(bundle, "shim.json")))
	if got := runDelete(t, bundle, []string{"-bundle", "BUNDLE", "delete"}); got != "main" {
		t.Errorf("delete printed %q, want it left to main", got)
	}
}

// runDelete runs the test binary as `delete`, with bundle for BUNDLE, and returns what it printed, or "main" if it came
// to Go's main.
func runDelete(t *testing.T, bundle string, args []string) string {
	t.Helper()
	given := make([]string, len(args))
	for i, a := range args {
		if given[i] = a; a == "BUNDLE" {
			given[i] = bundle
		}
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", given...)
	cmd.Env = append(os.Environ(), asMainEnv+"=1")
	out, err := cmd.Output()
	if cmd.ProcessState.ExitCode() == reachedMain {
		return "main"
	}
	if err != nil {
		t.Fatalf("delete = %v", err)
	}
	return string(out)
}
