// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// row is the row of docs/compatibility.md that says what was run on this machine, and with what result.
func row(tests []test, results []result, now time.Time) (string, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return "", fmt.Errorf("uname: %w", err)
	}
	module, err := securityModule()
	if err != nil {
		return "", err
	}
	group := "v1"
	if unified() {
		group = "v2"
	}
	if booted() {
		version, err := exec.Command("systemctl", "--version").Output() // "systemd 252 (252.39-1~deb12u1)"
		if err != nil {
			return "", fmt.Errorf("version of systemd: %w", err)
		}
		name, _, _ := strings.Cut(string(version), " (")
		group += ", " + name
	}
	verdict := "passed"
	var parts []string
	for i, r := range results {
		if r.failure != nil {
			verdict = "**failed**"
		}
		parts = append(parts, fmt.Sprintf("%s %d%s", tests[i].Package, r.passed, r.less()))
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s |\n", unix.ByteSliceToString(uts.Release[:]), module, group,
		runtime.GOARCH, now.Format(time.DateOnly), verdict, strings.Join(parts, ", ")), nil
}

// less is what was skipped and what failed.
func (r result) less() string {
	if r.skipped+r.failed == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d, %d)", r.skipped, r.failed)
}

// securityModule names the one of the kernel that confines containers.
func securityModule() (string, error) {
	list, err := os.ReadFile("/sys/kernel/security/lsm")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	for name := range strings.SplitSeq(strings.TrimSpace(string(list)), ",") {
		if name == "apparmor" || name == "selinux" {
			return name, nil
		}
	}
	return "none", nil
}
