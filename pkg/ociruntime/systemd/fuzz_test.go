// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups"
)

func FuzzName(f *testing.F) {
	for _, path := range []string{
		"a-b.slice:prefix:name", "::", "system.slice::a@b", "../x.slice:a:b", ":a:b.slice", "/a/b", "-.slice:c:d",
	} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		parts := strings.Split(path, ":")
		if len(parts) != 3 { // libcontainer refuses it
			return
		}
		c := &cgroups.Cgroup{Parent: parts[0], ScopePrefix: parts[1], Name: parts[2]}
		if err := checkName(path, c); err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("checkName(%q) = %v, want an invalid argument", path, err)
			}
			return
		}
		// What becomes part of a path in the cgroup file system is one element of it.
		for _, name := range []string{c.Parent, unitName(c)} {
			if strings.ContainsAny(name, "/\x00\n") || name == "." || name == ".." || len(name) > unitLimit {
				t.Errorf("checkName(%q) accepts %q", path, name)
			}
		}
	})
}
