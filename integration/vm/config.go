// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"cmp"
	"io"
	"os"
	"runtime"
	"strings"
	"time"
)

// Config is the command to run and its machine. Begin with Default.
type Config struct {
	Command []string // and its arguments
	Dir     string   // in which the command begins
	Env     []string // the command's, as NAME=VALUE
	Stdout  io.Writer
	Stderr  io.Writer

	Arch    string   // the guest's processor, as Go names it
	Root    string   // a directory with the guest's root, as root.sh makes it; the host's when empty
	V1      bool     // systemd, which then has to be pid 1, mounts cgroup v1, and v2 beside it without controllers
	See     []string // directories of the host that the guest sees beside Dir where it has a root of its own
	Systemd bool     // systemd is pid 1, with D-Bus, and the command is a service
	Share   []string // directories of the host that the command may change
	Tmpfs   []string // where an empty tmpfs is mounted
	Disk    string   // size of an empty ext4 disk at /disk, none when empty
	CPUs    int
	Append  string // more kernel parameters

	Timeout time.Duration // how long the command may take, the boot included
	Kernel  string        // the series of a kernel of Debian's; see findKernel for the default
	Console io.Writer     // gets what the guest's kernel says
}

// Default returns a machine that suits the tests of this repository. It has no command yet.
func Default() Config {
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	return Config{
		Dir:     dir,
		Env:     inherited(),
		Stdout:  os.Stdout,
		Stderr:  os.Stderr,
		Tmpfs:   []string{"/var/lib/containerd"},
		CPUs:    4,
		Timeout: 10 * time.Minute,
		Console: io.Discard,
		Arch:    cmp.Or(os.Getenv("GOARCH"), runtime.GOARCH),
	}
}

// inherited is what a command always has of the caller's environment.
func inherited() []string {
	var env []string
	for _, v := range os.Environ() {
		switch name, _, _ := strings.Cut(v, "="); {
		case name == "PATH", name == "HOME", name == "LANG", name == "TERM", strings.HasPrefix(name, "GO"):
			env = append(env, v)
		}
	}
	return env
}
