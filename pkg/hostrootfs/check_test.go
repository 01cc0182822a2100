// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package hostrootfs

import "testing"

func TestIsMasked(t *testing.T) {
	for path, want := range map[string]bool{"/masked": true, "/masked/in": true, "/maskednot": false, "/": false} {
		if got := isMasked(path, []string{"/masked/"}); got != want {
			t.Errorf("isMasked(%s) = %t, want %t", path, got, want)
		}
	}
}
