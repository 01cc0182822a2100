// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/kernelversion"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/resources"
)

const mib = 1 << 20

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
		wantFiles(t, what, b, want)
	}
	shares := layout{"512", "59"}
	update("shares of a created one", specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: new(uint64(512))}}, map[string]string{cpuShares.here(): shares.here()})
	b.start()
	// Another's value stays when it is not named, and for CPUs also when it is
	// named as it was asked before. systemd is the only one to change its units.
	if !onSystemd() {
		testx.Must(t, os.WriteFile(b.Cgroup().File("pids.max"), []byte("33"), 0o600))
		testx.Must(t, os.WriteFile(b.Cgroup().File("cpuset.cpus"), []byte("0-1"), 0o600))
		want["pids.max"], want["cpuset.cpus"] = "33", "0-1"
	}
	changed := map[string]string{memoryLimit.here(): "33554432"}
	if _, ok := want["memory.memsw.limit_in_bytes"]; ok {
		changed["memory.memsw.limit_in_bytes"] = "33554432"
	}
	update("memory of a running one", specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: new(int64(32 * mib)), Swap: new(int64(32 * mib))}, CPU: &specs.LinuxCPU{Cpus: "0"},
	}, changed)
	testx.Must(t, b.Pause())
	file, value := layout{"cpu.cfs_quota_us", "cpu.max"}, layout{"30000", "30000 50000"}
	update("quota of a paused one", specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: new(int64(30000))}}, map[string]string{file.here(): value.here()})
	testx.Must(t, b.Resume())
	update("nothing", specs.LinuxResources{}, nil)
	update("zeros", specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64), Swap: new(int64)}, CPU: &specs.LinuxCPU{Quota: new(int64), Shares: new(uint64)}}, nil)
}

func TestUpdate_RemovesLimits(t *testing.T) {
	b := create(t, limited(t, nil))
	want := settings(t, b.Cgroup())
	if onSystemd() {
		want["pids.max"] = "max" // systemd's own default is less
	}
	testx.Must(t, b.Update(&specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: new(int64(64 * mib)), Swap: new(int64(64 * mib)), Reservation: new(int64(mib))}, Pids: &specs.LinuxPids{Limit: new(int64(20))},
		CPU: &specs.LinuxCPU{Quota: new(int64(20000))},
	}))
	testx.Must(t, b.Update(&specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: new(int64(-1)), Reservation: new(int64(-1))}, Pids: &specs.LinuxPids{Limit: new(int64(-1))},
		CPU: &specs.LinuxCPU{Quota: new(int64(-1))},
	}))
	if unified() {
		want["memory.low"] = "max" // no limit of what is protected
	}
	wantFiles(t, "the end of the limits", b, want)
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
		}, layout{"blkio.throttle.write_bps_device", "io.max"}.here()},
		{"more processes than there can be, early on v2", true, true, func(r *specs.LinuxResources) {
			r.Pids = &specs.LinuxPids{Limit: new(int64(1 << 40))}
		}, "pids.max"},
		{"CPUs that the parent lacks, first on v1", true, false, func(r *specs.LinuxResources) {
			r.CPU.Cpus = "1"
		}, "cpuset.cpus"},
		{"a file of v2, last there", false, true, func(r *specs.LinuxResources) {
			r.Unified = map[string]string{"memory.high": "much"}
		}, "memory.high"},
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
				testx.Must(t, os.WriteFile(filepath.Join(filepath.Dir(b.Cgroup().Path("cpuset")), "cpuset.cpus"), []byte("0"), 0o600))
				t.Cleanup(func() { restoreParent(t, b) })
			}
			before := settings(t, b.Cgroup())
			tc.spoil(r)
			err := b.Update(r)
			testx.WantText(t, err, "linux.resources: ", tc.want)
			if !errdefs.IsInvalidArgument(err) && !errdefs.IsFailedPrecondition(err) {
				t.Errorf("Update = %v, want a class", err)
			}
			wantFiles(t, "a refusal", b, before)
			if onSystemd() {
				// What it reverts was left in a property of the unit.
				release := testReaper.Suspend() // the command is a child that only we wait for
				testx.Must(t, exec.CommandContext(t.Context(), "systemctl", "daemon-reload").Run())
				release()
				wantFiles(t, "daemon-reload", b, before)
			}
			// What failed was not asked for: the limit goes with the former swap.
			testx.Must(t, b.Update(&specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64(80 * mib))}}))
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
	testx.Must(t, err)
	testx.Must(t, os.WriteFile(filepath.Join(parent, "cpuset.cpus"), all, 0o600))
}

func TestUpdate_RefusesBeforeItWrites(t *testing.T) {
	b := create(t, limited(t, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64(64 * mib))}})).start()
	before := settings(t, b.Cgroup())
	for _, tc := range []struct {
		r     specs.LinuxResources
		want  string
		class error
	}{
		{specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: new(int64(1))}, Pids: &specs.LinuxPids{Limit: new(int64(9))}}, "linux.resources.cpu.quota 1: must be", errdefs.ErrInvalidArgument},
		{specs.LinuxResources{Memory: &specs.LinuxMemory{Swap: new(int64(mib))}}, "linux.resources.memory.swap 1048576: limits memory and swap together, must be at least memory.limit 67108864, which must be set", errdefs.ErrInvalidArgument},
		{specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64(1)), CheckBeforeUpdate: new(true)}}, layout{"unable to set memory limit to 1", "rejecting memory limit 1"}.here(), errdefs.ErrFailedPrecondition},
	} {
		testx.WantError(t, b.Update(&tc.r), tc.class, tc.want)
		wantFiles(t, tc.want, b, before)
	}
}

func TestUpdate_Devices(t *testing.T) {
	d := aDisk(t)
	none := specs.LinuxDeviceCgroup{Access: "rwm"}
	one := specs.LinuxDeviceCgroup{Allow: true, Type: "b", Major: &d.major, Minor: &d.minor, Access: "rw"}
	missing := specs.LinuxThrottleDevice{LinuxBlockIODevice: specs.LinuxBlockIODevice{Major: 240, Minor: 77}, Rate: mib}
	c := limited(t, &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{none}})
	c.Spec.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/disk", Type: "b", Major: d.major, Minor: d.minor, FileMode: new(os.FileMode(0o666))}}
	b := create(t, c).start()
	for _, tc := range []struct {
		when  string
		r     specs.LinuxResources
		err   string
		opens bool
	}{
		{"denied by config.json", specs.LinuxResources{}, "", false},
		{"allowed by an update", specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{none, one}}, "", true},
		{"after an update of something else", specs.LinuxResources{Pids: &specs.LinuxPids{Limit: new(int64(100))}}, "", true},
		{"after an update that failed", specs.LinuxResources{
			Devices: []specs.LinuxDeviceCgroup{none},
			BlockIO: &specs.LinuxBlockIO{ThrottleReadBpsDevice: []specs.LinuxThrottleDevice{missing}},
		}, "linux.resources: ", true},
		{"denied by an update", specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{none}}, "", false},
	} {
		if err := b.Update(&tc.r); tc.err != "" {
			testx.WantText(t, err, tc.err)
		} else {
			testx.Must(t, err)
		}
		for file, want := range map[string]bool{"/dev/disk": tc.opens, "/dev/null": true} {
			if got := b.exec(t.Context(), command("sh", "-c", ": < "+file)); got.err != nil || (got.status == 0) != want {
				t.Errorf("%s: %s opens: %+v, want %t", tc.when, file, got, want)
			}
		}
	}
}

// fields are those of linux.resources. Sources: kernel, admin-guide/cgroup-v1/*.rst and admin-guide/cgroup-v2.rst.
var fields = []struct {
	name  string
	files layout   // that depend on it, or patterns of path.Match for them; none: the version has no such setting
	asked []string // values; MAJ and MIN stand for a block device of the machine
}{
	{"memory.limit", layout{"memory.limit_in_bytes memory.memsw.limit_in_bytes", "memory.max memory.swap.max"}, []string{`{"memory": {"limit": 67108864}}`, `{"memory": {"limit": -1}}`}},
	{"memory.reservation", layout{"memory.soft_limit_in_bytes", "memory.low"}, []string{`{"memory": {"reservation": 33554432}}`}},
	{"memory.swap", layout{"memory.memsw.limit_in_bytes memory.limit_in_bytes", "memory.swap.max memory.max"}, []string{`{"memory": {"limit": 67108864, "swap": 100663296}}`, `{"memory": {"limit": 67108864, "swap": 67108864}}`, `{"memory": {"limit": 67108864, "swap": -1}}`}},
	{"memory.swappiness", layout{"memory.swappiness", ""}, []string{`{"memory": {"swappiness": 10}}`}},
	{"memory.disableOOMKiller", layout{"memory.oom_control", ""}, []string{`{"memory": {"disableOOMKiller": true}}`}},
	{"cpu.shares", layout{"cpu.shares", "cpu.weight"}, []string{`{"cpu": {"shares": 2}}`, `{"cpu": {"shares": 512}}`, `{"cpu": {"shares": 262144}}`}},
	{"cpu.quota", layout{"cpu.cfs_quota_us", "cpu.max"}, []string{`{"cpu": {"quota": 20000}}`, `{"cpu": {"quota": 20000, "period": 50000}}`}},
	{"cpu.burst", layout{"cpu.cfs_burst_us", "cpu.max.burst"}, []string{`{"cpu": {"quota": 20000, "burst": 10000}}`}},
	{"cpu.period", layout{"cpu.cfs_period_us", "cpu.max"}, []string{`{"cpu": {"period": 50000}}`}},
	{"cpu.realtimeRuntime", layout{"cpu.rt_runtime_us", ""}, []string{`{"cpu": {"realtimeRuntime": 5000}}`}},
	{"cpu.realtimePeriod", layout{"cpu.rt_period_us", ""}, []string{`{"cpu": {"realtimePeriod": 500000}}`}},
	{"cpu.cpus", layout{"cpuset.cpus", "cpuset.cpus"}, []string{`{"cpu": {"cpus": "0"}}`}},
	{"cpu.mems", layout{"cpuset.mems", "cpuset.mems"}, []string{`{"cpu": {"mems": "0"}}`}},
	{"cpu.idle", layout{"cpu.idle", "cpu.idle"}, []string{`{"cpu": {"idle": 1}}`}},
	{"pids.limit", layout{"pids.max", "pids.max"}, []string{`{"pids": {"limit": 20}}`, `{"pids": {"limit": 0}}`, `{"pids": {"limit": -1}}`}},
	{"blockIO.weight", layout{"blkio.weight blkio.bfq.weight", "io.weight io.bfq.weight"}, []string{`{"blockIO": {"weight": 200}}`}},
	{"blockIO.leafWeight", layout{"blkio.leaf_weight", ""}, []string{`{"blockIO": {"leafWeight": 200}}`}},
	{"blockIO.throttleReadBpsDevice", layout{"blkio.throttle.read_bps_device", "io.max"}, []string{`{"blockIO": {"throttleReadBpsDevice": [{"major": MAJ, "minor": MIN, "rate": 1048576}]}}`}},
	{"blockIO.throttleWriteBpsDevice", layout{"blkio.throttle.write_bps_device", "io.max"}, []string{`{"blockIO": {"throttleWriteBpsDevice": [{"major": MAJ, "minor": MIN, "rate": 1048576}]}}`}},
	{"blockIO.throttleReadIOPSDevice", layout{"blkio.throttle.read_iops_device", "io.max"}, []string{`{"blockIO": {"throttleReadIOPSDevice": [{"major": MAJ, "minor": MIN, "rate": 500}]}}`}},
	{"blockIO.throttleWriteIOPSDevice", layout{"blkio.throttle.write_iops_device", "io.max"}, []string{`{"blockIO": {"throttleWriteIOPSDevice": [{"major": MAJ, "minor": MIN, "rate": 500}]}}`}},
	{"hugepageLimits", layout{"hugetlb.*.limit_in_bytes", "hugetlb.*.max"}, []string{`{"hugepageLimits": [{"pageSize": "2MB", "limit": 4194304}]}`}},
	{"network.classID", layout{"net_cls.classid", ""}, []string{`{"network": {"classID": 1048577}}`}},
	{"network.priorities", layout{"net_prio.ifpriomap", ""}, []string{`{"network": {"priorities": [{"name": "lo", "priority": 5}]}}`}},
	{"rdma", layout{"rdma.max", "rdma.max"}, []string{`{"rdma": {"mlx5_1": {"hcaHandles": 3, "hcaObjects": 10000}}}`}},
	{"unified", layout{"", "memory.high"}, []string{`{"unified": {"memory.high": "33554432"}}`}},
}

// TestResources_EveryFieldReachesTheKernel creates a container with each field, and updates another with it: the kernel
// says the same of both, which the table of docs/cgroups.md shows.
func TestResources_EveryFieldReachesTheKernel(t *testing.T) {
	page := testx.Read(t, "../../docs/cgroups.md")
	d := aDisk(t)
	plain := create(t, limited(t, nil))
	allowRealtime(t, plain)
	for _, f := range fields {
		for _, asked := range f.asked {
			t.Run(asked, func(t *testing.T) {
				text := strings.NewReplacer("MAJ", fmt.Sprint(d.major), "MIN", fmt.Sprint(d.minor)).Replace(asked)
				var r specs.LinuxResources
				testx.Must(t, json.Unmarshal([]byte(text), &r))
				got := strings.ReplaceAll(tell(t, plain, f.name, strings.Fields(f.files.here()), &r), d.String(), "MAJ:MIN")
				if f.name == "cpu.idle" && since(t, 6, 12) { // which rounds the weight of idle cgroups up
					got = strings.ReplaceAll(got, "cpu.weight: `1`", "cpu.weight: `0`")
				}
				wantInTable(t, page, f.name, asked, got)
				controller, _, _ := strings.Cut(f.name, ".")
				if got == absent && promised(controller) && kernelHas(t, f.name) {
					t.Errorf("%s is %s, which SHIM_TEST_REQUIRE=%s promises", f.name, absent, os.Getenv("SHIM_TEST_REQUIRE"))
				}
			})
		}
	}
}

// tell is what the control files say after Create with r, and after Update, that they do not say in plain.
func tell(t *testing.T, plain *box, field string, own []string, r *specs.LinuxResources) string {
	t.Helper()
	if field == "unified" && !unified() {
		testx.WantText(t, resources.Check(r, resources.ReadHost(r)), "needs cgroup v2")
		return "refused"
	}
	if len(own) == 0 {
		create(t, limited(t, r)) // what has no file does no harm
		return noSetting
	}
	names := controlFiles(t, plain.Cgroup(), own)
	if len(names) == 0 {
		return absent
	}
	if !kernelHas(t, field) {
		_, err := tryCreate(t, t.Context(), limited(t, r))
		testx.WantText(t, err, "linux.resources: ")
		testx.WantText(t, create(t, limited(t, nil)).Update(r), "linux.resources: ")
		return absent
	}
	before := settings(t, plain.Cgroup())
	updated := create(t, limited(t, nil))
	if err := updated.Update(r); errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV) {
		return absent // no such device
	} else if err != nil {
		t.Errorf("Update = %v", err)
	}
	created := create(t, limited(t, r))
	got, want := changed(before, settings(t, updated.Cgroup()), own), changed(before, settings(t, created.Cgroup()), own)
	if got != want {
		t.Errorf("after Update: %s, want as after Create: %s", got, want)
	}
	return want
}

// kernelHas is false for a field that the kernel is too old for.
func kernelHas(t *testing.T, field string) bool {
	t.Helper()
	switch field {
	case "cpu.burst":
		return since(t, 5, 14)
	case "cpu.idle":
		return since(t, 5, 15)
	}
	return true
}

// since reports whether the kernel is version major.minor or newer.
func since(t *testing.T, major, minor uint64) bool {
	t.Helper()
	newer, err := kernelversion.GreaterEqualThan(kernelversion.KernelVersion{Kernel: major, Major: minor})
	testx.Must(t, err)
	return newer
}

// changed are the lines that are new in after, or what the first file says when
// there are none.
func changed(before, after map[string]string, files []string) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(after)) {
		former := strings.Split(before[name], "\n")
		for line := range strings.SplitSeq(after[name], "\n") {
			if !slices.Contains(former, line) {
				all = append(all, fmt.Sprintf("%s: `%s`", name, line))
			}
		}
	}
	if len(all) == 0 {
		return fmt.Sprintf("%s: `%s`", files[0], after[files[0]])
	}
	return strings.Join(all, "<br>")
}

// allowRealtime gives the cgroup above all containers of this process some
// real-time, without which they can have none (scheduler/sched-rt-group.rst).
func allowRealtime(t *testing.T, b *box) {
	t.Helper()
	file := filepath.Join(filepath.Dir(b.Cgroup().Path("cpu")), "cpu.rt_runtime_us")
	if _, err := os.Stat(file); err == nil && !unified() {
		testx.Must(t, os.WriteFile(file, []byte("50000"), 0o600))
	}
}

const (
	noSetting = "–"
	absent    = "not on this kernel"
)

// wantInTable compares got with the cell of the table for the layout of this machine. What this kernel lacks says
// nothing of what others do.
func wantInTable(t *testing.T, page, field, asked, got string) {
	t.Helper()
	_, rest, ok := strings.Cut(page, fmt.Sprintf("\n| %s | `%s` | ", field, asked))
	row, _, _ := strings.Cut(rest, " |\n")
	cells := strings.Split(row, " | ")
	column := 0 // v1; v2; v2, systemd
	if unified() {
		column = 1
	}
	if unified() && onSystemd() {
		column = 2
	}
	if !ok || len(cells) != 3 {
		t.Errorf("docs/cgroups.md has no row for %s, asked %s", field, asked)
	} else if got != absent && cells[column] != got {
		t.Errorf("%s, asked %s: the kernel says %q, docs/cgroups.md says %q", field, asked, got, cells[column])
	}
}

// layout is a text for each of the two versions of cgroups.
type layout struct{ v1, v2 string }

func (l layout) here() string {
	if unified() {
		return l.v2
	}
	return l.v1
}

// wantFiles compares all control files of resources.
func wantFiles(t *testing.T, what string, b *box, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, settings(t, b.Cgroup())); diff != "" {
		t.Errorf("control files after %s (-want +got):\n%s", what, diff)
	}
}
