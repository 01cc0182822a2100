// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"fmt"
	"os"
	"syscall"
	"testing"
)

// The names of the files that install.sh prepares are fixed.
func TestInstall_ThatIsRefusedLeavesTheFilesOfTheOneAtWork(t *testing.T) {
	n := newNode(t, release(t, "2.4"), basic)
	lock(n)
	prepared := n.config + ".sandbox-part"
	if err := os.WriteFile(prepared, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := n.files()
	n.want(1, []string{"another install.sh is at work"}, "install")
	n.wantFiles(before)
	if err := os.Remove(prepared); err != nil {
		t.Error(err)
	}
}

// lock takes the lock of install.sh.
func lock(n *node) {
	f, err := os.OpenFile("/run/"+shimName+".lock", os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { _ = f.Close() }) // this unlocks
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		n.Fatal(fmt.Errorf("lock %s: %w", f.Name(), err))
	}
}
