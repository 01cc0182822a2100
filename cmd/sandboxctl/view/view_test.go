// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package view

import "testing"

func TestOfShim(t *testing.T) {
	for line, want := range map[string]bool{
		`time="x" level=info msg="exec ended" container=c2 id=web namespace=ns`:    true,
		`time="x" level=debug msg="creating task" id=web runtime=y`:                true,
		`time="x" level=info msg="exec ended" container=web id=other namespace=ns`: false,
		`time="x" level=info msg="exec ended" container=c2 id=web namespace=ns2`:   false,
		`time="x" level=info msg="exec ended" container=c2 id=web2 namespace=ns`:   false,
		`time="x" level=info msg="exec ended" exec_id=web namespace=ns`:            false,
		`time="x" level=info msg=a id=web2 b=c id="web" namespace=ns`:              true,
		"": false,
	} {
		if got := ofShim(line, "ns", "web"); got != want {
			t.Errorf("ofShim(%q) = %t, want %t", line, got, want)
		}
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0B", 1023: "1023B", 1024: "1.0K", 10 << 10: "10K", 1<<20 + 1<<19: "1.5M", 64 << 20: "64M", 3 << 40: "3.0T",
		1<<64 - 1: "16384P",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
}

// What a container says of itself does nothing to the terminal of whoever looks at it.
func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"ready: 3 of 4 äöü": "ready: 3 of 4 äöü", "\x1b[2J\rx\n": "\ufffd[2J\ufffdx\ufffd", "\u202etxt": "\ufffdtxt", "\xff": "\ufffd",
	} {
		if got := printable(text); got != want {
			t.Errorf("printable(%q) = %q, want %q", text, got, want)
		}
	}
}
