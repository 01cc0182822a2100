// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"path/filepath"
	"slices"
	"strings"
)

// CgroupRoot is where cgroups are mounted, on all machines.
const CgroupRoot = "/sys/fs/cgroup"

// Modes of cgroups.
const (
	CgroupNone   = "none"
	CgroupV1     = "v1"
	CgroupHybrid = "hybrid"
	CgroupV2     = "v2"
)

// Hierarchy is a mounted cgroup hierarchy.
type Hierarchy struct {
	Dir         string   // where it is mounted, a path of the machine
	Unified     bool     // cgroup v2
	Controllers []string // of v1
}

// Hierarchies returns those below CgroupRoot, and the mode.
func (r Root) Hierarchies() (list []Hierarchy, mode string, err error) {
	mounts, err := r.Mounts()
	if err != nil {
		return nil, CgroupNone, err
	}
	mode = CgroupNone
	for _, m := range mounts {
		if m.Mountpoint != CgroupRoot && filepath.Dir(m.Mountpoint) != CgroupRoot {
			continue
		}
		switch m.FSType {
		case "cgroup2":
			list = append(list, Hierarchy{Dir: m.Mountpoint, Unified: true})
		case "cgroup":
			list = append(list, Hierarchy{Dir: m.Mountpoint, Controllers: strings.Split(m.VFSOptions, ",")})
		}
	}
	unified := slices.ContainsFunc(list, func(h Hierarchy) bool { return h.Unified })
	legacy := slices.ContainsFunc(list, func(h Hierarchy) bool { return !h.Unified })
	switch {
	case unified && legacy:
		mode = CgroupHybrid
	case unified:
		mode = CgroupV2
	case legacy:
		mode = CgroupV1
	}
	return list, mode, nil
}

// CgroupOf returns the cgroup of a process in the hierarchy of a v1 controller, else in v2, and its directory. The
// directory is empty if there is none.
func (r Root) CgroupOf(pid int, controller string) (group, dir string) {
	text, err := ReadText(r.ProcFile(pid, "cgroup"))
	if err != nil {
		return "", ""
	}
	list, _, err := r.Hierarchies()
	if err != nil {
		return "", ""
	}
	var v2 string
	for line := range strings.Lines(text) { // cgroups(7): id:controllers:path
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		switch {
		case parts[1] == "":
			v2 = parts[2]
		case slices.Contains(strings.Split(parts[1], ","), controller):
			for _, h := range list {
				if slices.Contains(h.Controllers, controller) {
					return parts[2], r.Path(h.Dir, parts[2])
				}
			}
		}
	}
	for _, h := range list {
		if h.Unified && v2 != "" {
			return v2, r.Path(h.Dir, v2)
		}
	}
	return "", ""
}
