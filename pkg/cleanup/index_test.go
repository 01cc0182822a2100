// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cleanup

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRun_WithABrokenIndex(t *testing.T) {
	h := newHousehold(t, "s", true, "a", "b")
	must(t, os.WriteFile(filepath.Join(h.bundles["s"], indexFile), []byte("{half"), 0o600))
	if got, err := h.delete("a"); err != nil || got != "a" {
		t.Errorf("delete removed %q, %v, want the one that was asked for", got, err)
	}
}

// What cannot be read now may be read later, and says who else has to go.
func TestRun_LeavesAllWhereTheIndexCannotBeReadNow(t *testing.T) {
	h := newHousehold(t, "s", true, "a", "b")
	list := filepath.Join(h.bundles["s"], indexFile)
	must(t, os.Rename(list, list+".away"))
	must(t, os.Mkdir(list, 0o700))
	for _, id := range []string{"a", "s"} {
		got, err := h.delete(id)
		if got != "" {
			t.Errorf("delete of %s removed %q, want nothing", id, got)
		}
		wantText(t, err, "read the list of the pod's containers", indexFile)
	}
	must(t, os.Remove(list))
	must(t, os.Rename(list+".away", list))
	if got, err := h.delete("a"); err != nil || got != "a b pod s" {
		t.Errorf("delete afterwards removed %q, %v, want all", got, err)
	}
}

// What could not be undone of a create is listed until the shim ends, and containerd removes its bundle at once.
func TestIndex_MovesToABundleThatIsThere(t *testing.T) {
	h := &household{t: t, bundles: map[string]string{}, failing: map[string]error{}}
	var s Index
	h.bundles["s"] = newBundle(t, goodSpec())
	s.SetShim(h.bundles["s"], "/the/socket", nil)
	for _, id := range []string{"s", "a", "b", "c"} {
		h.create(&s, id)
	}
	must(t, os.RemoveAll(h.bundles["a"]))
	must(t, s.Remove("s", h.bundles["s"]))
	must(t, os.RemoveAll(h.bundles["s"]))
	if got, err := h.delete("c"); err != nil || got != "a b c" {
		t.Errorf("delete removed %q, %v, want a b c", got, err)
	}
}

// containerd tries a Delete again, for example when a full /run has room again.
func TestIndex_RemoveCanBeTriedAgain(t *testing.T) {
	for _, tc := range []struct {
		removed, blocked string // whose list cannot be written at first
		want             string
	}{
		{"s", "a", "a b"}, // the list moves to a
		{"b", "s", "a s"},
	} {
		t.Run(tc.removed, func(t *testing.T) {
			h := &household{t: t, bundles: map[string]string{}, failing: map[string]error{}}
			var s Index
			h.bundles["s"] = newBundle(t, goodSpec())
			s.SetShim(h.bundles["s"], "/the/socket", nil)
			for _, id := range []string{"s", "a", "b"} {
				h.create(&s, id)
			}
			list := filepath.Join(h.bundles[tc.blocked], indexFile)
			must(t, os.RemoveAll(list))
			must(t, os.MkdirAll(filepath.Join(list, "in the way"), 0o700))
			if err := s.Remove(tc.removed, h.bundles[tc.removed]); err == nil {
				t.Fatal("Remove succeeds where the list cannot be written")
			}
			must(t, os.RemoveAll(list))
			must(t, s.Remove(tc.removed, h.bundles[tc.removed]))
			must(t, os.RemoveAll(h.bundles[tc.removed]))
			if got, err := h.delete("a"); err != nil || got != tc.want {
				t.Errorf("delete removed %q, %v, want %s", got, err, tc.want)
			}
		})
	}
}
