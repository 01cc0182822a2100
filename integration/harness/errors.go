// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"strings"
	"testing"
)

// WantClassOnce checks that a text for people names the class of an error once. A runtime whose errors have no class
// may name none.
func WantClassOnce(tb testing.TB, what, text string, class error) {
	tb.Helper()
	n := strings.Count(text, class.Error())
	if n != 1 && (n != 0 || Runtime() == Ours) {
		tb.Errorf("%s: %q tells %q %d times, want once", what, text, class, n)
	}
}
