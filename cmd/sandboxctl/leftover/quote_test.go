// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package leftover

import (
	"os/exec"
	"strings"
	"testing"
)

// A shell makes of a quoted word the word.
func FuzzQuote(f *testing.F) {
	for _, word := range []string{
		"/run/containerd/s/0", "a b", "it's", "$(reboot)", "`reboot`", "a;b", "-rf", "", `\`, "*", "a\nb", "''", `"`, "~", "#a", "!a",
	} {
		f.Add(word)
	}
	f.Fuzz(func(t *testing.T, word string) {
		if strings.ContainsRune(word, 0) {
			t.Skip() // no argument has it
		}
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+quote(word)).Output()
		if err != nil || string(out) != word {
			t.Errorf("quote(%q) = %s, of which a shell makes %q, %v", word, quote(word), out, err)
		}
	})
}
