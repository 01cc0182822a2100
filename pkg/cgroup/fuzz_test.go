// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

func FuzzNumber(f *testing.F) {
	f.Add([]byte("low 0\nhigh 0\nmax 4\noom 1\noom_kill 7\n"), "oom_kill")
	f.Add([]byte("oom_kill_disable 0\nunder_oom 0\noom_kill 18446744073709551615\n"), "oom_kill")
	f.Add([]byte("max\n"), "")
	f.Add([]byte("9223372036854771712\n"), "")
	f.Add([]byte("a max"), "a")
	f.Fuzz(func(t *testing.T, text []byte, key string) {
		n, err := numberOf(text, key)
		switch {
		case err != nil && n != 0:
			t.Errorf("numberOf(%q, %q) = %d, %v", text, key, n, err)
		case err == nil && !bytes.Contains(text, []byte(key)):
			t.Errorf("numberOf(%q, %q) = %d, which it does not say", text, key, n)
		case err == nil && n == math.MaxUint64 && !bytes.Contains(text, []byte("max")) &&
			!bytes.Contains(text, []byte("18446744073709551615")):
			t.Errorf("numberOf(%q, %q) is unlimited", text, key)
		case errdefs.IsNotImplemented(err) && bytes.HasPrefix(text, []byte(key+" 1\n")) && key == strings.TrimSpace(key) &&
			!strings.ContainsAny(key, " \n"):
			t.Errorf("numberOf(%q, %q) = %v", text, key, err)
		}
	})
}

func FuzzProcs(f *testing.F) {
	for _, text := range []string{"", "1\n22\n0\n", "1\n1\n", "-3\n", "99999999999999999999\n", "\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		before := []int{7}
		pids, err := parseProcs(before, text)
		if len(pids) > 1+bytes.Count(text, []byte("\n"))+1 || pids[0] != 7 || slices.Min(pids) < 1 {
			t.Errorf("parseProcs(%q) = %d, %v", text, pids, err)
		}
	})
}

// A process chooses its name, which may have parentheses and line feeds.
func FuzzProgramAndState(f *testing.F) {
	f.Add([]byte("1 (a) S 0 1"))
	f.Add([]byte("1 (a) R) D\n) Z 0"))
	f.Add([]byte(")("))
	f.Fuzz(func(t *testing.T, stat []byte) {
		if said := programAndState(stat); len(said) > len(stat)+len("gone, state ")+4 {
			t.Errorf("programAndState(%q) = %q", stat, said)
		}
	})
}
