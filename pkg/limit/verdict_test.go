// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestJudge(t *testing.T) {
	killed := Verdict{Status: 137, Signal: unix.SIGKILL}
	with := func(v Verdict, change func(*Verdict)) Verdict { change(&v); return v }
	memory := &Limits{Memory: 1}
	oom := func(v *Verdict) { v.OOMKills = 1 }
	for name, tt := range map[string]struct {
		l     *Limits
		v     Verdict
		ended Reason
		want  Reason
	}{
		"killed for lack of the machine's": {&Limits{}, with(killed, oom), None, None},
		"exits":                            {&Limits{}, Verdict{}, None, None},
		"killed by another":                {&Limits{}, killed, None, None},
		"killed by a timer":                {&Limits{}, killed, WallTime, WallTime},
		"exits as the timer expires":       {&Limits{}, Verdict{Status: 1}, WallTime, None},
		"killed by the kernel":             {memory, with(killed, oom), None, Memory},
		"a child killed by the kernel":     {memory, with(Verdict{Status: 1}, oom), None, Memory},
		"does without the child":           {memory, with(Verdict{}, oom), None, None},
		"a timer came first":               {&Limits{}, with(killed, oom), CPUTime, CPUTime},
		"prints too much":                  {&Limits{Output: 1}, with(Verdict{}, func(v *Verdict) { v.Stdout.Dropped = 1 }), None, None},
		"cannot fork":                      {&Limits{}, with(Verdict{Status: 2}, func(v *Verdict) { v.ForksRefused = 1 }), None, Pids},
		"does without the fork":            {&Limits{}, with(Verdict{}, func(v *Verdict) { v.ForksRefused = 1 }), None, None},
	} {
		v := tt.v
		if tt.l.Judge(&v, tt.ended, false); v.Limit != tt.want {
			t.Errorf("%s: %q, want %q", name, v.Limit, tt.want)
		}
		want := tt.want
		if want == None && tt.v.OOMKills > 0 && tt.v.Status != 0 {
			want = Memory
		}
		if tt.l.Judge(&tt.v, tt.ended, true); tt.v.Limit != want {
			t.Errorf("%s, in a container with a limit of memory: %q, want %q", name, tt.v.Limit, want)
		}
	}
}

func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c1:{exec}.json")
	for exec, file := range map[string]string{"e1": "c1:e1.json", "_e": "c1:_e.json"} {
		v := Verdict{Container: "c1", Exec: exec, Status: 137, Signal: 9, Limit: Memory, Stdout: Stream{5, 4}, Ended: time.Unix(1, 2).UTC()}
		if err := v.Write(path); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(filepath.Dir(path), file))
		if err != nil {
			t.Fatal(err)
		}
		var got Verdict
		if err := json.Unmarshal(text, &got); err != nil || !cmp.Equal(v, got) {
			t.Errorf("%s: %v\n%s", text, err, cmp.Diff(v, got))
		}
	}
}

// The container has the directory in a volume, and makes a link to one of the host.
func TestVerdict_IsNotLedElsewhere(t *testing.T) {
	host, volume := t.TempDir(), t.TempDir()
	if err := errors.Join(
		os.WriteFile(filepath.Join(host, "e1"), []byte("host"), 0o600), os.Symlink(host, filepath.Join(volume, "dir")),
	); err != nil {
		t.Fatal(err)
	}
	v := Verdict{Exec: "e1"}
	if err := v.Write(filepath.Join(volume, "dir/{exec}")); !errors.Is(err, unix.ELOOP) {
		t.Errorf("Write = %v, want ELOOP", err)
	}
	if got, err := os.ReadFile(filepath.Join(host, "e1")); string(got) != "host" {
		t.Errorf("the file of the host = %q, %v", got, err)
	}
}
