// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"fmt"
	"os"
	"testing"
	"time"
)

func TestInherit_FollowsParents(t *testing.T) {
	list := []ProcessInfo{
		{Pid: 1, First: true},
		{Pid: 2, parent: 9},
		{Pid: 3, parent: 1},
		{Pid: 4, parent: 3},
		{Pid: 5, Exec: "e1", First: true},
		{Pid: 7, parent: 2},
		{Pid: 9, parent: 5},
		{Pid: 11, parent: 10},
		{Pid: 12, parent: 13},
		{Pid: 13, parent: 12},
	}
	inherit(list)
	want := map[int]string{2: "e1", 5: "e1", 7: "e1", 9: "e1"}
	for _, p := range list {
		if p.Exec != want[p.Pid] {
			t.Errorf("process %d is of %q, want %q", p.Pid, p.Exec, want[p.Pid])
		}
	}
}

func TestParseStat(t *testing.T) {
	boot := time.Unix(1000, 0)
	const numbers = "S 12 1 1 0 -1 4194560 1 0 0 0 150 50 7 3 20 0 1 0 1234 2000000 250 18446744073709551615"
	for name, want := range map[string]string{"sh": "sh", "a) R 9 (b": "a) R 9 (b", "\xff": "?"} {
		p, err := parseStat([]byte("7 ("+name+") "+numbers+"\n"), boot)
		got := fmt.Sprint(p.Name, p.parent, p.CPU, p.Started.Sub(boot), p.RSS/uint64(os.Getpagesize()))
		if err != nil || got != want+"12 2s 12.34s 250" {
			t.Errorf("%q: %s, %v", name, got, err)
		}
	}
	for _, text := range []string{"", "7 sh S 1", "7 )sh( S", "7 (sh) S 1", "7 (sh) S x " + numbers} {
		if p, err := parseStat([]byte(text), boot); err == nil {
			t.Errorf("%q is read as %+v", text, p)
		}
	}
}
