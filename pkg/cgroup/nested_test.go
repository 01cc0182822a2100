// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWalkNested_EntersParentsFirstAndLeavesThemLast(t *testing.T) {
	top, outside := t.TempDir(), t.TempDir()
	for _, dir := range []string{"a", "a/b", "a/b/c", "a/b/d", "a/gone", "e"} {
		if err := os.Mkdir(filepath.Join(top, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(top, dir, "file"), "")
	}
	if err := os.Symlink(outside, filepath.Join(top, "link")); err != nil {
		t.Fatal(err)
	}
	var entered, left []string
	err := WalkNested(top, func(n Nested) error {
		if n.Name() == "gone" {
			return unix.ENODEV
		}
		entered = append(entered, fmt.Sprint(n.Depth(), n.Name()))
		return n.Write("file", n.Name())
	}, func(n Nested) error {
		left = append(left, fmt.Sprint(n.Depth(), n.Name()))
		text, err := n.Read("file")
		if err == nil && string(text) != n.Name()+"\n" {
			err = fmt.Errorf("read %q in %s", text, n.Name())
		}
		return err
	})
	if err != nil {
		t.Errorf("WalkNested = %v", err)
	}
	order := func(in []string, first, then string) {
		t.Helper()
		if i, j := slices.Index(in, first), slices.Index(in, then); i < 0 || j < i {
			t.Errorf("%q: want %q, and %q after it", in, first, then)
		}
	}
	for _, below := range []struct{ in, cgroup string }{{"1a", "2b"}, {"2b", "3c"}, {"2b", "3d"}} {
		order(entered, below.in, below.cgroup)
		order(left, below.cgroup, below.in)
	}
	slices.Sort(entered)
	slices.Sort(left)
	if want := []string{"1a", "1e", "2b", "3c", "3d"}; !slices.Equal(entered, want) || !slices.Equal(left, want) {
		t.Errorf("entered %q, left %q, want each of %q", entered, left, want)
	}
	if err := WalkNested(filepath.Join(top, "nothing"), nil, nil); !IsGone(err) {
		t.Errorf("WalkNested of what is not there = %v, want that it is gone", err)
	}
}
