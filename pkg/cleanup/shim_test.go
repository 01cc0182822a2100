// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cleanup

import (
	"os/exec"
	"testing"
)

func TestShimProcess_Lives(t *testing.T) {
	is := func(p shimProcess, want bool, what string) {
		t.Helper()
		if got, err := p.lives(); err != nil || got != want {
			t.Errorf("%s: lives = %t, %v, want %t", what, got, err, want)
		}
	}
	this := thisProcess()
	is(this, true, "this process")
	is(shimProcess{Pid: this.Pid, Start: this.Start + "1"}, false, "another one with its id")
	is(shimProcess{}, false, "an index without a process")
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, start, err := stat(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	child := shimProcess{cmd.Process.Pid, start}
	is(child, true, "a child")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // that it was killed is what is wanted
	is(child, false, "a child that has ended")
}
