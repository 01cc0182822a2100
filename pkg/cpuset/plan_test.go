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
)

func must(tb testing.TB, list string) Set {
	tb.Helper()
	s, err := Parse(list)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func TestAssign(t *testing.T) {
	for _, c := range []struct{ name, source, requested, parent, partition, want, refusal string }{
		{name: "what the source has", source: "0-1", parent: "0-3", want: "0-1"},
		{name: "not what it asks for and lacks", source: "0-1", requested: "0-2", parent: "0-3", want: "0-1"},
		{name: "not what the parent lacks", source: "0-3", parent: "2-5", want: "2-3"},
		{name: "not into a partition", source: "0-1", parent: "0-3", partition: "root", refusal: `partition of /d is "root"`},
		{name: "nor into an invalid one", source: "0-1", parent: "0-3", partition: "isolated invalid (why)", refusal: "must be member"},
		{name: "not nothing", parent: "0-3", refusal: "effective of /s is empty"},
		{name: "not what only the source has", source: "4-5", parent: "0-3", refusal: `has nothing of the source's "4-5"`},
	} {
		source := node{dir: "/s", requested: must(t, c.requested), effective: must(t, c.source)}
		destination := node{dir: "/d", partition: "member"}
		if c.partition != "" {
			destination.partition = c.partition
		}
		got, err := assign(cpus, source, node{dir: "/", effective: must(t, c.parent)}, destination)
		if got != must(t, c.want) {
			t.Errorf("%s: assign = %q, %v, want %q", c.name, got, err, c.want)
		}
		if c.refusal == "" && err != nil || c.refusal != "" && (!errors.Is(err, errdefs.ErrFailedPrecondition) || !strings.Contains(err.Error(), c.refusal)) {
			t.Errorf("%s: assign = %v, want %q", c.name, err, c.refusal)
		}
	}
}

func TestPlan(t *testing.T) {
	n := func(dir, list string, nested ...node) node {
		return node{dir: dir, requested: must(t, list), nested: nested}
	}
	for _, c := range []struct {
		name        string
		destination node
		wanted      string
		want        string
	}{
		{"nothing to do", n("d", "0-1"), "0-1", ""},
		{"nothing, whatever is nested", n("d", "0-1", n("d/a", "3")), "0-1", ""},
		{"one write", n("d", ""), "0-1", "d=0-1"},
		{"nested ones that inherit or fit are left", n("d", "0-3", n("d/a", ""), n("d/b", "1")), "0-1", "d=0-1"},
		{"a nested one keeps what it may", n("d", "0-3", n("d/a", "1-2")), "0-1", "d/a=1 d=0-1"},
		{"or gets all", n("d", "0-3", n("d/a", "3")), "0-1", "d/a=0-1 d=0-1"},
		{"the deepest first", n("d", "0-3", n("d/a", "0-3", n("d/a/b", "0,3"))), "0-1", "d/a/b=0 d/a=0-1 d=0-1"},
		{"within its own parent", n("d", "0-3", n("d/a", "0,3", n("d/a/b", "1-3"))), "0-1", "d/a/b=0 d/a=0 d=0-1"},
	} {
		var got []string
		for _, w := range plan(cpus, c.destination, must(t, c.wanted)) {
			got = append(got, w.dir+"="+w.set.String())
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: plan = %q, want %q", c.name, strings.Join(got, " "), c.want)
		}
	}
}

// kernel is a model of the kernel's rules for one resource on v2 (validate_change, update_cpumasks_hier). Number 0 is
// the destination, whose parent has what lends says; each other cgroup is nested in one before it.
type kernel struct {
	strict    bool // as before 5.17: a child must not ask for what its parent, when that is written, does not
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

func (k *kernel) write(i int, s Set) error {
	for child := range k.requested {
		if k.strict && child > 0 && k.parent[child] == i && !k.requested[child].Subset(s) {
			return fmt.Errorf("write %q to %d: EBUSY: %d asks for %q", s, i, child, k.requested[child])
		}
	}
	switch {
	case s.Empty() && !k.requested[i].Empty():
		return fmt.Errorf("write to %d: ENOSPC: tasks are left with nothing", i)
	case i == 0 && !s.Intersect(k.exclusive).Empty():
		return fmt.Errorf("write %q to %d: makes the partition of %q invalid", s, i, k.exclusive)
	}
	k.requested[i] = s
	return nil
}

// node returns what is observed of cgroup i and those in it.
func (k *kernel) node(i int) node {
	n := node{dir: fmt.Sprint(i), requested: k.requested[i], effective: k.effective()[i], partition: "member"}
	for child := range k.requested {
		if child > 0 && k.parent[child] == i {
			n.nested = append(n.nested, k.node(child))
		}
	}
	return n
}

// Union returns what is in s or in t.
func (s Set) Union(t Set) Set {
	for i := range s.bits {
		s.bits[i] |= t.bits[i]
	}
	return s
}

// Whatever the state, each write of a plan is accepted, no task runs on a CPU that was neither assigned before nor is
// now, and in the end all run within what is assigned. Bytes of cgroups are pairs: the list of 8 CPUs, and which one it
// is in.
func FuzzPlan(f *testing.F) {
	f.Add(true, byte(0xff), byte(0), byte(0x3), byte(0), []byte{0x0f, 0, 0x0c, 0, 0x08, 1})
	f.Add(false, byte(0xff), byte(0x30), byte(0xf0), byte(0xf0), []byte{0, 0, 0x0c, 0})
	f.Fuzz(func(t *testing.T, strict bool, online, exclusive, source, requested byte, cgroups []byte) {
		one := func(b byte) Set { return Set{[Limit / 8]byte{b}} }
		k := &kernel{strict: strict, lends: one(online &^ exclusive), exclusive: one(exclusive)}
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
		wanted, err := assign(cpus, from, node{effective: k.lends}, k.node(0))
		if err != nil {
			if source&online&^exclusive != 0 && (requested == 0 || requested&source != 0) {
				t.Errorf("assign refuses: %v", err)
			}
			return
		}
		destination := k.node(0)
		allowed := destination.effective.Union(wanted)
		if !strict {
			destination.nested = nil
		}
		for _, w := range plan(cpus, destination, wanted) {
			var i int
			if _, err := fmt.Sscan(w.dir, &i); err != nil {
				t.Fatal(err)
			}
			if err := k.write(i, w.set); err != nil {
				t.Errorf("of %+v: %v", k, err)
			}
			for i, got := range k.effective() {
				if !got.Subset(allowed) || got.Empty() {
					t.Errorf("cgroup %d runs on %q, want it within %q", i, got, allowed)
				}
			}
		}
		for i, got := range k.effective() {
			if !got.Subset(wanted) || i == 0 && got != wanted {
				t.Errorf("cgroup %d runs on %q in the end, want %q", i, got, wanted)
			}
		}
		if again := plan(cpus, k.node(0), wanted); len(again) > 0 {
			t.Errorf("plan of what is done = %v, want nothing", again)
		}
	})
}
