// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"bufio"
	"fmt"
	"os/exec"
	"syscall"
	"testing"
)

// pretend starts a process that is named and called like a shim, and ends it with the test. Its program is a shell.
func (n *node) pretend(program, address string, uid uint32) int {
	n.Helper()
	n.copy("/bin/sh", program)
	cmd := exec.Command(program, "-c", "echo ready; read -r _", "-namespace", "k8s.io", "-id", "\x1b[2Jc9", "-address", address)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		n.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		n.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() {
		_ = stdin.Close() // ends it
		_ = cmd.Wait()    // read fails
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		n.Fatalf("%s: %q, %v", cmd, line, err)
	}
	return cmd.Process.Pid
}

// Shims of another containerd run from the file that is to be removed: that one needs it to clean up.
func TestInstall_ShimOfAnotherContainerdKeepsTheBinary(t *testing.T) {
	n := newNode(t, release(t, "2.4"), basic)
	n.want(0, nil, "install")
	pid := n.pretend(n.c.Env.Shim, "/run/other.sock", 0)
	installed := n.files()
	said := []string{fmt.Sprintf("shim, pid %d, of the containerd at /run/other.sock\n", pid), "remove them first"}
	n.want(1, said, "uninstall")
	n.want(1, said, "uninstall", "--binary-only")
	n.wantFiles(installed)
	n.want(0, nil, "install") // an upgrade: the process keeps its file
	n.want(1, said, "uninstall")
	n.binary = "" // a package has brought it, which says itself whether it can go
	n.want(0, nil, "uninstall", "--config-only")
}
