// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Hierarchies are where cgroups are mounted: "" is cgroup v2, other names are controllers of v1.
type Hierarchies map[string]string

// FindHierarchies reads the mounts of this process.
func FindHierarchies() (Hierarchies, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	h := Hierarchies{}
	for line := range strings.Lines(string(text)) {
		// 36 35 98:0 /root /mountpoint options … - type source superoptions (proc_pid_mountinfo(5))
		before, after, _ := strings.Cut(line, " - ")
		mount, fs := strings.Fields(before), strings.Fields(after)
		const fields, kinds = 5, 3
		if len(mount) < fields || len(fs) < kinds {
			continue
		}
		switch point := mount[4]; fs[0] {
		case "cgroup2":
			if h[""] == "" {
				h[""] = point
			}
		case "cgroup":
			for option := range strings.SplitSeq(fs[2], ",") {
				if h[option] == "" {
					h[option] = point
				}
			}
		}
	}
	return h, nil
}

// mode returns the layout of the machine, as Host.Cgroup has it.
func (h Hierarchies) mode() string {
	switch _, unified := h[""]; {
	case h["memory"] == "" && h["cpu"] == "":
		return "v2"
	case unified:
		return "hybrid"
	}
	return "v1"
}

// Of returns the absolute path of a process's cgroup in each hierarchy.
func (h Hierarchies) Of(pid int) (map[string]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil, err
	}
	dirs := map[string]string{}
	for line := range strings.Lines(string(text)) {
		// 4:cpu,cpuacct:/path, and 0::/path of v2 (cgroups(7))
		_, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, path, ok := strings.Cut(rest, ":")
		if !ok || strings.HasPrefix(path, "/..") { // it is not below the root that this process sees
			continue
		}
		for name := range strings.SplitSeq(controllers, ",") {
			if root, ok := h[name]; ok && (name != "" || h.mode() == "v2") {
				dirs[name] = filepath.Join(root, path)
			}
		}
	}
	return dirs, nil
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
			if h[name] != "" && (name == "") == (h.mode() == "v2") && isDir(own) {
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

// Group reads the usage of one cgroup. Its files stay open, since opening one costs more than reading it. Values that
// somebody sets are read only now and then.
type Group struct {
	dirs  map[string]string
	v2    bool
	files map[string]*os.File // nil: there is no such file
	buf   []byte
	gone  bool
	last  Usage
	now   func() time.Time
	set   time.Time // when values that somebody sets were read; zero: never

	used, inactive uint64 // memory, when memory.stat was read
	noStat         bool   // it could not be
}

// setEvery is how old limits, CPUs and the size of droppable memory may be. Reading them more often costs too much.
const setEvery = 5 * time.Second

// NewGroup returns the Group of a cgroup, given its path in each hierarchy.
func NewGroup(dirs map[string]string) *Group {
	const most = 8 << 10 // memory.stat has some 4 KiB
	return &Group{dirs: dirs, v2: dirs[""] != "", files: map[string]*os.File{}, buf: make([]byte, most), now: time.Now}
}

// Close may be called for a group without files.
func (g *Group) Close() {
	if g == nil {
		return
	}
	for _, f := range g.files {
		if f != nil {
			_ = f.Close() // read only
		}
	}
	clear(g.files)
}

// path returns the path for people: on v1 that of one controller.
func (g *Group) path() string {
	for _, name := range []string{"", "memory", "cpu", "cpuacct", "pids"} {
		if dir := g.dirs[name]; dir != "" {
			return dir
		}
	}
	return ""
}

// text returns the content of a file until the next call, or nil if there is no such file or it cannot be read.
func (g *Group) text(controller, name string) []byte {
	if g.v2 {
		controller = ""
	}
	f, known := g.files[name]
	if !known {
		var err error
		if dir := g.dirs[controller]; dir != "" {
			f, err = os.Open(filepath.Join(dir, name))
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) { // such as for lack of descriptors: the next read tries again
			return nil
		}
		g.files[name] = f // a controller may be absent, and the cgroup gone
	}
	if f == nil {
		return nil
	}
	n, err := f.ReadAt(g.buf, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		g.gone = g.gone || errors.Is(err, unix.ENODEV)
		return nil
	}
	return g.buf[:n]
}

// number returns the number in a file. It is 0 for the word max, and if there is none.
func (g *Group) number(controller, name string) uint64 { return numberIn(g.text(controller, name), "") }

// counted returns the number in a file, or after a key at the beginning of a line. It sets unknown if the file could
// not be read.
func (g *Group) counted(unknown *bool, controller, name, key string) uint64 {
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

// Read returns what the kernel says now, and false for a cgroup that is gone.
func (g *Group) Read() (Usage, bool) {
	if len(g.files) == 0 && !isDir(g.path()) {
		return Usage{}, false
	}
	u := g.last
	u.Cgroup, u.Unknown = g.path(), Unknown{}
	now := g.now()
	isSet := now.Sub(g.set) >= setEvery
	if isSet {
		g.set = now
	}
	if g.v2 {
		g.readV2(&u, isSet)
	} else {
		g.readV1(&u, isSet)
	}
	u.Pids = g.counted(&u.Unknown.Pids, "pids", "pids.current", "")
	if isSet {
		u.PidsLimit = g.number("pids", "pids.max")
	}
	if u.Unknown.Memory { // half of it may be known
		u.Memory = 0
	}
	if u.MemoryLimit >= noLimit {
		u.MemoryLimit = 0
	}
	if g.gone {
		g.Close()
		return Usage{}, false
	}
	g.last = u
	return u, true
}

func (g *Group) readV2(u *Usage, isSet bool) {
	cpu := g.text("", "cpu.stat")
	us := func(key string) time.Duration { return time.Duration(numberIn(cpu, key)) * time.Microsecond }
	u.CPU, u.User, u.System = us("usage_usec"), us("user_usec"), us("system_usec")
	u.Periods, u.Throttled = numberIn(cpu, "nr_periods"), numberIn(cpu, "nr_throttled")
	u.Waited = us("throttled_usec")
	u.Unknown.CPU, u.Unknown.Times = len(cpu) == 0, len(cpu) == 0
	u.Unknown.Throttling = !bytes.Contains(cpu, []byte("\nnr_periods ")) // which the controller cpu adds
	u.Memory = g.memory(&u.Unknown.Memory, "memory.current", "inactive_file", isSet)
	u.OOMKills = g.counted(&u.Unknown.OOMKills, "", "memory.events", "oom_kill")
	u.Pressure = pressure(func(name string) []byte { return g.text("", name+".pressure") })
	if !isSet {
		return
	}
	u.CPULimit = 0
	if quota, period, ok := bytes.Cut(g.text("", "cpu.max"), []byte(" ")); ok {
		u.CPULimit = ratio(numberIn(quota, ""), numberIn(period, ""))
	}
	u.MemoryLimit = g.number("", "memory.max")
	u.CPUs, u.Mems = g.line("", "cpuset.cpus.effective"), g.line("", "cpuset.mems.effective")
}

func (g *Group) readV1(u *Usage, isSet bool) {
	const tick = 10 * time.Millisecond // USER_HZ is 100
	u.CPU = time.Duration(g.counted(&u.Unknown.CPU, "cpuacct", "cpuacct.usage", ""))
	sampled := g.text("cpuacct", "cpuacct.stat")
	u.User = time.Duration(numberIn(sampled, "user")) * tick
	u.System = time.Duration(numberIn(sampled, "system")) * tick
	u.Unknown.Times = len(sampled) == 0
	cpu := g.text("cpu", "cpu.stat")
	u.Unknown.Throttling = len(cpu) == 0
	u.Periods, u.Throttled = numberIn(cpu, "nr_periods"), numberIn(cpu, "nr_throttled")
	u.Waited = time.Duration(numberIn(cpu, "throttled_time"))
	u.Memory = g.memory(&u.Unknown.Memory, "memory.usage_in_bytes", "total_inactive_file", isSet)
	u.OOMKills = g.counted(&u.Unknown.OOMKills, "memory", "memory.oom_control", "oom_kill")
	if !isSet {
		return
	}
	u.CPULimit = ratio(g.number("cpu", "cpu.cfs_quota_us"), g.number("cpu", "cpu.cfs_period_us"))
	u.MemoryLimit = g.number("memory", "memory.limit_in_bytes")
	u.CPUs, u.Mems = g.line("cpuset", "cpuset.effective_cpus"), g.line("cpuset", "cpuset.effective_mems")
}

// muchMemory is a change after which the kernel is asked again how much of the memory it can drop.
const muchMemory = 1 << 20

// memory returns what is in use, without what the kernel can drop immediately. The latter costs the kernel more than
// all else together: it sums up memory.stat of all CPUs. So it is read when the memory has changed, and now and then.
func (g *Group) memory(unknown *bool, name, inactive string, now bool) uint64 {
	used := g.counted(unknown, "memory", name, "")
	if now || g.noStat || max(used, g.used)-min(used, g.used) >= muchMemory {
		g.used, g.noStat = used, false
		g.inactive = g.counted(&g.noStat, "memory", "memory.stat", inactive)
	}
	*unknown = *unknown || g.noStat
	return less(used, g.inactive)
}

func (g *Group) line(controller, name string) string {
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

// parsePSI reads lines like "some avg10=0.12 avg60=0.00 avg300=0.00 total=1234", with microseconds in total.
func parsePSI(text []byte) *PSI {
	if len(text) == 0 {
		return nil
	}
	var p PSI
	for line := range strings.Lines(string(text)) {
		kind, rest, _ := strings.Cut(line, " ")
		average, total := &p.Some10, &p.SomeTotal
		if kind == "full" {
			average, total = &p.Full10, &p.FullTotal
		}
		for field := range strings.FieldsSeq(rest) {
			switch name, value, _ := strings.Cut(field, "="); name {
			case "avg10":
				*average, _ = strconv.ParseFloat(value, 64) // the kernel writes a number
			case "total":
				n, _ := strconv.ParseUint(value, 10, 64) // as above
				*total = time.Duration(n) * time.Microsecond
			}
		}
	}
	return &p
}
