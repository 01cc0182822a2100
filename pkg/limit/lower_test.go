// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
)

func TestLower(t *testing.T) {
	number := func(n int64) *int64 { return &n }
	period, half := uint64(100000), uint64(50000)
	l := &Limits{Memory: 64 << 20, Swap: 1 << 20, Pids: 10, CPUs: 1500}
	for name, tt := range map[string]struct {
		given, want *specs.LinuxResources
		unified     bool
	}{
		"nothing": {nil, &specs.LinuxResources{
			Memory: &specs.LinuxMemory{Limit: number(64 << 20), Swap: number(65 << 20)},
			Pids:   &specs.LinuxPids{Limit: number(10)}, CPU: &specs.LinuxCPU{Quota: number(150000), Period: &period},
		}, false},
		"no limits": {&specs.LinuxResources{
			Memory: &specs.LinuxMemory{Limit: number(-1)}, Pids: &specs.LinuxPids{Limit: number(-1)},
			CPU: &specs.LinuxCPU{Quota: number(-1)},
		}, &specs.LinuxResources{
			Memory: &specs.LinuxMemory{Limit: number(64 << 20), Swap: number(65 << 20)},
			Pids:   &specs.LinuxPids{Limit: number(10)}, CPU: &specs.LinuxCPU{Quota: number(150000), Period: &period},
			Unified: map[string]string{"memory.oom.group": "1"},
		}, true},
		"lower ones": {&specs.LinuxResources{
			Memory: &specs.LinuxMemory{Limit: number(1 << 20), Swap: number(1 << 20)},
			Pids:   &specs.LinuxPids{Limit: number(3)}, CPU: &specs.LinuxCPU{Quota: number(10), Period: &half, Cpus: "0"},
		}, &specs.LinuxResources{
			Memory: &specs.LinuxMemory{Limit: number(1 << 20), Swap: number(1 << 20)},
			Pids:   &specs.LinuxPids{Limit: number(3)}, CPU: &specs.LinuxCPU{Quota: number(10), Period: &half, Cpus: "0"},
		}, false},
		"files of cgroup v2, which are written last": {&specs.LinuxResources{Unified: map[string]string{
			"memory.max": "max", "memory.swap.max": "1G", "pids.max": "max\n", "cpu.max": "max 50000", "cpu.weight": "7",
		}}, &specs.LinuxResources{
			Memory: &specs.LinuxMemory{Limit: number(64 << 20), Swap: number(65 << 20)},
			Pids:   &specs.LinuxPids{Limit: number(10)}, CPU: &specs.LinuxCPU{Quota: number(150000), Period: &period},
			Unified: map[string]string{
				"memory.max": "67108864", "memory.swap.max": "1048576", "pids.max": "10", "cpu.max": "75000 50000", "cpu.weight": "7",
				"memory.oom.group": "1",
			},
		}, true},
		"lower ones of them": {&specs.LinuxResources{Unified: map[string]string{
			"memory.max": "63M", "memory.swap.max": "0", "pids.max": "9", "cpu.max": "1000", "memory.oom.group": "0",
		}}, &specs.LinuxResources{
			Memory: &specs.LinuxMemory{Limit: number(64 << 20), Swap: number(65 << 20)},
			Pids:   &specs.LinuxPids{Limit: number(10)}, CPU: &specs.LinuxCPU{Quota: number(150000), Period: &period},
			Unified: map[string]string{
				"memory.max": "63M", "memory.swap.max": "0", "pids.max": "9", "cpu.max": "1000 100000", "memory.oom.group": "1",
			},
		}, true},
	} {
		if diff := cmp.Diff(tt.want, l.Lower(tt.given, tt.unified, true)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if got := l.Lower(nil, false, false); got.Memory.Swap != nil {
		t.Errorf("Lower where swap is not counted = %d", *got.Memory.Swap)
	}
}

func TestLower_DisksOfTheMachine(t *testing.T) {
	disks := cgroup.Disks()
	if len(disks) == 0 {
		t.Skip("CANNOT RUN HERE: a block device is needed")
	}
	device := func(d cgroup.Disk, rate uint64) (t specs.LinuxThrottleDevice) {
		t.Major, t.Minor, t.Rate = d.Major, d.Minor, rate
		return t
	}
	other := device(cgroup.Disk{Major: 4000, Minor: 1}, 9)
	l := &Limits{ReadBPS: 5000}
	for rate, want := range map[uint64]uint64{0: 5000, 4000: 4000, 6000: 5000} {
		given := []specs.LinuxThrottleDevice{other, device(disks[0], rate), device(disks[0], 1<<30)} // the last one counts
		r := &specs.LinuxResources{BlockIO: &specs.LinuxBlockIO{ThrottleReadBpsDevice: given}}
		got := l.Lower(r, false, true).BlockIO
		d := got.ThrottleReadBpsDevice
		if len(d) != 2+len(disks) || d[0] != other || d[1] != device(disks[0], want) || d[2].Rate != 5000 || given[1].Rate != rate {
			t.Errorf("Lower of %v = %v", given, d)
		}
		if d := got.ThrottleWriteBpsDevice; d != nil {
			t.Errorf("Lower without a limit of what is written = %v", d)
		}
	}
}

// The kernel refuses a quota of less than a millisecond, and nobody has asked for one.
func TestLower_QuotaIsNotBelowWhatTheKernelTakes(t *testing.T) {
	for _, cpus := range []int64{10, 15, 50, 1000} {
		for _, period := range []uint64{1000, 10000, 50000, 100000} {
			l := &Limits{CPUs: cpus}
			r := l.Lower(&specs.LinuxResources{
				CPU: &specs.LinuxCPU{Period: &period}, Unified: map[string]string{"cpu.max": fmt.Sprintf("max %d", period)},
			}, true, true)
			quota, lowered := *r.CPU.Quota, *r.CPU.Period
			if quota < 1000 || lowered < period || lowered > 100000 || quota*1000 > cpus*int64(lowered) {
				t.Errorf("%d thousandths, period %d: quota %d in %d µs", cpus, period, quota, lowered)
			}
			if got, want := r.Unified["cpu.max"], fmt.Sprintf("%d %d", quota, lowered); got != want {
				t.Errorf("%d thousandths, period %d: cpu.max %q, want %q", cpus, period, got, want)
			}
		}
	}
}

func TestLower_FilesOfOneLimitAlone(t *testing.T) {
	files := map[string]string{"memory.max": "max", "pids.max": "max", "cpu.max": "max 100000", "io.max": "8:0 rbps=max wbps=9 riops=3\n8:16 rbps=7"}
	for name, tt := range map[string]struct {
		limits Limits
		want   map[string]string // the rest stays
	}{
		"none":         {Limits{OpenFiles: 5}, nil},
		"pids":         {Limits{Pids: 5}, map[string]string{"pids.max": "5"}},
		"CPUs":         {Limits{CPUs: 250}, map[string]string{"cpu.max": "25000 100000"}},
		"what is read": {Limits{ReadBPS: 8}, map[string]string{"io.max": "8:0 rbps=8 wbps=9 riops=3\n8:16 rbps=7"}},
		"and written":  {Limits{WriteBPS: 8}, map[string]string{"io.max": "8:0 rbps=max wbps=8 riops=3\n8:16 rbps=7"}},
	} {
		want := map[string]string{}
		for file, text := range files {
			want[file] = text
			if lowered, ok := tt.want[file]; ok {
				want[file] = lowered
			}
		}
		if diff := cmp.Diff(want, tt.limits.Lower(&specs.LinuxResources{Unified: files}, true, true).Unified); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// The kernel reads numbers that end in something else, and libcontainer writes one line after the other.
func TestLower_WhatIsNotUnderstoodIsTheLimit(t *testing.T) {
	l := Limits{Memory: 64 << 20, Pids: 5, CPUs: 500, ReadBPS: 8}
	for file, texts := range map[string][]string{
		"memory.max": {"18446744073709551615", "0xFFFFFFFFFK", "1M\nmax", "lots"}, "pids.max": {"1\nmax", "-1"},
		"cpu.max": {"max 100000x", "9999999x", "max 1000 x", "max 0", "", "max 100000000", "0100000 100000", "49K"},
		"io.max":  {"8:0 rbps=99999999999x", "8:0 rbps=010"}, // these two are decimal
	} {
		for _, text := range texts {
			want := map[string]string{"memory.max": "67108864", "pids.max": "5", "cpu.max": "50000 100000", "io.max": "8:0 rbps=8"}[file]
			r := &specs.LinuxResources{Unified: map[string]string{file: text}}
			if got := l.Lower(r, true, true).Unified[file]; got != want && got+" 100000" != want {
				t.Errorf("%s %q becomes %q, want %q", file, text, got, want)
			}
		}
	}
}

// Where the kernel does not count swap, an update that lifts the limit of memory must not write one of swap.
func TestLowerUpdate_WithoutSwap(t *testing.T) {
	none := int64(-1)
	r := &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &none, Swap: &none}}
	_, write := (&Limits{Memory: 64 << 20}).LowerUpdate(r, r, false, false)
	if *write.Memory.Limit != 64<<20 || write.Memory.Swap != nil {
		t.Errorf("written = %+v, want the limit of memory alone", write.Memory)
	}
}

// The OCI runtime specification limits memory and swap together. What a run has less of memory must not become swap.
func TestLower_AllowsNoMoreSwapThanTheConfiguration(t *testing.T) {
	const mib = 1 << 20
	for name, tt := range map[string]struct{ limit, swap, memory, swapOfRun, wantLimit, wantSwap int64 }{
		"no swap":                  {100 * mib, 100 * mib, 50 * mib, 1000 * mib, 50 * mib, 50 * mib},
		"no swap in either":        {100 * mib, 100 * mib, 50 * mib, 0, 50 * mib, 50 * mib},
		"less than the run":        {100 * mib, 110 * mib, 50 * mib, 1000 * mib, 50 * mib, 60 * mib},
		"more than the run":        {100 * mib, 130 * mib, 50 * mib, 20 * mib, 50 * mib, 70 * mib},
		"memory that is not taken": {100 * mib, 110 * mib, 200 * mib, 1000 * mib, 100 * mib, 110 * mib},
		"any swap":                 {100 * mib, -1, 50 * mib, 20 * mib, 50 * mib, 70 * mib},
		"swap that is not set":     {100 * mib, 0, 50 * mib, 20 * mib, 50 * mib, 70 * mib},
		"no limits":                {-1, -1, 50 * mib, 20 * mib, 50 * mib, 70 * mib},
		"less than memory alone":   {100 * mib, 50 * mib, 50 * mib, 20 * mib, 50 * mib, 50 * mib}, // not 0, which is no limit
	} {
		given := &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &tt.limit, Swap: &tt.swap}}
		l := &Limits{Memory: tt.memory, Swap: tt.swapOfRun}
		for _, unified := range []bool{false, true} {
			m := l.Lower(given, unified, true).Memory
			if *m.Limit != tt.wantLimit || *m.Swap != tt.wantSwap {
				t.Errorf("%s: memory %d, with swap %d, want %d, %d", name, *m.Limit, *m.Swap, tt.wantLimit, tt.wantSwap)
			}
			if _, write := l.LowerUpdate(given, given, unified, true); *write.Memory.Swap != tt.wantSwap {
				t.Errorf("%s: an update writes %d of memory and swap, want %d", name, *write.Memory.Swap, tt.wantSwap)
			}
		}
	}
}

// Where the kernel does not count swap, a run of limited memory without swap must not be swapped.
func TestLower_SwapThatIsNotCounted(t *testing.T) {
	most := uint64(100)
	asked := &specs.LinuxResources{Memory: &specs.LinuxMemory{Swappiness: &most}}
	for name, tt := range map[string]struct {
		limits        Limits
		unified, swap bool
		want          *uint64
	}{
		"no swap":            {Limits{Memory: 64 << 20}, false, false, new(uint64)},
		"some swap":          {Limits{Memory: 64 << 20, Swap: 1 << 20}, false, false, &most},
		"no limit":           {Limits{Pids: 5}, false, false, &most},
		"swap is counted":    {Limits{Memory: 64 << 20}, false, true, &most},
		"cgroup v2 has none": {Limits{Memory: 64 << 20}, true, true, &most},
	} {
		if got := tt.limits.Lower(asked, tt.unified, tt.swap).Memory.Swappiness; *got != *tt.want {
			t.Errorf("%s: swappiness %d, want %d", name, *got, *tt.want)
		}
		if _, write := tt.limits.LowerUpdate(asked, asked, tt.unified, tt.swap); *write.Memory.Swappiness != *tt.want {
			t.Errorf("%s: an update writes swappiness %d, want %d", name, *write.Memory.Swappiness, *tt.want)
		}
	}
}

func TestParseMax(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "12": 12, "1k": 1 << 10, "2M": 2 << 20, "1g": 1 << 30, "1T": 1 << 40, "7E": 7 << 60, "8E": math.MaxInt64,
		"max": math.MaxInt64, "0x10": 16, "9223372036854775808": math.MaxInt64, "18446744073709551615": math.MaxInt64,
		"99999999999999999999": math.MaxInt64, "1\nmax": -1, "0x1K": -1, "": -1, "M": -1, "-1": -1, "1MB": -1, "1.5G": -1,
	} {
		if n, ok := parseMax(text); ok != (want >= 0) || ok && n != want {
			t.Errorf("parseMax(%q) = %d, %t, want %d", text, n, ok, want)
		}
	}
}

// CRI repeats what config.json says in each update, of CPUs for example.
func TestLowerUpdate(t *testing.T) {
	number := func(n int64) *int64 { return &n }
	period, burst, least := uint64(100000), uint64(90000), uint64(50000)
	l := &Limits{Memory: 64 << 20, Pids: 10, CPUs: 500}
	cri := &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: number(512 << 20), Swap: number(512 << 20)},
		CPU:    &specs.LinuxCPU{Quota: number(200000), Period: &period, Burst: &burst, Cpus: "3"},
		Pids:   &specs.LinuxPids{Limit: number(-1)}, Unified: map[string]string{"memory.max": "max"},
	}
	next, write := l.LowerUpdate(cri, cri, true, true)
	want := &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: number(64 << 20), Swap: number(64 << 20)},
		CPU:    &specs.LinuxCPU{Quota: number(50000), Period: &period, Burst: &least, Cpus: "3"},
		Pids:   &specs.LinuxPids{Limit: number(10)}, Unified: map[string]string{"memory.max": "67108864"},
	}
	if diff := cmp.Diff(want, write); diff != "" {
		t.Errorf("written (-want +got):\n%s", diff)
	}
	want.Unified["memory.oom.group"] = "1"
	if diff := cmp.Diff(want, next); diff != "" {
		t.Errorf("next (-want +got):\n%s", diff)
	}
	// What an update does not set is not written.
	little := &specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: "3"}, Memory: &specs.LinuxMemory{}}
	if _, write := l.LowerUpdate(cri, little, true, true); cmp.Diff(little, write) != "" {
		t.Errorf("written = %+v, want %+v", write, little)
	}
	if next, write := (*Limits)(nil).LowerUpdate(cri, little, true, true); next != cri || write != little {
		t.Error("no limits change something")
	}
}
