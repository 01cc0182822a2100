// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import "testing"

// A connection is not closed under somebody who uses it.
func TestUsers_TheLastEndsTheConnection(t *testing.T) {
	closed := 0
	u := users{last: func() { closed++ }}
	first, second := u.begin(), u.begin()
	first()
	first()
	if closed != 0 {
		t.Error("closed while it is used")
	}
	third := u.begin()
	second()
	third()
	if closed != 1 {
		t.Errorf("closed %d times, want once", closed)
	}
	u.begin()()
	if closed != 2 {
		t.Errorf("closed %d times, want once more", closed)
	}
}
