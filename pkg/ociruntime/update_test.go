// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

const mib = 1 << 20

// layout is a text for each of the two versions of cgroups.
type layout struct{ v1, v2 string }

func (l layout) here() string {
	if unified() {
		return l.v2
	}
	return l.v1
}

var (
	memoryLimit = layout{"memory.limit_in_bytes", "memory.max"}
	cpuShares   = layout{"cpu.shares", "cpu.weight"}
)

func TestUpdate_WritesWhatIsNamed(t *testing.T) {
	b := create(t, limited(t, &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: new(int64(64 * mib)), Swap: new(int64(64 * mib))}, Pids: &specs.LinuxPids{Limit: new(int64(20))},
		CPU: &specs.LinuxCPU{Quota: new(int64(20000)), Period: new(uint64(50000)), Cpus: "0"},
	}))
	want := settings(t, b.Cgroup())
	update := func(what string, r specs.LinuxResources, changed map[string]string) {
		t.Helper()
		if err := b.Update(&r); err != nil {
			t.Errorf("Update(%s) = %v", what, err)
		}
		maps.Copy(want, changed)
		if diff := cmp.Diff(want, settings(t, b.Cgroup())); diff != "" {
			t.Errorf("control files after Update(%s) (-want +got):\n%s", what, diff)
		}
	}
	shares := layout{"512", "59"}
	update("shares of a created one", specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: new(uint64(512))}}, map[string]string{cpuShares.here(): shares.here()})
	b.start()
	// Another's value stays when it is not named, and for CPUs also when it is
	// named as it was asked before. systemd is the only one to change its units.
	if !onSystemd() {
		must(t, os.WriteFile(b.Cgroup().File("pids.max"), []byte("33"), 0o600))
		must(t, os.WriteFile(b.Cgroup().File("cpuset.cpus"), []byte("0-1"), 0o600))
		want["pids.max"], want["cpuset.cpus"] = "33", "0-1"
	}
	limit, swap := int64(32*mib), int64(32*mib)
	changed := map[string]string{memoryLimit.here(): "33554432"}
	if _, ok := want["memory.memsw.limit_in_bytes"]; ok {
		changed["memory.memsw.limit_in_bytes"] = "33554432"
	}
	update("memory of a running one", specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &limit, Swap: &swap}, CPU: &specs.LinuxCPU{Cpus: "0"},
	}, changed)
	must(t, b.Pause())
	quota := map[string]string{"cpu.cfs_quota_us": "30000"}
	if unified() {
		quota = map[string]string{"cpu.max": "30000 50000"}
	}
	update("quota of a paused one", specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: new(int64(30000))}}, quota)
	must(t, b.Resume())
	update("nothing", specs.LinuxResources{}, nil)
	update("zeros", specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64), Swap: new(int64)}, CPU: &specs.LinuxCPU{Quota: new(int64), Shares: new(uint64)}}, nil)
}

func TestUpdate_RemovesLimits(t *testing.T) {
	b := create(t, limited(t, nil))
	want := settings(t, b.Cgroup())
	if onSystemd() {
		want["pids.max"] = "max" // systemd's own default is less
	}
	must(t, b.Update(&specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: new(int64(64 * mib)), Swap: new(int64(64 * mib)), Reservation: new(int64(mib))}, Pids: &specs.LinuxPids{Limit: new(int64(20))},
		CPU: &specs.LinuxCPU{Quota: new(int64(20000))},
	}))
	if got := settings(t, b.Cgroup()); got[memoryLimit.here()] != "67108864" || got["pids.max"] != "20" {
		t.Errorf("%s, pids.max = %s, %s, want 67108864, 20", memoryLimit.here(), got[memoryLimit.here()], got["pids.max"])
	}
	must(t, b.Update(&specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: new(int64(-1)), Reservation: new(int64(-1))}, Pids: &specs.LinuxPids{Limit: new(int64(-1))},
		CPU: &specs.LinuxCPU{Quota: new(int64(-1))},
	}))
	if unified() {
		want["memory.low"] = "max" // no limit of what is protected
	}
	if diff := cmp.Diff(want, settings(t, b.Cgroup())); diff != "" {
		t.Errorf("control files after the limits are gone (-want +got):\n%s", diff)
	}
}

func TestUpdate_FailureSetsTheFormerResourcesAgain(t *testing.T) {
	missing := specs.LinuxBlockIODevice{Major: 240, Minor: 77} // a number for local use: Linux, admin-guide/devices.txt
	d := aDisk(t)
	present := specs.LinuxBlockIODevice{Major: d.major, Minor: d.minor}
	for _, tc := range []struct {
		name   string
		v1, v2 bool
		spoil  func(*specs.LinuxResources)
		want   string
	}{
		{"a device that does not exist, late on v1", true, true, func(r *specs.LinuxResources) {
			r.BlockIO = &specs.LinuxBlockIO{
				ThrottleReadIOPSDevice: []specs.LinuxThrottleDevice{{LinuxBlockIODevice: present, Rate: 700}},
				ThrottleWriteBpsDevice: []specs.LinuxThrottleDevice{{LinuxBlockIODevice: missing, Rate: mib}},
			}
		}, "throttleWriteBpsDevice"},
		{"more processes than there can be, early on v2", true, true, func(r *specs.LinuxResources) {
			r.Pids = &specs.LinuxPids{Limit: new(int64(1 << 40))}
		}, "linux.resources.pids.limit: "},
		{"CPUs that the parent lacks, first on v1", true, false, func(r *specs.LinuxResources) {
			r.CPU.Cpus = "1"
		}, "linux.resources.cpu.cpus: "},
		{"a file of v2, last there", false, true, func(r *specs.LinuxResources) {
			r.Unified = map[string]string{"memory.high": "much"}
		}, `linux.resources.unified["memory.high"]: `},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if unified() && !tc.v2 || !unified() && !tc.v1 {
				t.Skip("about the other version of cgroups")
			}
			limits := &specs.LinuxResources{
				Memory: &specs.LinuxMemory{Limit: new(int64(64 * mib)), Swap: new(int64(96 * mib)), Reservation: new(int64(16 * mib))},
				CPU:    &specs.LinuxCPU{Quota: new(int64(20000)), Period: new(uint64(50000)), Cpus: "0"},
				BlockIO: &specs.LinuxBlockIO{
					ThrottleReadIOPSDevice: []specs.LinuxThrottleDevice{{LinuxBlockIODevice: present, Rate: 500}},
				},
			}
			r := &specs.LinuxResources{
				Memory: &specs.LinuxMemory{Limit: new(int64(192 * mib)), Swap: new(int64(256 * mib)), Reservation: new(int64(8 * mib))},
				CPU:    &specs.LinuxCPU{Quota: new(int64(5000)), Period: new(uint64(10000))},
			}
			if kernelHas(t, "cpu.burst") {
				limits.CPU.Burst, r.CPU.Burst = new(uint64(10000)), new(uint64(1000))
			}
			b := create(t, limited(t, limits)).start()
			if !unified() {
				must(t, os.WriteFile(filepath.Join(filepath.Dir(b.Cgroup().Path("cpuset")), "cpuset.cpus"), []byte("0"), 0o600))
				t.Cleanup(func() { restoreParent(t, b) })
			}
			before := settings(t, b.Cgroup())
			tc.spoil(r)
			err := b.Update(r)
			wantText(t, err, "linux.resources.", tc.want)
			if !errdefs.IsInvalidArgument(err) && !errdefs.IsFailedPrecondition(err) {
				t.Errorf("Update = %v, want a class", err)
			}
			if diff := cmp.Diff(before, settings(t, b.Cgroup())); diff != "" {
				t.Errorf("control files after %v (-want +got):\n%s", err, diff)
			}
			if onSystemd() {
				// What it reverts was left in a property of the unit.
				release := testReaper.Suspend() // the command is a child that only we wait for
				must(t, exec.CommandContext(t.Context(), "systemctl", "daemon-reload").Run())
				release()
				if diff := cmp.Diff(before, settings(t, b.Cgroup())); diff != "" {
					t.Errorf("control files after daemon-reload (-want +got):\n%s", diff)
				}
			}
			// What failed was not asked for: the limit goes with the former swap.
			must(t, b.Update(&specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64(80 * mib))}}))
			swap := layout{"memory.memsw.limit_in_bytes", "memory.swap.max"}
			value := layout{"100663296", "16777216"}
			if got, ok := settings(t, b.Cgroup())[swap.here()]; ok && got != value.here() {
				t.Errorf("%s = %s, want %s", swap.here(), got, value.here())
			}
		})
	}
}

// restoreParent gives the cgroup above all containers of this process its CPUs
// back.
func restoreParent(t *testing.T, b *box) {
	t.Helper()
	parent := filepath.Dir(b.Cgroup().Path("cpuset"))
	all, err := os.ReadFile(filepath.Join(filepath.Dir(parent), "cpuset.cpus"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(parent, "cpuset.cpus"), all, 0o600))
}

func TestUpdate_RefusesBeforeItWrites(t *testing.T) {
	b := create(t, limited(t, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64(64 * mib))}})).start()
	before := settings(t, b.Cgroup())
	for _, tc := range []struct {
		r     specs.LinuxResources
		want  string
		class func(error) bool
	}{
		{specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: new(int64(1))}, Pids: &specs.LinuxPids{Limit: new(int64(9))}}, "linux.resources.cpu.quota 1: must be", errdefs.IsInvalidArgument},
		{specs.LinuxResources{Memory: &specs.LinuxMemory{Swap: new(int64(mib))}}, "linux.resources.memory.swap 1048576: limits memory and swap together, must be at least memory.limit 67108864", errdefs.IsInvalidArgument},
		{specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64(1)), CheckBeforeUpdate: new(true)}}, "linux.resources.memory.limit 1: must be above the present usage of ", errdefs.IsFailedPrecondition},
	} {
		err := b.Update(&tc.r)
		wantText(t, err, tc.want)
		if !tc.class(err) {
			t.Errorf("Update = %v, of another class", err)
		}
		if diff := cmp.Diff(before, settings(t, b.Cgroup())); diff != "" {
			t.Errorf("control files after %v (-want +got):\n%s", err, diff)
		}
	}
}

func TestUpdate_Devices(t *testing.T) {
	d := aDisk(t)
	none := specs.LinuxDeviceCgroup{Access: "rwm"}
	one := specs.LinuxDeviceCgroup{Allow: true, Type: "b", Major: &d.major, Minor: &d.minor, Access: "rw"}
	c := limited(t, &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{none}})
	c.Spec.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/disk", Type: "b", Major: d.major, Minor: d.minor, FileMode: new(os.FileMode(0o666))}}
	b := create(t, c).start()
	wantOpens := func(when string, want bool) {
		t.Helper()
		r := b.exec(t.Context(), command("sh", "-c", ": < /dev/disk"))
		must(t, r.err)
		if got := r.status == 0; got != want {
			t.Errorf("%s: the device opens = %t, want %t", when, got, want)
		}
		if r := b.exec(t.Context(), command("sh", "-c", ": < /dev/null")); r.status != 0 {
			t.Errorf("%s: /dev/null does not open: %d, %v", when, r.status, r.err)
		}
	}
	wantOpens("denied by config.json", false)
	must(t, b.Update(&specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{none, one}}))
	wantOpens("allowed by an update", true)
	must(t, b.Update(&specs.LinuxResources{Pids: &specs.LinuxPids{Limit: new(int64(100))}}))
	wantOpens("after an update of something else", true)
	err := b.Update(&specs.LinuxResources{
		Devices: []specs.LinuxDeviceCgroup{none},
		BlockIO: &specs.LinuxBlockIO{ThrottleReadBpsDevice: []specs.LinuxThrottleDevice{{LinuxBlockIODevice: specs.LinuxBlockIODevice{Major: 240, Minor: 77}, Rate: mib}}},
	})
	wantText(t, err, "linux.resources.blockIO.throttleReadBpsDevice: ")
	wantOpens("after an update that failed", true)
	must(t, b.Update(&specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{none}}))
	wantOpens("denied by an update", false)
}
