// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3"

	"sandbox.internal/shim/pkg/ociruntime"
	"sandbox.internal/shim/pkg/settings"
)

// hostAnnotations say, for who places tasks on nodes, what this shim has and finds on this machine. The features
// document beside them describes the runtime alone. docs/executors.md has the table.
func hostAnnotations() map[string]string {
	mode := cgroups.Mode()
	const prefix = runtimeName + "/"
	return map[string]string{
		prefix + "cgroup.mode":        cgroupModes[mode],
		prefix + "cgroup.controllers": strings.Join(controllers(mode), ","),
		prefix + "cgroup.drivers":     strings.Join(ociruntime.Drivers(), ","),
		prefix + "seccomp":            ociruntime.SeccompVersion(),
		prefix + "exec-launcher":      strconv.FormatBool(ociruntime.HasLauncher()),
		prefix + "criu":               ociruntime.CriuPath(),
		prefix + "settings":           strings.Join(settings.Names(), ","),
	}
}

var cgroupModes = map[cgroups.CGMode]string{cgroups.Unavailable: "none", cgroups.Legacy: "v1", cgroups.Hybrid: "hybrid", cgroups.Unified: "v2"}

// controllers are those of the kernel that a cgroup of a container can have, in alphabetical order.
func controllers(mode cgroups.CGMode) []string {
	var list []string
	if mode == cgroups.Unified {
		text, _ := os.ReadFile("/sys/fs/cgroup/cgroup.controllers") // none is what is said then
		list = strings.Fields(string(text))
	} else {
		// name, hierarchy, number of cgroups, enabled: cgroups(7)
		text, _ := os.ReadFile("/proc/cgroups") // as above
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) == 4 && f[1] != "0" && f[3] == "1" {
				list = append(list, f[0])
			}
		}
	}
	slices.Sort(list)
	return list
}
