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

func TestParse_ReadsWhatTheKernelPrints(t *testing.T) {
	for list, want := range map[string]string{
		"": "", "0": "0", "0-3": "0-3", "3,1,2,0": "0-3", "0-1,4-5,9": "0-1,4-5,9", "007": "7", "8191": "8191", "0-8191": "0-8191",
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
		"0-3:1/2", "0 2", "1,", ",1", "0\n1", "1;2", "0-99999999999999999999", "\x00", "٣", strings.Repeat("z", 1<<18),
	} {
		got, err := cpuset.Parse(list)
		if !errors.Is(err, errdefs.ErrInvalidArgument) || !got.Empty() || len(err.Error()) > 400 {
			t.Errorf("Parse(%q) = %q, %v, want a short %v", list, got, err, errdefs.ErrInvalidArgument)
		}
	}
}

func TestSet_Intersect(t *testing.T) {
	for _, c := range []struct{ s, t, want string }{
		{"", "", ""},
		{"0-3", "", ""},
		{"", "0-3", ""},
		{"0-3", "2-5", "2-3"},
		{"0-3", "8000", ""},
		{"0,8000", "8000", "8000"},
	} {
		if got := set(t, c.s).Intersect(set(t, c.t)).String(); got != c.want {
			t.Errorf("Intersect(%q, %q) = %q, want %q", c.s, c.t, got, c.want)
		}
	}
}
