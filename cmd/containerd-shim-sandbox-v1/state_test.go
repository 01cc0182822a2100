// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/bootstrap"
	"sandbox.internal/shim/pkg/handover"
)

// recorded returns the states of releases, by the names of their files.
func recorded(tb testing.TB) map[string][]byte {
	tb.Helper()
	files, err := filepath.Glob("testdata/state/*.json")
	must(tb, err)
	all := map[string][]byte{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(tb, err)
		all[filepath.Base(file)] = text
	}
	if len(all) == 0 {
		tb.Fatal("no state is recorded: make record-state")
	}
	return all
}

// Each release reads its own state and that of the release before: nothing that was written then is lost.
func TestState_OfEachReleaseIsUnderstood(t *testing.T) {
	for name, text := range recorded(t) {
		t.Run(name, func(t *testing.T) {
			var e struct {
				Format  int
				Version string
				FDs     []int
				Body    json.RawMessage
			}
			must(t, json.Unmarshal(text, &e))
			if e.Format != handover.Format && e.Format != handover.Format-1 {
				t.Skipf("format %d is older than this release and the one before read", e.Format)
			}
			var understood state
			must(t, json.Unmarshal(e.Body, &understood))
			again, err := json.Marshal(understood)
			must(t, err)
			var want, got any
			must(t, json.Unmarshal(e.Body, &want))
			must(t, json.Unmarshal(again, &got))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("not all of it is understood (-recorded +understood):\n%s", diff)
			}
		})
	}
}

// A state that is not one of a shim gives an error. Whatever it says, there is no panic, and no descriptor is taken.
func FuzzState(f *testing.F) {
	for _, text := range recorded(f) {
		var e struct{ Body json.RawMessage }
		must(f, json.Unmarshal(text, &e))
		f.Add([]byte(e.Body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if !json.Valid(body) {
			return
		}
		fd, err := unix.MemfdCreate("state", unix.MFD_CLOEXEC)
		must(t, err)
		file := os.NewFile(uintptr(fd), "state")
		defer file.Close()
		text, err := json.Marshal(map[string]any{"Format": handover.Format, "Body": json.RawMessage(body)})
		must(t, err)
		_, err = file.Write(text)
		must(t, err)
		l, successor, err := load(file)
		if err != nil {
			return
		}
		serve, err := successor.Restore(bootstrap.Daemon{Args: bootstrap.Args{ID: "c1", Namespace: "ns"}}, nil)
		if (err == nil) != (serve != nil) || l == nil {
			t.Errorf("restored: %t, %v", serve != nil, err)
		}
		if bytes.Contains(body, []byte(`"FD":7`)) && err == nil {
			t.Error("a descriptor that was not handed over was taken")
		}
	})
}
