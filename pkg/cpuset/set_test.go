// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/cpuset"
	"sandbox.internal/shim/pkg/internal/testx"
)

// set reads a list that is known to be good.
func set(tb testing.TB, list string) cpuset.Set {
	tb.Helper()
	s, err := cpuset.Parse(list)
	testx.Must(tb, err)
	return s
}

func TestParse_ReadsWhatTheKernelReads(t *testing.T) {
	for list, want := range map[string]string{
		"":                 "",
		"\n":               "",
		"0":                "0",
		"0-3\n":            "0-3",
		"3,1,2,0":          "0-3",
		"0-1,4-5,9":        "0-1,4-5,9",
		"0 2\t4":           "0,2,4",
		",,1,, 3,":         "1,3",
		"007":              "7",
		"0-7:2/4":          "0-1,4-5",
		"0-31:1/2,31":      "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30-31",
		"4-9:4/4":          "4-9",
		"0-9:0/3":          "",
		"0-9:3/4294967295": "0-2",
		"8191":             "8191",
		"0-8191":           "0-8191",
	} {
		got, err := cpuset.Parse(list)
		if err != nil || got.String() != want {
			t.Errorf("Parse(%q) = %q, %v, want %q", list, got, err, want)
		}
	}
}

func TestParse_Refuses(t *testing.T) {
	for _, list := range []string{
		"all", "N", "0-N", "x", "-1", "+1", "1-", "-", "3-1", "0--1", "0x1", "1.0", "0-1-2", "8192", "0-8192", "4294967296",
		"0-3:", "0-3:1", "0-3:1/", "0-3:/2", "0-3:2/1", "0-3:0/0", "3:1/2", "0-3:1/2/3", "0\n1", "1;2", "0-99999999999999999999",
		"\x00", "٣",
	} {
		got, err := cpuset.Parse(list)
		if !errors.Is(err, errdefs.ErrInvalidArgument) || !got.Empty() {
			t.Errorf("Parse(%q) = %q, %v, want %v", list, got, err, errdefs.ErrInvalidArgument)
		}
	}
	const want = `cpuset "1,5-2": "5-2": must be numbers or ranges of them from 0 to 8191, such as 0-3,8 or 0-31:1/4: invalid argument`
	if _, err := cpuset.Parse("1,5-2"); err == nil || err.Error() != want {
		t.Errorf("Parse(1,5-2) = %v, want %s", err, want)
	}
	for _, text := range []string{"z", "0-8191,"} { // the second takes 8192 steps each time
		if _, err := cpuset.Parse(strings.Repeat(text, 1<<18)); err == nil || len(err.Error()) > 400 {
			t.Errorf("Parse(%q 1<<18 times) does not fail with a short message: %v", text, err)
		}
	}
}

func TestSet_Algebra(t *testing.T) {
	for _, c := range []struct{ s, t, intersect, difference string }{
		{"", "", "", ""},
		{"0-3", "", "", "0-3"},
		{"", "0-3", "", ""},
		{"0-3", "2-5", "2-3", "0-1"},
		{"0-3", "8000", "", "0-3"},
		{"0,8000", "8000", "8000", "0"},
	} {
		s, u := set(t, c.s), set(t, c.t)
		if got := s.Intersect(u).String(); got != c.intersect {
			t.Errorf("Intersect(%q, %q) = %q, want %q", c.s, c.t, got, c.intersect)
		}
		if got := s.Difference(u); got != set(t, c.difference) {
			t.Errorf("Difference(%q, %q) = %q, want %q", c.s, c.t, got, c.difference)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "0-3,8", "0-31:1/4", "8191", "1,,2 3", "all", "3-1", "0-9:0/3"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, list string) {
		s, err := cpuset.Parse(list)
		if err != nil {
			if !errors.Is(err, errdefs.ErrInvalidArgument) || !s.Empty() {
				t.Errorf("Parse(%q) = %q, %v, want %v", list, s, err, errdefs.ErrInvalidArgument)
			}
			return
		}
		again, err := cpuset.Parse(s.String())
		if err != nil || again != s {
			t.Errorf("Parse(%q) = %q, %v, want what was printed", s, again, err)
		}
	})
}
