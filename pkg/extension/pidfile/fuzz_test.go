// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pidfile

import (
	"strconv"
	"testing"
)

func FuzzParse(f *testing.F) {
	for _, text := range []string{"1", "4194304\n", "", "-1", "+1", "99999999999", "0x1", "1 ", "1\n\n", "00000000001"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		data = data[:min(len(data), digits+2)] // as much as Read reads
		pid, ok := parse(data)
		if !ok {
			return
		}
		if again, ok := parse([]byte(strconv.Itoa(pid))); pid < 0 || !ok || again != pid {
			t.Errorf("parse(%q) = %d, and of that %d, %t", data, pid, again, ok)
		}
	})
}
