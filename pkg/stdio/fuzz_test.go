// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

func FuzzParse(f *testing.F) {
	for _, uri := range []string{
		"/run/a%20b", "fifo:///a", "file:///a/../b?x=1", "binary:///bin/log?a=1&a=2&b=&=", "binary-v2:///x?%zz",
		"file://host/a", "://", "http:///a",
	} {
		f.Add(uri)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		l, err := parse(uri)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("parse(%q) = %v, want an invalid argument", uri, err)
			}
			return
		}
		seen := map[string]bool{}
		for i := 0; i < len(l.args); i += 2 {
			if seen[l.args[i]] {
				t.Errorf("parse(%q) has %q twice in %q", uri, l.args[i], l.args)
			}
			seen[l.args[i]] = true
		}
		switch {
		case !filepath.IsAbs(l.path), len(l.args)%2 != 0, len(l.args) > 0 && !l.binary():
			t.Errorf("parse(%q) = %+v", uri, l)
		case !strings.Contains(uri, "://") && (l.scheme != "fifo" || l.path != uri):
			t.Errorf("parse(%q) = %+v, want the path as it is", uri, l)
		}
	})
}
