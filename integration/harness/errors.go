// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"strings"
	"testing"
)

// WantClassOnce checks that a text for people names the class of an error at most once.
func WantClassOnce(tb testing.TB, what, text string, class error) {
	tb.Helper()
	if n := strings.Count(text, class.Error()); n > 1 {
		tb.Errorf("%s: %q tells %q %d times, want once at most", what, text, class, n)
	}
}
