// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/shim/integration/harness"
)

const preremove = deployDir + "/package/preremove.sh"

// pretend starts a process that is named and called like a shim, and ends it with the test. Its program is a shell.
func (n *node) pretend(program, address string, uid uint32) int {
	n.Helper()
	n.copy("/bin/sh", program)
	cmd := exec.Command(program, "-c", "echo ready; read -r _", "-namespace", "k8s.io",
		"-id", "\x1b[2Jc9", "-address", address)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	stdin, err := cmd.StdinPipe()
	harness.Must(n, err)
	stdout, err := cmd.StdoutPipe()
	harness.Must(n, err)
	harness.Must(n, cmd.Start())
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

// openDir is a directory in which anybody can run programs.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{dir, filepath.Dir(dir)} {
		harness.Must(t, os.Chmod(name, 0o755))
	}
	return dir
}

// A user's process that is named and called like a shim does not keep the runtime on the node.
func TestInstall_ProcessOfAnotherUserIsNoShim(t *testing.T) {
	n := newNode(t, release(t, "2.4"), basic)
	n.want(0, nil, "install")
	n.pretend(filepath.Join(openDir(t), shimName), n.c.Address, 65534)
	n.want(0, []string{"removed"}, "uninstall")
}

// many goes on with hundreds of processes and little room for arguments.
const many = `for n in $(seq 400); do sleep 1000 <&- >&- 2>&- & done
large=$(head -c 61000 /dev/zero | tr '\0' a)
ulimit -s 256
exec env -i PATH="$PATH" A="$large" B="$large" sh "$1" remove`

// The script of a package refuses its removal for a shim, and for nothing that only looks like one. It prints no escape
// sequence that is in the arguments of a process.
func TestPreremove_CountsShimsAlone(t *testing.T) {
	harness.OursOnly(t, "to be in a package")
	tests := []struct {
		name    string
		by      string // starts the process
		program string // the name of its file
		after   string // what happens before the removal
		status  int
	}{
		{name: "a shim", program: shimName, status: 1},
		{name: "a shim after an upgrade", program: shimName, after: `rm "$program"`, status: 1},
		{name: "a shim among more processes than a program can have arguments", program: shimName, after: many, status: 1},
		{name: "another program", program: "sh"},
		{
			name: "another user", program: shimName,
			by: "setpriv --reuid=65534 --regid=65534 --clear-groups --",
		},
		{name: "root in a container", program: shimName, by: "unshare --pid --fork --kill-child --"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), harness.Slow(time.Minute))
			defer cancel()
			// In a pid namespace without the shims of this machine. What is started ends with its first process.
			script := `set -eu
program=$2/` + tt.program + `
cp /bin/sh "$program"
mkfifo "$2/in" "$2/out"
exec 3<>"$2/in" 4<>"$2/out"
` + tt.by + ` "$program" -c 'echo ready; read -r _' /` + shimName + ` -namespace k8s.io -id "$(printf '\033[2Jc9')" \
	-address /run/c.sock <&3 >&4 &
read -r line <&4
` + tt.after + `
sh "$1" remove`
			dir := openDir(t)
			file := filepath.Join(dir, "script") // the arguments of its shell say nothing of a shim
			harness.Must(t, os.WriteFile(file, []byte(script), 0o644))
			cmd := exec.CommandContext(ctx, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--",
				"sh", file, preremove, dir)
			out, err := cmd.CombinedOutput()
			if got := cmd.ProcessState.ExitCode(); got != tt.status {
				t.Errorf("exit status %d, want %d: %v\n%q", got, tt.status, err, out)
			}
			if named := strings.Contains(string(out), "[2Jc9 in namespace k8s.io\n"); named != (tt.status == 1) {
				t.Errorf("it names the container: %t\n%q", named, out)
			}
			if strings.Contains(string(out), "\x1b") {
				t.Errorf("it prints an escape sequence: %q", out)
			}
		})
	}
}
