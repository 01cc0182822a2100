// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// machine is what the figures depend on beside the subjects.
type machine struct {
	CPU      string   `json:"cpu"`
	CPUs     int      `json:"cpus"`
	GiB      uint64   `json:"gib"`
	Kernel   string   `json:"kernel"`
	Cgroup   string   `json:"cgroup"`
	Emulated bool     `json:"emulated"`
	Load     string   `json:"load"` // average of one minute, before the first run
	Versions []string `json:"versions"`

	Controllers string `json:"controllers,omitempty"` // of cgroup v2 alone
}

func (m machine) String() string {
	kind := ""
	if m.Emulated {
		kind = "EMULATED by qemu, so that only the ratios say something: "
	}
	group := m.Cgroup
	if m.Controllers != "" {
		group += " with " + m.Controllers
	}
	return fmt.Sprintf("%s%d × %s, %d GiB, Linux %s, cgroup %s", kind, m.CPUs, m.CPU, m.GiB, m.Kernel, group)
}

// readMachine asks the kernel, and the programs for their versions.
func readMachine(ctx context.Context, tools string, subjects []*subject) (machine, error) {
	m := machine{CPUs: runtime.NumCPU(), Cgroup: harness.CgroupMode()}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return m, err
	}
	m.Kernel = unix.ByteSliceToString(uts.Release[:])
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return m, err
	}
	m.GiB = (info.Totalram*uint64(info.Unit) + 1<<29) >> 30
	cpu, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return m, err
	}
	m.CPU = cpuModel(string(cpu))
	m.Emulated = strings.Contains(m.CPU, "QEMU")
	if m.Cgroup == "v2" {
		controllers, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
		if err != nil {
			return m, err
		}
		m.Controllers = strings.TrimSpace(string(controllers))
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return m, err
	}
	m.Load, _, _ = strings.Cut(string(load), " ")

	programs := []string{filepath.Join(tools, "containerd"), subjects[ours].shim}
	for i, s := range subjects {
		if i != ours {
			programs = append(programs, s.inner)
		}
	}
	for _, program := range programs {
		version, err := versionOf(ctx, program)
		if err != nil {
			return m, err
		}
		m.Versions = append(m.Versions, version)
	}
	return m, nil
}

// cpuModel finds the name in /proc/cpuinfo.
func cpuModel(text string) string {
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// versionOf returns the name and version of a program.
func versionOf(ctx context.Context, program string) (string, error) {
	out, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", program, err)
	}
	return filepath.Base(program) + " " + parseVersion(string(out)), nil
}

// parseVersion finds what follows the word "version", or else the first word that begins with a digit.
func parseVersion(text string) string {
	words := strings.Fields(text)
	for i, word := range words[:max(0, len(words)-1)] {
		if strings.EqualFold(strings.TrimSuffix(word, ":"), "version") {
			return words[i+1]
		}
	}
	for _, word := range words {
		if word[0] >= '0' && word[0] <= '9' {
			return word
		}
	}
	return "of an unknown version"
}
