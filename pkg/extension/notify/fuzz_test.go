// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"
)

// A message's control data come from the kernel, but what is in them from whoever sent it.
func FuzzControl(f *testing.F) {
	f.Add(unix.UnixRights(5, 6, 7))
	f.Add(append(unix.UnixCredentials(&unix.Ucred{Pid: 9, Uid: 1}), unix.UnixRights(0)...))
	f.Add([]byte{17, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, control []byte) {
		sender, rights := open(control)
		says := bytes.Contains(control, []byte{unix.SCM_RIGHTS, 0, 0, 0})
		if len(rights) > len(control)/bytesOfAnFD || len(rights) > 0 && !says {
			t.Errorf("open(%x) = %+v, %v", control, sender, rights)
		}
	})
}
