// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/launcher/seccomp"
)

// reader reads a request as the program does (pkg/launcher/native/program/program.h).
type reader struct {
	t *testing.T
	b []byte
}

func (r reader) word(at uint64) uint64 {
	r.t.Helper()
	if at%8 != 0 || at+8 > uint64(len(r.b)) {
		r.t.Fatalf("a word at %d of %d bytes", at, len(r.b))
	}
	return binary.LittleEndian.Uint64(r.b[at:])
}

func (r reader) text(at uint64) string {
	r.t.Helper()
	if at >= uint64(len(r.b)) {
		r.t.Fatalf("a string at %d of %d bytes", at, len(r.b))
	}
	text, _, ok := bytes.Cut(r.b[at:], []byte{0})
	if !ok {
		r.t.Fatalf("the string at %d has no end", at)
	}
	return string(text)
}

// list is the list of strings at an offset in the data.
func (r reader) list(at uint64) (list []string) {
	data := headerSize + r.word(8)*stepSize + r.word(16)*8
	for at += data; r.word(at) != 0; at += 8 {
		list = append(list, r.text(data+r.word(at)))
	}
	return list
}

const (
	headerSize = 24
	stepSize   = 96
	opCall     = 0
	opFork     = 1
)

type step struct {
	op, call  uint64
	args      [6]uint64
	condition int64
}

func (r reader) steps() (steps []step) {
	for i := range r.word(8) {
		word := func(field uint64) uint64 { return r.word(headerSize + i*stepSize + 8*field) }
		s := step{op: word(0), call: word(1), condition: int64(word(9))}
		for j := range s.args {
			s.args[j] = word(2 + uint64(j))
		}
		steps = append(steps, s)
	}
	return steps
}

// addresses are the words that the program turns into addresses.
func (r reader) addresses() map[uint64]bool {
	found := map[uint64]bool{}
	steps, n := r.word(8), r.word(16)
	for i := range n {
		at := r.word(headerSize + steps*stepSize + 8*i)
		if found[at] {
			r.t.Errorf("the word at %d is relocated twice", at)
		}
		found[at] = true
		if r.word(at) >= uint64(len(r.b)) {
			r.t.Errorf("the word at %d leads to %d of %d bytes", at, r.word(at), len(r.b))
		}
	}
	return found
}

func FuzzRequest(f *testing.F) {
	f.Add("probe\x00an argument\x00", "PATH=/bin:/usr/bin\x00A=1", "/tmp", 1000, uint8(0xff))
	f.Add("", "", "", 0, uint8(0))
	f.Add("./x", "PATH=::", "/", math.MaxInt32, uint8(0x55))
	f.Fuzz(func(t *testing.T, args, env, cwd string, uid int, what uint8) {
		split := func(s string) []string { return strings.Split(s, "\x00") }
		cwd, _, _ = strings.Cut(cwd, "\x00")
		has := func(bit int) bool { return what>>bit&1 == 1 }
		c := &Process{
			Args: split(args), Env: split(env), Cwd: cwd, FindHome: has(0), Join: unix.CLONE_NEWNS,
			UID: uid, GID: uid, MayDenyGroups: has(1), Groups: []int{uid},
		}
		if has(2) {
			c.Terminal = &Terminal{Width: 1, Height: 2}
		}
		if has(3) {
			c.Capabilities = &Capabilities{Ambient: uint64(uid), Last: 40}
		}
		if has(4) {
			c.Filter = seccomp.NewFilter(0, make([]unix.SockFilter, 3))
		}
		if has(5) {
			c.Cgroups.Unified, c.Cgroups.Tasks = "/a", []string{"/b", cwd}
		}
		c.NoNewPrivileges = has(6)
		if has(7) {
			c.OOMScoreAdj, c.Keyring = &uid, cwd
		}
		r := reader{t, c.request(false).Encode()}
		if got := r.word(0); got != uint64(len(r.b)) || got%8 != 0 || r.b[got-1] != 0 {
			t.Fatalf("a size of %d in %d bytes that end with %d", got, len(r.b), r.b[len(r.b)-1])
		}
		if most := 32<<10 + 32*(len(args)+len(env)+len(cwd)); len(r.b) > most {
			t.Errorf("%d bytes for arguments of %d, an environment of %d and a directory of %d, want at most %d",
				len(r.b), len(args), len(env), len(cwd), most)
		}
		addresses := r.addresses()
		last := headerSize + (r.word(8)-1)*stepSize
		if !addresses[last+16] || !addresses[last+24] {
			t.Fatalf("arguments and environment at %d are no addresses", last)
		}
		if got := r.list(r.word(last + 16)); !slices.Equal(got, c.Args) {
			t.Errorf("arguments %q, want %q", got, c.Args)
		}
		want := c.Env
		if c.FindHome {
			want = append(slices.Clip(want), "") // room for HOME
		}
		if got := r.list(r.word(last + 24)); !slices.Equal(got, want) {
			t.Errorf("environment %q, want %q", got, want)
		}
		for i, s := range r.steps() {
			if s.condition > int64(i) || s.condition < -int64(i) {
				t.Errorf("step %d depends on step %d", i, s.condition)
			}
		}
	})
}

// A change of credentials makes a process dumpable where fs.suid_dumpable is not 0.
func TestRequest_LetsNoDumpableProcessGoOn(t *testing.T) {
	for _, c := range []*Process{
		{Args: []string{"true"}, Cgroups: Cgroups{Unified: "/x"}, Join: unix.CLONE_NEWNS},
		{Args: []string{"true"}, Cgroups: Cgroups{Unified: "/x"}, Join: unix.CLONE_NEWNS | unix.CLONE_NEWUSER},
		{Args: []string{"true"}, Terminal: &Terminal{}, Join: unix.CLONE_NEWNS | unix.CLONE_NEWUSER},
	} {
		dumpable := true
		forks := 0
		for i, s := range (reader{t, c.request(false).Encode()}).steps() {
			switch {
			case s.op == opFork:
				forks++
				if dumpable {
					t.Errorf("%+v: dumpable at the fork of step %d", c, i)
				}
			case s.op != opCall:
			case s.call == unix.SYS_PRCTL && s.args[0] == unix.PR_SET_DUMPABLE:
				dumpable = false
			case s.call == unix.SYS_SETNS:
				dumpable = dumpable || c.Join&unix.CLONE_NEWUSER != 0
			case s.call == unix.SYS_SETRESUID || s.call == unix.SYS_SETUID || s.call == unix.SYS_SETGID:
				dumpable = true
			}
		}
		if dumpable {
			t.Errorf("%+v: dumpable at the end", c)
		}
		if want := strings.Count(c.Cgroups.Unified, "/") + 1; forks != want {
			t.Errorf("%+v: %d forks, want %d", c, forks, want)
		}
	}
}

// A link of procfs to what an init has open could lead to the host.
func TestInit_LooksForHomeWithNothingOfTheHostOpen(t *testing.T) {
	for _, c := range []Process{
		{},
		{Label: "label", Profile: "profile"},
		{Label: "label", Terminal: &Terminal{}},
	} {
		c.Args, c.Cwd, c.FindHome = []string{"true"}, "/", true
		i := &Container{Process: c, Root: "/rootfs", Namespaces: []Namespace{{Type: unix.CLONE_NEWNS}, {Type: unix.CLONE_NEWPID}}}
		for _, reaped := range []bool{false, true} {
			i.Reaped = reaped
			var final bool
			closed, home := -1, -1
			for n, s := range (reader{t, containerRequest(i, false, &final).Encode()}).steps() {
				switch {
				case s.op == opCall && s.call == unix.SYS_CLOSE_RANGE:
					closed = n
				case s.op == opCall && s.call == unix.SYS_MEMFD_CREATE:
					home = n
				}
			}
			if closed < 0 || home < closed {
				t.Errorf("%+v, reaped %t: HOME is looked for in step %d, and all is closed in step %d", c, reaped, home, closed)
			}
		}
	}
}
