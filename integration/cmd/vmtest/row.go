// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/section"
)

// The head of the table in docs/compatibility.md that runs with -write make. A run replaces the row of the same
// machine, which is what the first four columns say.
const (
	rowsHead = "| kernel | security module | cgroup | architecture | when | result | passed (skipped, failed) |\n" +
		"| --- | --- | --- | --- | --- | --- | --- |\n"
	rowKey = 4
)

// row says what was run on a machine, which is this one, and with what result.
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

// putRow writes a row into the table of a page.
func putRow(name, line string) error {
	return section.Rewrite(name, "kernels", func(table string) string { return withRow(table, line) })
}

func withRow(table, line string) string {
	lines := slices.Collect(strings.Lines(strings.TrimPrefix(table, rowsHead)))
	lines = slices.DeleteFunc(lines, func(other string) bool { return machineOf(other) == machineOf(line) })
	lines = append(lines, line)
	slices.Sort(lines)
	return rowsHead + strings.Join(lines, "")
}

// machineOf is the series of a row's kernel and the other columns that name a machine.
func machineOf(line string) string {
	columns := strings.SplitN(line, "|", rowKey+2)
	if len(columns) < rowKey+2 {
		return line
	}
	numbers := strings.SplitN(strings.TrimSpace(columns[1]), ".", 3)
	columns[1] = strings.Join(numbers[:min(2, len(numbers))], ".")
	return strings.Join(columns[:rowKey+1], "|")
}

// rowFile is where the guest leaves the row for the host.
func rowFile(logs string) string { return filepath.Join(logs, "row.md") }
