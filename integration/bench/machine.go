// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	Cgroup   string   `json:"cgroup"` // of v2 alone, with its controllers
	Load     string   `json:"load"`   // average of one minute, before the first run
	Versions []string `json:"versions"`
}

func (m machine) String() string {
	kind := ""
	if strings.Contains(m.CPU, "QEMU") {
		kind = "EMULATED by qemu, so that only the ratios say something: "
	}
	return fmt.Sprintf("%s%d × %s, %d GiB, Linux %s, cgroup %s", kind, m.CPUs, m.CPU, m.GiB, m.Kernel, m.Cgroup)
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
	m.CPU = runtime.GOARCH
	cpu, err := os.ReadFile("/proc/cpuinfo")
	if name := cpuModel.FindSubmatch(cpu); name != nil {
		m.CPU = string(name[1])
	}
	load, e := os.ReadFile("/proc/loadavg")
	m.Load, _, _ = strings.Cut(string(load), " ")
	if err = errors.Join(err, e); err != nil {
		return m, err
	}
	if m.Cgroup == "v2" {
		controllers, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
		if err != nil {
			return m, err
		}
		m.Cgroup += " with " + strings.TrimSpace(string(controllers))
	}
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

// cpuModel is in /proc/cpuinfo. version is what follows that word in what programs print, or else what begins with a
// digit.
var (
	cpuModel = regexp.MustCompile(`(?m)^model name\s*: (.*)$`)
	version  = regexp.MustCompile(`(?i)version:?\s+(\S+)|\s(\d\S*)`)
)

// versionOf returns the name and version of a program.
func versionOf(ctx context.Context, program string) (string, error) {
	out, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", program, err)
	}
	found := version.FindStringSubmatch(string(out))
	if found == nil {
		return "", fmt.Errorf("%s --version: %q: no version in it", program, out)
	}
	return filepath.Base(program) + " " + found[1] + found[2], nil
}
