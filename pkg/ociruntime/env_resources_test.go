// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/cgroups/v3"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/resources"
)

// lacking skips the test and names what it needs, or fails it where SHIM_TEST_REQUIRE lists name.
func lacking(tb testing.TB, name, what string) {
	tb.Helper()
	if promised(name) {
		tb.Fatalf("needs %s, which SHIM_TEST_REQUIRE=%s promises", what, os.Getenv("SHIM_TEST_REQUIRE"))
	}
	tb.Skipf("SKIPPED: needs %s (add %q to SHIM_TEST_REQUIRE to make this a failure)", what, name)
}

func promised(name string) bool {
	return slices.Contains(strings.Split(os.Getenv("SHIM_TEST_REQUIRE"), ","), name)
}

// slowness is how many times slower than usual the machine is, which
// SHIM_TEST_SLOWNESS says of an emulated one.
func slowness() int {
	n, _ := strconv.Atoi(os.Getenv("SHIM_TEST_SLOWNESS")) // 0 where it says nothing
	return max(n, 1)
}

func unified() bool { return cgroups.Mode() == cgroups.Unified }

// onSystemd reports whether containers are in scopes here, as containerd makes
// them where systemd is pid 1.
func onSystemd() bool {
	_, err := os.Stat("/run/systemd/system")
	return err == nil
}

// limited is a container that sleeps and has r.
func limited(t *testing.T, r *specs.LinuxResources) process.Config {
	t.Helper()
	c := newConfig(t, "sleep", "1000")
	c.Spec.Linux.Resources = r
	if onSystemd() {
		c.SystemdCgroup = true
		c.Spec.Linux.CgroupsPath = "system.slice:shim-test:" + c.ID
	}
	return c
}

// disk is a block device of this machine: a throttle needs one that exists.
type disk struct{ major, minor int64 }

func (d disk) String() string { return fmt.Sprintf("%d:%d", d.major, d.minor) }

func aDisk(t *testing.T) disk {
	t.Helper()
	names, err := filepath.Glob("/sys/block/*/dev")
	must(t, err)
	for _, name := range names {
		text, err := os.ReadFile(name)
		must(t, err)
		major, minor, _ := strings.Cut(strings.TrimSpace(string(text)), ":")
		return disk{number(t, major), number(t, minor)}
	}
	lacking(t, "disk", "a block device in /sys/block")
	return disk{}
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	must(t, err)
	return n
}

// settings are the texts of all control files that resources have, by name.
func settings(t *testing.T, c *cgroup.Cgroup) map[string]string {
	t.Helper()
	var names []string
	for _, f := range resources.Fields(everything()) {
		names = append(names, f.Files(c.Unified())...)
	}
	texts := controlFiles(t, c, append(names, "memory.high", "memory.min"))
	if len(texts) == 0 {
		t.Fatalf("no control files in %s", c)
	}
	return texts
}

// controlFiles reads files, which may be patterns of path.Match, by name. Files that cannot be read are left out.
func controlFiles(t *testing.T, c *cgroup.Cgroup, patterns []string) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range patterns {
		file := c.File(pattern)
		if file == "" {
			continue
		}
		entries, err := os.ReadDir(filepath.Dir(file)) // no Glob: names of units have backslashes
		must(t, err)
		for _, e := range entries {
			matches, err := filepath.Match(pattern, e.Name())
			must(t, err)
			if !matches {
				continue
			}
			if data, err := os.ReadFile(filepath.Join(filepath.Dir(file), e.Name())); err == nil {
				text := strings.TrimPrefix(strings.TrimSuffix(string(data), "\n"), "oom_kill_disable ")
				if e.Name() == "memory.oom_control" {
					text, _, _ = strings.Cut(text, "\n") // counters follow
				}
				texts[e.Name()] = text
			}
		}
	}
	return texts
}

// everything sets each field, so that it has all files.
func everything() *specs.LinuxResources {
	one := specs.LinuxThrottleDevice{}
	return &specs.LinuxResources{
		Memory: &specs.LinuxMemory{
			Limit: new(int64(1)), Reservation: new(int64(1)), Swap: new(int64(1)), KernelTCP: new(int64(1)), Swappiness: new(uint64), DisableOOMKiller: new(bool),
		},
		CPU: &specs.LinuxCPU{
			Shares: new(uint64(2)), Quota: new(int64(1)), Burst: new(uint64(1)), Period: new(uint64(1)),
			RealtimeRuntime: new(int64(1)), RealtimePeriod: new(uint64(1)), Cpus: "0", Mems: "0", Idle: new(int64),
		},
		Pids: &specs.LinuxPids{Limit: new(int64)},
		BlockIO: &specs.LinuxBlockIO{
			Weight: new(uint16(1)), LeafWeight: new(uint16(1)), WeightDevice: []specs.LinuxWeightDevice{{}},
			ThrottleReadBpsDevice: []specs.LinuxThrottleDevice{one}, ThrottleWriteBpsDevice: []specs.LinuxThrottleDevice{one},
			ThrottleReadIOPSDevice: []specs.LinuxThrottleDevice{one}, ThrottleWriteIOPSDevice: []specs.LinuxThrottleDevice{one},
		},
		HugepageLimits: []specs.LinuxHugepageLimit{{}},
		Network:        &specs.LinuxNetwork{ClassID: new(uint32(1)), Priorities: []specs.LinuxInterfacePriority{{}}},
		Rdma:           map[string]specs.LinuxRdma{"": {}},
	}
}
