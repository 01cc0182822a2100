// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/internal/testx"
)

func must(tb testing.TB, list string) Set {
	tb.Helper()
	s, err := Parse(list)
	testx.Must(tb, err)
	return s
}

func TestAssign(t *testing.T) {
	for _, c := range []struct{ name, source, requested, parent, want, refusal string }{
		{name: "what the source has", source: "0-1", parent: "0-3", want: "0-1"},
		{name: "not what it asks for and lacks", source: "0-1", requested: "0-2", parent: "0-3", want: "0-1"},
		{name: "not what the parent lacks", source: "0-3", parent: "2-5", want: "2-3"},
		{name: "not nothing", parent: "0-3", refusal: `has nothing of the source's ""`},
		{name: "not what only the source has", source: "4-5", parent: "0-3", refusal: `has nothing of the source's "4-5"`},
	} {
		source := node{dir: "/s", requested: must(t, c.requested), effective: must(t, c.source)}
		got, err := assign(cpus, source, node{dir: "/", effective: must(t, c.parent)})
		if got != must(t, c.want) {
			t.Errorf("%s: assign = %q, %v, want %q", c.name, got, err, c.want)
		}
		if c.refusal == "" && err != nil || c.refusal != "" && (!errors.Is(err, errdefs.ErrFailedPrecondition) || !strings.Contains(err.Error(), c.refusal)) {
			t.Errorf("%s: assign = %v, want %q", c.name, err, c.refusal)
		}
	}
}

// kernel is a model of the kernel's rules for one resource on v2 (validate_change, update_cpumasks_hier), since Linux
// 5.17. Number 0 is the destination, whose parent has what lends says; each other cgroup is nested in one before it.
type kernel struct {
	lends     Set
	exclusive Set // what a partition next to the destination has
	requested []Set
	parent    []int
}

func (k *kernel) effective() []Set {
	got := make([]Set, len(k.requested))
	for i, requested := range k.requested {
		above := k.lends
		if i > 0 {
			above = got[k.parent[i]]
		}
		got[i] = requested.Intersect(above)
		if got[i].Empty() {
			got[i] = above
		}
	}
	return got
}

func (k *kernel) write(s Set) error {
	switch {
	case s.Empty() && !k.requested[0].Empty():
		return errors.New("ENOSPC: tasks are left with nothing")
	case !s.Intersect(k.exclusive).Empty():
		return fmt.Errorf("it makes the partition of %q invalid", k.exclusive)
	}
	k.requested[0] = s
	return nil
}

// Whatever the state, the kernel accepts the list that is assigned, and all tasks run within the list then. Bytes of
// cgroups are pairs: the list of 8 CPUs, and which one it is in.
func FuzzAssign(f *testing.F) {
	f.Add(byte(0xff), byte(0), byte(0x3), byte(0), []byte{0x0f, 0, 0x0c, 0, 0x08, 1})
	f.Add(byte(0xff), byte(0x30), byte(0xf0), byte(0xf0), []byte{0, 0, 0x0c, 0})
	f.Fuzz(func(t *testing.T, online, exclusive, source, requested byte, cgroups []byte) {
		one := func(b byte) Set {
			var m members
			for n := range 8 {
				m[n] = b>>n&1 == 1
			}
			return m.set()
		}
		k := &kernel{lends: one(online &^ exclusive), exclusive: one(exclusive)}
		for pair := range slices.Chunk(cgroups[:min(len(cgroups), 16)&^1], 2) {
			k.requested = append(k.requested, one(pair[0]))
			k.parent = append(k.parent, int(pair[1])%len(k.requested))
			if i := len(k.parent) - 1; k.parent[i] == i {
				k.parent[i] = 0
			}
		}
		if len(k.requested) == 0 || k.lends.Empty() {
			return // nothing to assign
		}
		from := node{requested: one(requested), effective: one(source)}
		wanted, err := assign(cpus, from, node{effective: k.lends})
		if err != nil {
			if source&online&^exclusive != 0 && (requested == 0 || requested&source != 0) {
				t.Errorf("assign refuses: %v", err)
			}
			return
		}
		if err := k.write(wanted); err != nil {
			t.Errorf("write %q to %+v: %v", wanted, k, err)
		}
		for i, got := range k.effective() {
			if got.Empty() || got.Intersect(wanted) != got || i == 0 && got != wanted {
				t.Errorf("cgroup %d runs on %q in the end, want %q", i, got, wanted)
			}
		}
	})
}
