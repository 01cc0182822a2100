// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sandbox.internal/shim/cmd/sandboxctl/machine"
)

// Hierarchies are where cgroups are mounted: "" is cgroup v2, other names are controllers of v1.
type Hierarchies map[string]string

// FindHierarchies reads the mounts of this process.
func FindHierarchies(root machine.Root) (Hierarchies, error) {
	mounts, err := root.Mounts()
	h := Hierarchies{}
	for _, m := range mounts {
		if m.Mountpoint != machine.CgroupRoot && filepath.Dir(m.Mountpoint) != machine.CgroupRoot {
			continue
		}
		switch m.FSType {
		case "cgroup2":
			h[""] = m.Mountpoint
		case "cgroup":
			for name := range strings.SplitSeq(m.VFSOptions, ",") {
				h[name] = m.Mountpoint
			}
		}
	}
	return h, err
}

// Mode returns the layout of the machine: v1, hybrid, v2 or none.
func (h Hierarchies) Mode() string {
	switch _, unified := h[""]; {
	case unified && len(h) > 1:
		return "hybrid"
	case unified:
		return "v2"
	case len(h) > 0:
		return "v1"
	}
	return "none"
}

// Of returns the absolute path of a process's cgroup in each hierarchy; none for a process that has ended.
func (h Hierarchies) Of(root machine.Root, pid int) map[string]string {
	text, _ := os.ReadFile(root.ProcFile(pid, "cgroup"))
	dirs := map[string]string{}
	for line := range strings.Lines(string(text)) {
		// 4:cpu,cpuacct:/path, and 0::/path of v2 (cgroups(7))
		_, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, path, ok := strings.Cut(rest, ":")
		if !ok || strings.HasPrefix(path, "/..") { // it is not below the root that this process sees
			continue
		}
		for name := range strings.SplitSeq(controllers, ",") {
			if mount, ok := h[name]; ok {
				dirs[name] = filepath.Join(mount, path)
			}
		}
	}
	return dirs
}

// Below returns the cgroup at a path that a shim has named, in each hierarchy: that of the container, whose first
// process may be deeper. If there is none at the path, it is that of the process.
func (h Hierarchies) Below(absolute string, ofProcess map[string]string) map[string]string {
	dirs := map[string]string{}
	maps.Copy(dirs, ofProcess)
	for _, root := range h {
		path, ok := strings.CutPrefix(absolute, root+"/")
		if !ok {
			continue
		}
		for _, name := range []string{"", "cpu", "cpuacct", "cpuset", "memory", "pids"} {
			own := filepath.Join(h[name], path)
			if h[name] != "" && (name == "") == (h.Mode() == "v2") && isDir(own) {
				dirs[name] = own
			}
		}
	}
	return dirs
}

func isDir(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

// group is a cgroup.
type group struct {
	dirs map[string]string // in each hierarchy
	v2   bool
}

// path returns the path for people: on v1 that of one controller.
func (g group) path() string {
	for _, name := range []string{"memory", "cpu", "cpuacct", "pids", ""} {
		if dir := g.dirs[name]; dir != "" {
			return dir
		}
	}
	return ""
}

// text returns the content of a file, or nothing if there is no such file or it cannot be read.
func (g group) text(controller, name string) []byte {
	if g.v2 {
		controller = ""
	}
	dir := g.dirs[controller]
	if dir == "" {
		return nil
	}
	text, _ := os.ReadFile(filepath.Join(dir, name)) // a controller may be absent, and the cgroup gone
	return text
}

// number returns the number in a file. It is 0 for the word max, and if there is none.
func (g group) number(controller, name string) uint64 { return numberIn(g.text(controller, name), "") }

// counted returns the number in a file, or after a key at the beginning of a line. It sets unknown if the file could
// not be read.
func (g group) counted(unknown *bool, controller, name, key string) uint64 {
	text := g.text(controller, name)
	*unknown = *unknown || len(text) == 0
	return numberIn(text, key)
}

func numberIn(text []byte, key string) uint64 {
	if key != "" {
		key += " "
		at := 0
		if !bytes.HasPrefix(text, []byte(key)) {
			if at = bytes.Index(text, []byte("\n"+key)); at < 0 {
				return 0
			}
			at++
		}
		text = text[at+len(key):]
	}
	end := 0
	for end < len(text) && text[end] >= '0' && text[end] <= '9' {
		end++
	}
	n, _ := strconv.ParseUint(string(text[:end]), 10, 64) // 0 for what is no number
	return n
}

// noLimit is what cgroup v1 has for no limit: a number of pages near the end of int64.
const noLimit = 1 << 62

// Read returns what the kernel says of a cgroup, given its path in each hierarchy, and false for one that is gone.
func Read(dirs map[string]string) (Usage, bool) {
	g := group{dirs, dirs["memory"] == "" && dirs["cpu"] == "" && dirs[""] != ""}
	u := Usage{Cgroup: g.path()}
	if !isDir(u.Cgroup) {
		return Usage{}, false
	}
	if g.v2 {
		g.readV2(&u)
	} else {
		g.readV1(&u)
	}
	u.Pids, u.PidsLimit = g.counted(&u.Unknown.Pids, "pids", "pids.current", ""), g.number("pids", "pids.max")
	if u.Unknown.Memory { // half of it may be known
		u.Memory = 0
	}
	if u.MemoryLimit >= noLimit {
		u.MemoryLimit = 0
	}
	return u, true
}

func (g group) readV2(u *Usage) {
	cpu := g.text("", "cpu.stat")
	us := func(key string) time.Duration { return time.Duration(numberIn(cpu, key)) * time.Microsecond }
	u.CPU = us("usage_usec")
	u.Periods, u.Throttled = numberIn(cpu, "nr_periods"), numberIn(cpu, "nr_throttled")
	u.Waited = us("throttled_usec")
	u.Unknown.CPU = len(cpu) == 0
	u.Unknown.Throttling = !bytes.Contains(cpu, []byte("\nnr_periods ")) // which the controller cpu adds
	u.Memory = less(g.counted(&u.Unknown.Memory, "", "memory.current", ""),
		g.counted(&u.Unknown.Memory, "", "memory.stat", "inactive_file"))
	u.OOMKills = g.counted(&u.Unknown.OOMKills, "", "memory.events", "oom_kill")
	u.Pressure = pressure(func(name string) []byte { return g.text("", name+".pressure") })
	if quota, period, ok := bytes.Cut(g.text("", "cpu.max"), []byte(" ")); ok {
		u.CPULimit = ratio(numberIn(quota, ""), numberIn(period, ""))
	}
	u.MemoryLimit = g.number("", "memory.max")
	u.CPUs, u.Mems = g.line("", "cpuset.cpus.effective"), g.line("", "cpuset.mems.effective")
}

func (g group) readV1(u *Usage) {
	u.CPU = time.Duration(g.counted(&u.Unknown.CPU, "cpuacct", "cpuacct.usage", ""))
	cpu := g.text("cpu", "cpu.stat")
	u.Unknown.Throttling = len(cpu) == 0
	u.Periods, u.Throttled = numberIn(cpu, "nr_periods"), numberIn(cpu, "nr_throttled")
	u.Waited = time.Duration(numberIn(cpu, "throttled_time"))
	u.Memory = less(g.counted(&u.Unknown.Memory, "memory", "memory.usage_in_bytes", ""),
		g.counted(&u.Unknown.Memory, "memory", "memory.stat", "total_inactive_file"))
	u.OOMKills = g.counted(&u.Unknown.OOMKills, "memory", "memory.oom_control", "oom_kill")
	u.CPULimit = ratio(g.number("cpu", "cpu.cfs_quota_us"), g.number("cpu", "cpu.cfs_period_us"))
	u.MemoryLimit = g.number("memory", "memory.limit_in_bytes")
	u.CPUs, u.Mems = g.line("cpuset", "cpuset.effective_cpus"), g.line("cpuset", "cpuset.effective_mems")
}

func (g group) line(controller, name string) string {
	return string(bytes.TrimSpace(g.text(controller, name)))
}

func less(a, b uint64) uint64 {
	if a < b { // they are not read at the same time
		return 0
	}
	return a - b
}

func ratio(a, b uint64) float64 {
	if a == 0 || b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// pressure reads the three files of pressure stall information.
func pressure(text func(name string) []byte) Pressure {
	return Pressure{CPU: parsePSI(text("cpu")), Memory: parsePSI(text("memory")), IO: parsePSI(text("io"))}
}

// parsePSI reads lines like "some avg10=0.12 avg60=0.00 avg300=0.00 total=1234".
func parsePSI(text []byte) *PSI {
	if len(text) == 0 {
		return nil
	}
	var p PSI
	for line := range strings.Lines(string(text)) {
		kind, rest, _ := strings.Cut(line, " avg10=")
		average, _, _ := strings.Cut(rest, " ")
		n, _ := strconv.ParseFloat(average, 64) // the kernel writes a number
		if kind == "some" {
			p.Some10 = n
		} else {
			p.Full10 = n
		}
	}
	return &p
}
