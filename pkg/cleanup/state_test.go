// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cleanup

import (
	"encoding/json"
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
		{Root: "/r", SystemdCgroup: true, Pid: 7, Socket: "/s"},
		{Root: "/r", Pid: 7, Exit: &process.Exit{Status: 137, At: time.Unix(1, 2).UTC()}, Extensions: map[string]json.RawMessage{"x": []byte("[1]")}},
		{Root: "/r", Pod: true, Members: map[string]Member{"c": {Bundle: "/b", Root: "/r"}}},
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
	}
}

func TestState_ThatIsNone(t *testing.T) {
	bundle := t.TempDir()
	want := func(what string) {
		t.Helper()
		if s, err := ReadState(bundle); err != nil || !cmp.Equal(s, State{}) {
			t.Errorf("%s: ReadState = %+v, %v, want none", what, s, err)
		}
	}
	want("no file")
	testx.Write(t, filepath.Join(bundle, stateFile), "/the/socket\x00\x08\x07")
	want("an answer")
	testx.Write(t, filepath.Join(bundle, stateFile), "{half")
	_, err := ReadState(bundle)
	testx.WantText(t, err, stateFile)
}

func FuzzState(f *testing.F) {
	f.Add([]byte(`{"Root":"/r","SystemdCgroup":true,"Pid":7,"Exit":{"Status":137},"Stop":{"Signal":15},"Extensions":{"x":[1]}}`))
	f.Add([]byte(`{"Pid":-1,"Exit":{"At":"x"}}`))
	f.Add([]byte(`{"Pod":true,"Socket":"/s","Members":{"":{},"\ud800":null,"c":{"Bundle":"/b","Root":"/r"}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var first, second State
		if json.Unmarshal(data, &first) != nil {
			return
		}
		written, err := json.Marshal(first)
		if err == nil {
			err = json.Unmarshal(written, &second)
		}
		if err != nil {
			t.Fatalf("%q is read as %+v, written as %q: %v", data, first, written, err)
		}
		again, err := json.Marshal(second)
		if err != nil || string(again) != string(written) {
			t.Errorf("%q is written as %q, then as %q: %v", data, written, again, err)
		}
	})
}

func TestLeaveAnswer(t *testing.T) {
	exit := &process.Exit{Status: 3, At: time.Unix(1700000000, 0)}
	answer := func(pid int, e process.Exit) ([]byte, error) {
		return fmt.Appendf(nil, "%d %d %d", pid, e.Status, e.At.Unix()), nil
	}
	refuses := func(int, process.Exit) ([]byte, error) { return nil, errdefs.ErrInternal }
	alone := []string{"s"}
	for _, tt := range []struct {
		name   string
		answer Answer
		pod    bool // s, for which the shim was started, is a pod
		ids    []string
		exit   *process.Exit
		of     []string // removed one after the other, the last of which has
		want   string   // this content; "" for no file
	}{
		{"the shim has nothing else", answer, false, alone, exit, alone, "/the/socket\x0042 3 1700000000"},
		{"the shim has another", answer, false, []string{"s", "a"}, exit, alone, "\x0042 3 1700000000"},
		{"the first of the shim is left", answer, false, []string{"s", "a"}, exit, []string{"a"}, "\x0042 3 1700000000"},
		{"the last, after the first", answer, false, []string{"s", "a"}, exit, []string{"s", "a"}, "/the/socket\x0042 3 1700000000"},
		{"of a pod that lives on", answer, true, []string{"a"}, exit, []string{"a"}, "\x0042 3 1700000000"},
		{"a pod", answer, true, []string{"a"}, exit, []string{"a", "s"}, "/the/socket\x0042 3 1700000000"},
		{"no exit", answer, false, alone, nil, alone, ""},
		{"no answer", nil, false, alone, exit, alone, ""},
		{"an answer that cannot be encoded", refuses, false, alone, exit, alone, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHousehold(t)
			if tt.pod {
				h = newPod(t)
			}
			h.index.answer = tt.answer
			h.create(tt.ids...)
			var last string
			for _, id := range tt.of {
				last = h.bundles[id]
				testx.Must(t, h.index.Remove(id, last))
				h.index.LeaveAnswer(last, State{Root: "/r", Pid: 42, Exit: tt.exit})
			}
			got, err := os.ReadFile(filepath.Join(last, stateFile))
			if string(got) != tt.want || (err == nil) != (tt.want != "") {
				t.Errorf("%s = %q, %v, want %q", stateFile, got, err, tt.want)
			}
		})
	}
	var x Index
	x.SetShim("c", "/nowhere", "", answer)
	x.LeaveAnswer("/nowhere", State{Exit: exit}) // does nothing
}
