// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// UML as Config.Kernel is user-mode Linux: Debian's kernel that is a process of the host, in place of one in qemu.
const UML = "uml"

// uml is the program of that kernel.
const uml = "linux.uml"

// umlKernel returns the installed one.
func umlKernel() (kernel, error) {
	image, err := lookPath(uml)
	if err != nil {
		return kernel{}, err
	}
	const pattern = "/usr/lib/uml/modules/*/modules.dep"
	found, err := filepath.Glob(pattern)
	if err != nil {
		return kernel{}, err
	}
	if len(found) != 1 { // Debian's package has those of its kernel
		return kernel{}, fmt.Errorf("modules of %s: %s is %q, want one: %w", uml, pattern, found, errdefs.ErrNotFound)
	}
	modules := filepath.Dir(found[0])
	return kernel{image: image, release: filepath.Base(modules), modules: modules}, nil
}

// umlCommand returns the command that is the guest, whose files are in dir. disk is empty or the image of the disk.
func umlCommand(c Config, b base, initrd, disk, dir string) func(context.Context) *exec.Cmd {
	args := []string{
		// The kernel ends itself by SIGABRT after a panic, and pid 1 of a namespace of processes cannot do that.
		"-c", `"$0" "$@"; exit $?`, b.kernel,
		// Without seccomp each process of the guest is traced. With it, newer kernels would give each a filter of its
		// own, and the host has to bear thousands of these.
		"seccomp=off",
		"mem=" + c.Memory, "initrd=" + initrd, "uml_dir=" + dir,
		"console=tty0", umlChannel("con0", pipeConsole), "con=null", "quiet", "panic=-1",
		"security=none", // its default is SELinux, of which the guest has no policy
	}
	for port := range ports {
		args = append(args, umlChannel(fmt.Sprintf("ssl%d", port+1), pipeStdout+port))
	}
	if disk != "" {
		args = append(args, "ubd0="+disk)
	}
	args = append(args, parameters(c)...)
	return func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "/bin/sh", args...)
		cmd.Env = []string{"TMPDIR=" + dir} // for the guest's memory, a file without a name
		// The processes of the guest are processes of the host. All are killed when the first of their namespace ends,
		// however it ends: one that its tracer has left would go on with system calls of the host.
		cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
		return cmd
	}
}

// umlChannel is a device whose output goes to an inherited descriptor.
func umlChannel(device string, fd int) string { return fmt.Sprintf("%s=null,fd:%d", device, fd) }
