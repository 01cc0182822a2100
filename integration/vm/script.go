// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"strings"
)

// settings is what the guest's scripts know of the configuration, as a shell script.
func settings(c Config, k kernel) string {
	flag := func(on bool) string {
		if on {
			return "1"
		}
		return ""
	}
	return fmt.Sprintf("RELEASE=%s\nMODULES=%s\nROOT=%s\nSYSTEMD=%s\nDISK=%s\nV1=%s\n",
		quote(k.release), quote(k.modules), quote(c.Root), flag(c.Systemd), flag(c.Disk != ""), flag(c.V1))
}

// command is the script that becomes the command, in its directory and with its environment.
func command(c Config) string {
	var b strings.Builder
	b.WriteString("export TMPDIR=/run/tmp USER=root\n")
	for _, v := range c.Env {
		name, value, _ := strings.Cut(v, "=")
		fmt.Fprintf(&b, "export %s=%s\n", name, quote(value))
	}
	fmt.Fprintf(&b, "cd %s || exit %d\nexec", quote(c.Dir), StatusFailed)
	for _, arg := range c.Command {
		b.WriteString(" " + quote(arg))
	}
	b.WriteString("\n")
	return b.String()
}

// quote makes one word of the shell's language.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
