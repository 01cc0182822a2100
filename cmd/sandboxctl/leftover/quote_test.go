// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package leftover

import (
	"os/exec"
	"testing"
)

// A shell makes of a quoted word the word.
func TestQuote(t *testing.T) {
	for _, word := range []string{
		"/run/containerd/s/0", "a b", "it's", "$(reboot)", "`reboot`", "a;b", "-rf", "", `\`, "*", "a\nb", "''", `"`, "~", "#a", "!a",
	} {
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+quote(word)).Output()
		if err != nil || string(out) != word {
			t.Errorf("quote(%q) = %s, of which a shell makes %q, %v", word, quote(word), out, err)
		}
	}
}

func FuzzQuote(f *testing.F) {
	f.Add("it's $(a)")
	f.Fuzz(func(t *testing.T, word string) {
		for _, r := range word {
			if r == 0 {
				t.Skip() // no argument has it
			}
		}
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+quote(word)).Output()
		if err != nil || string(out) != word {
			t.Errorf("quote(%q) = %s, of which a shell makes %q, %v", word, quote(word), out, err)
		}
	})
}
