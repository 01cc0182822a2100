// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"strings"
	"testing"
	"unicode"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
)

// An answer that cannot be sent would end containerd's connection, and with it the container.
func TestError_WithAnyTextIsAnswered(t *testing.T) {
	for name, text := range map[string]string{
		"not UTF-8": "file \xff", "escape sequences": "process \x1b[2J\u009b2J\a\r",
		"long": strings.Repeat("x", 5<<20), "long, not ASCII": strings.Repeat("€", 2<<20),
	} {
		t.Run(name, func(t *testing.T) {
			w := newEnv(t, taskV3)
			w.create("c1")
			w.must("Start", &api.StartRequest{ID: "c1"}, &api.StartResponse{})
			w.runtime.Fail("pause", fmt.Errorf("%s: %w", text, errdefs.ErrFailedPrecondition))
			err := w.call("Pause", &api.PauseRequest{ID: "c1"}, empty)
			got := fmt.Sprint(err)
			if !errdefs.IsFailedPrecondition(err) || len(got) > mostText+64 || !strings.Contains(got, text[:3]) {
				t.Errorf("Pause = %.200q, of %d bytes, want the text and its class", got, len(got))
			}
			if i := strings.IndexFunc(got, unicode.IsControl); i >= 0 {
				t.Errorf("Pause = %.200q, with a control character at %d", got, i)
			}
			w.must("State", &api.StateRequest{ID: "c1"}, &api.StateResponse{})
		})
	}
}
