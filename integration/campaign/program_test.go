// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"slices"
	"testing"
)

// Each program either ends, with a status that the model knows, or does not.
func TestProgram_EndsOrDoesNot(t *testing.T) {
	for p := range program(len(programNames)) {
		if p.endless() == (len(p.codes()) > 0) {
			t.Errorf("%v: endless %t, with the statuses %v", p, p.endless(), p.codes())
		}
		if len(p.argv(false)) == 0 {
			t.Errorf("%v has no command line", p)
		}
	}
	for _, p := range slices.Concat(ofInit, ofExec) {
		if !p.hostile() {
			t.Errorf("%v is not hostile", p)
		}
	}
}

func TestCPUList(t *testing.T) {
	for _, tt := range []struct {
		mask, count int
		want        string
	}{
		{^0, 4, "0-3"}, {0b1011, 4, "0-1,3"}, {0b1010, 4, "1,3"}, {0b1000, 2, "0"}, {0b1010, 2, "1"}, {^0, 2, "0-1"},
	} {
		if got := cpuList(tt.mask, tt.count); got != tt.want {
			t.Errorf("cpuList(%b, %d) = %q, want %q", tt.mask, tt.count, got, tt.want)
		}
	}
}
