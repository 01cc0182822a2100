// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cleanup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sandbox.internal/shim/pkg/internal/testx"

	"github.com/containerd/errdefs"
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
		testx.Must(t, want.Write(bundle))
		got, err := ReadState(bundle)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("read back: %v (-want +got):\n%s", err, diff)
		}
		if got := testx.Files(t, bundle); got != stateFile {
			t.Errorf("files = %q, want %q", got, stateFile)
		}
		for range 2 {
			testx.Must(t, RemoveState(bundle))
		}
		if got := testx.Files(t, bundle); got != "" {
			t.Errorf("files = %q, want none", got)
		}
	}
}

func TestState_ThatCannotBeRead(t *testing.T) {
	bundle := t.TempDir()
	if _, err := ReadState(bundle); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("ReadState without one = %v, want that it does not exist", err)
	}
	testx.Must(t, os.WriteFile(filepath.Join(bundle, stateFile), []byte("{half"), 0o600))
	_, err := ReadState(bundle)
	testx.WantText(t, err, stateFile)
}

func TestLeaveAnswer(t *testing.T) {
	exit := process.Exit{Status: 3, At: time.Unix(1700000000, 0)}
	answer := func(pid int, e process.Exit) ([]byte, error) {
		return fmt.Appendf(nil, "%d %d %d", pid, e.Status, e.At.Unix()), nil
	}
	refuses := func(int, process.Exit) ([]byte, error) { return nil, errdefs.ErrInternal }
	for _, tt := range []struct {
		name   string
		answer Answer
		exit   *process.Exit
		other  string // a container that the shim still has
		want   string // content; "" for no file
	}{
		{"the shim has nothing else", answer, &exit, "", "/the/socket\x0042 3 1700000000"},
		{"the shim has another", answer, &exit, "other", "\x0042 3 1700000000"},
		{"no exit", answer, nil, "", ""},
		{"no answer", nil, &exit, "", ""},
		{"an answer that cannot be encoded", refuses, &exit, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bundle := testx.NewBundle(t, goodSpec())
			var x Index
			x.SetShim(bundle, "/the/socket", tt.answer)
			testx.Must(t, x.Add("c1", bundle, "/r"))
			if tt.other != "" {
				testx.Must(t, x.Add(tt.other, testx.NewBundle(t, goodSpec()), "/r"))
			}
			s := State{Root: "/r", Pid: 42, Exit: tt.exit}
			testx.Must(t, s.Write(bundle))
			testx.Must(t, x.Remove("c1", bundle))
			x.LeaveAnswer(bundle, s)
			got, err := os.ReadFile(filepath.Join(bundle, deletedFile))
			if string(got) != tt.want || (err == nil) != (tt.want != "") {
				t.Errorf("%s = %q, %v, want %q", deletedFile, got, err, tt.want)
			}
			testx.Must(t, RemoveAnswer(bundle))
			if _, err := os.Stat(filepath.Join(bundle, deletedFile)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("after RemoveAnswer: %v, want no file", err)
			}
		})
	}
}

// A pod is not among the containers, and its bundle has the list of them.
func TestLeaveAnswer_OfAPod(t *testing.T) {
	pod, member := testx.NewBundle(t, goodSpec()), testx.NewBundle(t, goodSpec())
	exit := process.Exit{Status: 3, At: time.Unix(1700000000, 0)}
	var x Index
	x.SetShim(pod, "/the/socket", func(int, process.Exit) ([]byte, error) { return []byte("answer"), nil })
	want := func(bundle, want string) {
		t.Helper()
		if got, err := os.ReadFile(filepath.Join(bundle, deletedFile)); string(got) != want {
			t.Errorf("%s of %s = %q, %v, want %q", deletedFile, bundle, got, err, want)
		}
	}
	testx.Must(t, x.SetPod("pod", pod, true))
	testx.Must(t, x.Add("c1", member, "/r"))
	testx.Must(t, x.Remove("c1", member))
	x.LeaveAnswer(member, State{Exit: &exit})
	want(member, "\x00answer") // the pod lives on, and the socket with it
	testx.Must(t, x.SetPod("pod", pod, false))
	x.LeaveAnswer(pod, State{Exit: &exit})
	want(pod, "/the/socket\x00answer")
}

func TestLeaveAnswer_WithoutABundle(t *testing.T) {
	var x Index
	x.SetShim("/nowhere", "", func(int, process.Exit) ([]byte, error) { return nil, nil })
	x.LeaveAnswer("/nowhere", State{Exit: &process.Exit{}}) // does nothing
	if err := RemoveAnswer("/nowhere"); err != nil {
		t.Errorf("RemoveAnswer = %v, want it to do nothing", err)
	}
}
