// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cleanup

import (
	"encoding/json"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

func FuzzState(f *testing.F) {
	for _, s := range []State{
		{Root: "/run/containerd/runc/ns"},
		{
			Root: "/r", SystemdCgroup: true, Pid: 7, Exit: &process.Exit{Status: 137, At: time.Unix(5, 6)},
			Stop:       process.Stop{Signal: unix.SIGTERM, Grace: time.Second},
			Extensions: map[string]json.RawMessage{"x": json.RawMessage(`[1]`)},
		},
	} {
		data, err := json.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"Pid":-1,"Exit":{"At":"x"}}`))
	f.Fuzz(func(t *testing.T, data []byte) { isReadAsWritten[State](t, data) })
}

func FuzzIndex(f *testing.F) {
	data, err := json.Marshal(podIndex{
		ID: "p", Pod: true, Socket: "/run/containerd/s/a", Members: map[string]podEntry{"c": {Bundle: "/b", Root: "/r"}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"Members":{"":{},"\ud800":null}}`))
	f.Fuzz(func(t *testing.T, data []byte) { isReadAsWritten[podIndex](t, data) })
}

// isReadAsWritten checks that what is read of a file is read again once it is written, as the index is after each
// removal.
func isReadAsWritten[T any](t *testing.T, data []byte) {
	t.Helper()
	var first, second T
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
}
