// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"path"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
)

func FuzzGroup(f *testing.F) {
	for _, spec := range []string{
		`{}`, `{"annotations":{"io.kubernetes.cri.sandbox-id":"pod","io.containerd.runc.v2.group":"a/b"}}`, `[]`,
		`{"Annotations":{"io.containerd.runc.v2.group":".."}}`, `{"annotations":{"io.containerd.runc.v2.group":"a\u0000"}}`,
	} {
		f.Add([]byte(spec), "/run/containerd/s")
	}
	f.Fuzz(func(t *testing.T, spec []byte, dir string) {
		group, err := groupIn(spec, "c1")
		if err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("groupIn(%q) = %v, want an invalid argument", spec, err)
			}
			return
		}
		// The path that is hashed stays below the namespace's.
		if joined := filepath.Join("/address", "ns", group); group == "" || path.Dir(joined) == "/address" {
			t.Errorf("groupIn(%q) = %q, which makes %q", spec, group, joined)
		}
		if p := socketPath(dir, "/address", "ns", group); filepath.IsAbs(dir) && filepath.Dir(p) != filepath.Clean(dir) {
			t.Errorf("socketPath(%q) = %q, which is not in it", dir, p)
		}
	})
}
