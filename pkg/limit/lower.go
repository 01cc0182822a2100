// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
)

// Lower returns resources of a container, lowered to those of l, for cgroup v2 or v1 and a kernel that counts swap or
// does not.
func (l *Limits) Lower(r *specs.LinuxResources, unified, swap bool) *specs.LinuxResources {
	lowered := specs.LinuxResources{}
	if r != nil {
		lowered = *r
	}
	if l.Memory > 0 {
		l.lowerMemory(&lowered, unified, swap)
	}
	if l.Pids > 0 {
		pids := specs.LinuxPids{}
		if lowered.Pids != nil {
			pids = *lowered.Pids
		}
		pids.Limit = lower(pids.Limit, l.Pids)
		lowered.Pids = &pids
	}
	if l.CPUs > 0 {
		cpu := specs.LinuxCPU{}
		if lowered.CPU != nil {
			cpu = *lowered.CPU
		}
		period := uint64(100000) // the kernel's default, in µs
		if cpu.Period != nil && *cpu.Period > 0 {
			period = *cpu.Period
		}
		period = l.leastPeriod(period)
		cpu.Quota, cpu.Period = lower(cpu.Quota, l.CPUs*int64(period)/1000), &period
		if cpu.Burst != nil {
			burst := min(*cpu.Burst, uint64(*cpu.Quota)) // more is refused
			cpu.Burst = &burst
		}
		lowered.CPU = &cpu
	}
	if l.LimitsIO() {
		io := specs.LinuxBlockIO{}
		if lowered.BlockIO != nil {
			io = *lowered.BlockIO
		}
		io.ThrottleReadBpsDevice = lowerDisks(io.ThrottleReadBpsDevice, l.ReadBPS)
		io.ThrottleWriteBpsDevice = lowerDisks(io.ThrottleWriteBpsDevice, l.WriteBPS)
		lowered.BlockIO = &io
	}
	lowered.Unified = l.lowerUnified(lowered.Unified)
	return &lowered
}

// LowerUpdate is Lower for an update: next is what the container has after it, and write the part of it that is
// written. What write does not set is not written. A nil l lowers nothing.
func (l *Limits) LowerUpdate(next, write *specs.LinuxResources, unified, swap bool) (n, w *specs.LinuxResources) {
	if l == nil {
		return next, write
	}
	n, lowered := l.Lower(next, unified, swap), *write
	if m := write.Memory; l.Memory > 0 && m != nil {
		memory := *m
		if isSet(m.Limit) || isSet(m.Swap) {
			memory.Limit, memory.Swap = n.Memory.Limit, n.Memory.Swap
		}
		if m.Swappiness != nil {
			memory.Swappiness = n.Memory.Swappiness
		}
		lowered.Memory = &memory
	}
	if write.Pids != nil && write.Pids.Limit != nil {
		lowered.Pids = n.Pids
	}
	if c := write.CPU; l.CPUs > 0 && c != nil && (isSet(c.Quota) || isSet(c.Period) || c.Burst != nil) {
		cpu := *c
		cpu.Quota, cpu.Period, cpu.Burst = n.CPU.Quota, n.CPU.Period, n.CPU.Burst // which are checked together
		lowered.CPU = &cpu
	}
	if write.BlockIO != nil {
		io := *write.BlockIO
		if len(io.ThrottleReadBpsDevice) > 0 {
			io.ThrottleReadBpsDevice = n.BlockIO.ThrottleReadBpsDevice
		}
		if len(io.ThrottleWriteBpsDevice) > 0 {
			io.ThrottleWriteBpsDevice = n.BlockIO.ThrottleWriteBpsDevice
		}
		lowered.BlockIO = &io
	}
	lowered.Unified = maps.Clone(write.Unified)
	for file := range lowered.Unified {
		lowered.Unified[file] = n.Unified[file]
	}
	return n, &lowered
}

func isSet[T int64 | uint64](p *T) bool { return p != nil && *p != 0 }

// lowerUnified lowers what is written to the files of cgroup v2 after the other fields.
func (l *Limits) lowerUnified(files map[string]string) map[string]string {
	files = maps.Clone(files)
	for file, text := range files {
		switch file {
		case "memory.max":
			files[file] = lowerText(text, l.Memory, l.Memory > 0, parseMax)
		case "memory.swap.max":
			files[file] = lowerText(text, l.Swap, l.Memory > 0, parseMax)
		case "pids.max":
			files[file] = lowerText(text, l.Pids, l.Pids > 0, parseMax)
		case "cpu.max":
			files[file] = l.lowerCPUMax(text)
		case "io.max":
			files[file] = l.lowerIOMax(text)
		}
	}
	return files
}

// lowerText lowers the text of a control file with one number to most, if that is a limit. What is not understood
// becomes most as well: the kernel accepts more than it should.
func lowerText(text string, most int64, limits bool, parse func(string) (int64, bool)) string {
	if n, ok := parse(strings.TrimSpace(text)); !limits || ok && n <= most {
		return text
	}
	return strconv.FormatInt(most, 10)
}

// parseDecimal reads a number as the kernel does for cpu.max and io.max (sscanf with %llu), or max, which is the
// greatest.
func parseDecimal(text string) (n int64, ok bool) {
	if text == "max" {
		return math.MaxInt64, true
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && n >= 0
}

// parseMax reads a number as the kernel does elsewhere (memparse in lib/cmdline.c), or max, which is the greatest.
func parseMax(text string) (n int64, ok bool) {
	if text == "max" {
		return math.MaxInt64, true
	}
	shift := 0
	if text != "" {
		if i := strings.IndexByte("KMGTPE", text[len(text)-1]&^0x20); i >= 0 && !strings.HasPrefix(text, "0x") {
			text, shift = text[:len(text)-1], 10*(i+1)
		}
	}
	u, err := strconv.ParseUint(text, 0, 64)
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && u > math.MaxInt64>>shift:
		return math.MaxInt64, true
	case err != nil:
		return 0, false
	}
	return int64(u << shift), true
}

// lowerCPUMax lowers QUOTA or QUOTA PERIOD, in µs.
func (l *Limits) lowerCPUMax(text string) string {
	if l.CPUs == 0 {
		return text
	}
	const usual, longest = 100000, 1000000 // the kernel's default and its limit, in µs
	fields := strings.Fields(text)
	period := int64(usual)
	if len(fields) == 2 {
		period, _ = strconv.ParseInt(fields[1], 10, 64) // else 0
	}
	if len(fields) == 0 || len(fields) > 2 || period < 1 || period > longest {
		fields, period = []string{"max", strconv.Itoa(usual)}, usual
	}
	if longer := int64(l.leastPeriod(uint64(period))); longer != period {
		fields = []string{"max", strconv.FormatInt(longer, 10)}
		period = longer
	}
	fields[0] = lowerText(fields[0], l.CPUs*period/1000, true, parseDecimal)
	if len(fields) == 1 { // the kernel would keep the period that the cgroup has
		fields = append(fields, strconv.FormatInt(period, 10))
	}
	return strings.Join(fields, " ")
}

// leastPeriod is the given period of CPU time, in µs, or the shortest with which the limit is no quota that the kernel
// refuses.
func (l *Limits) leastPeriod(period uint64) uint64 {
	const leastQuota = 1000 // µs (kernel/sched/core.c, min_cfs_quota_period)
	return max(period, uint64((leastQuota*1000+l.CPUs-1)/l.CPUs))
}

// lowerIOMax lowers lines of MAJ:MIN KEY=NUMBER….
func (l *Limits) lowerIOMax(text string) string {
	most := map[string]int64{"rbps": l.ReadBPS, "wbps": l.WriteBPS}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		fields := strings.Fields(line)
		for n, field := range fields {
			if key, value, ok := strings.Cut(field, "="); ok {
				fields[n] = key + "=" + lowerText(value, most[key], most[key] > 0, parseDecimal)
			}
		}
		lines[i] = strings.Join(fields, " ")
	}
	return strings.Join(lines, "\n")
}

func (l *Limits) lowerMemory(r *specs.LinuxResources, unified, swap bool) {
	memory := specs.LinuxMemory{}
	if r.Memory != nil {
		memory = *r.Memory
	}
	most := l.Swap
	if isLimit(memory.Limit) && isLimit(memory.Swap) { // what memory loses must not become swap
		most = min(most, max(0, *memory.Swap-*memory.Limit))
	}
	memory.Limit = lower(memory.Limit, l.Memory)
	switch {
	case swap: // here that of memory and swap together
		memory.Swap = lower(memory.Swap, *memory.Limit+most)
	case memory.Swap != nil && *memory.Swap == -1: // there is no file to write that to
		memory.Swap = nil
	}
	if !swap && !unified && l.Swap == 0 { // swap is not counted, so none is used
		memory.Swappiness = new(uint64)
	}
	r.Memory = &memory
	if unified {
		r.Unified = maps.Clone(r.Unified)
		if r.Unified == nil {
			r.Unified = map[string]string{}
		}
		r.Unified["memory.oom.group"] = "1"
	}
}

// isLimit reports whether a field of the OCI runtime specification limits something: 0 is not set, and -1 is no limit.
func isLimit(p *int64) bool { return p != nil && *p > 0 }

// lower returns the lower of two limits, of which the first may be none.
func lower(limit *int64, most int64) *int64 {
	if isLimit(limit) {
		most = min(*limit, most)
	}
	return &most
}

// lowerDisks lowers limits of all disks to most, unless that is 0.
func lowerDisks(limits []specs.LinuxThrottleDevice, most int64) []specs.LinuxThrottleDevice {
	limits = slices.Clone(limits)
	if most == 0 {
		return limits
	}
	for _, d := range cgroup.Disks() {
		one := specs.LinuxThrottleDevice{Rate: uint64(most)}
		one.Major, one.Minor = d.Major, d.Minor
		found := false
		for i, t := range limits { // it may be there twice, of which the last counts
			if t.Major != d.Major || t.Minor != d.Minor {
				continue
			}
			found = true
			if t.Rate == 0 || t.Rate > one.Rate {
				limits[i] = one
			}
		}
		if !found {
			limits = append(limits, one)
		}
	}
	return limits
}
