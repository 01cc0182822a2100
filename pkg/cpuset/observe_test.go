// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset

import (
	"errors"
	"testing"

	"github.com/containerd/errdefs"
)

func TestReadStable_WhileSomebodyWrites(t *testing.T) {
	pair := func(requested, effective string) lists { return lists{must(t, requested), must(t, effective)} }
	agreed, torn, other := pair("1", "1"), pair("2-3", "1"), pair("1", "2-3")
	for _, c := range []struct {
		name string
		read []lists // the last for all reads after it
		want lists
		n    int // reads
	}{
		{"lists that go together", []lists{agreed}, agreed, 1},
		{"a cgroup that inherits", []lists{pair("", "0-3")}, pair("", "0-3"), 1},
		{"a write between two reads", []lists{torn, agreed}, agreed, 2},
		{"two writes that look the same", []lists{torn, torn, agreed}, agreed, 3},
		{"what is offline", []lists{torn}, torn, 3},
		{"writes, and then what is offline", []lists{other, torn}, torn, 4},
		{"writes without end", []lists{other, torn, other, torn, other, torn, other, torn, other, torn, other, torn}, lists{}, 12},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := 0
			got, err := readStable(func() (lists, error) {
				n++
				return c.read[min(n, len(c.read))-1], nil
			})
			if changing := c.want == (lists{}); errors.Is(err, errChanging) != changing || errdefs.IsUnavailable(err) != changing {
				t.Errorf("readStable = %v", err)
			}
			if got != c.want || n != c.n {
				t.Errorf("readStable = %v after %d reads, want %v after %d", got, n, c.want, c.n)
			}
		})
	}
}
