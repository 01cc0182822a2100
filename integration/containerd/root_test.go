// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sandbox.internal/shim/integration/harness"
)

// inRoot runs containerd where nothing is of this machine's file systems but the kernel's and containerd's directory,
// which is the one of its configuration: containerd --config FILE. No option: --version.
const inRoot = `#!/bin/sh
set -e
[ "$1" = --config ] || exec %[2]s "$@"
export root=%[1]s dir="${2%%/*}"
exec unshare --mount --propagation private sh -e -c '
	mount --bind "$root" "$root"
	for sub in /dev /proc /sys "$dir"; do
		mkdir -p "$root$sub"
		mount --rbind "$sub" "$root$sub"
	done
	cd "$root"
	mkdir -p before
	pivot_root . before
	export PATH=/bin
	umount -l /before
	exec /bin/containerd "$@"' sh "$@"
`

// A root as that of a distribution without glibc: it has busybox, the shim and containerd, each without shared
// libraries, and no library at all.
func TestRoot_WithoutACLibrary(t *testing.T) {
	harness.OursOnly(t, "a shim that needs nothing of the machine's root")
	programs := shared.Env
	root := publicDir(t)
	if err := harness.WriteRootfs(programs, root); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{programs.Daemon, programs.Shim} {
		copyFile(t, program, filepath.Join(root, "bin", filepath.Base(program)))
	}
	script := filepath.Join(t.TempDir(), "containerd")
	if err := os.WriteFile(script, fmt.Appendf(nil, inRoot, root, programs.Daemon), 0o755); err != nil {
		t.Fatal(err)
	}
	programs.Daemon = script
	c := startContainerd(t, programs)
	for _, b := range []body{
		{"a container and its exit", testRun},
		{"an exec and its exit", testExec},
		{"a signal", testSignal},
		{"a paused container", testPaused},
	} {
		t.Run(b.name, func(t *testing.T) { b.run(newEnvOn(t, c)) })
	}
	t.Run("the shim has this root", func(t *testing.T) {
		e := newEnvOn(t, c)
		task := e.run("c1", config{}, "sleep", "1000")
		for _, lib := range []string{"lib", "lib64", "usr"} {
			name := filepath.Join("/proc", fmt.Sprint(e.shim("c1")), "root", lib)
			e.must(absent(name), name)
		}
		task.kill()
	})
}
