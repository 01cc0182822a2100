// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package hostrootfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestWhatIsCoveredIsNotLookedFor(t *testing.T) {
	spec := &specs.Spec{Linux: &specs.Linux{}}
	spec.Mounts = []specs.Mount{{Destination: "/mount/"}}
	spec.Linux.MaskedPaths = []string{"/masked/"}
	var mounts []specs.Mount
	for _, at := range []string{"/mount", "/mount/in", "/masked", "/masked/in", "/maskednot"} {
		mounts = append(mounts, specs.Mount{Destination: at, Type: "bind"}, specs.Mount{Destination: at + "/overlay", Type: "overlay"})
	}
	var got []string
	for _, m := range seenBinds(spec, mounts) {
		got = append(got, m.Destination)
	}
	if want := "/mount/in /maskednot"; strings.Join(got, " ") != want {
		t.Errorf("looked for: %v, want %s", got, want)
	}
}

func TestOnlyRootMayWriteAboveWhatIsMaskedIn(t *testing.T) {
	for _, tc := range []struct {
		name     string
		mode     os.FileMode
		uid      int // of the directory above
		owner    int // of the directory itself
		accepted bool
	}{
		{"root's own", 0o755, 0, 0, true},
		{"a user's own in root's", 0o755, 0, 1000, true},
		{"a user's", 0o755, 1000, 0, false},
		{"all may write", 0o777, 0, 0, false},
		{"a group may write", 0o775, 0, 0, false},
		{"sticky, with root's own", 0o777 | os.ModeSticky, 0, 0, true},
		{"sticky, with a user's own", 0o777 | os.ModeSticky, 0, 1000, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := host(t)
			above := h + "/above"
			dir := above + "/dir"
			must(t, os.MkdirAll(dir, 0o755))
			must(t, os.WriteFile(dir+"/secret", nil, 0o600))
			must(t, os.Chmod(above, tc.mode))
			must(t, os.Chown(above, tc.uid, 0))
			must(t, os.Chown(dir, tc.owner, 0))
			_, err := hostEntry{host: dir, container: "/d"}.hide([]string{dir + "/secret"}, nil, filepath.Join(t.TempDir(), "over"))
			if tc.accepted {
				must(t, err)
				return
			}
			wantInvalid(t, err, above, "only root")
		})
	}
}
