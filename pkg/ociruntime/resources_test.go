// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/kernelversion"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/resources"
)

// asked has a value for each field. MAJ and MIN stand for a block device of the
// machine.
var asked = []struct{ field, json string }{
	{"memory.limit", `{"memory": {"limit": 67108864}}`},
	{"memory.limit", `{"memory": {"limit": -1}}`},
	{"memory.reservation", `{"memory": {"reservation": 33554432}}`},
	{"memory.swap", `{"memory": {"limit": 67108864, "swap": 100663296}}`},
	{"memory.swap", `{"memory": {"limit": 67108864, "swap": 67108864}}`},
	{"memory.swap", `{"memory": {"limit": 67108864, "swap": -1}}`},
	{"memory.kernelTCP", `{"memory": {"kernelTCP": 1048576}}`},
	{"memory.swappiness", `{"memory": {"swappiness": 10}}`},
	{"memory.disableOOMKiller", `{"memory": {"disableOOMKiller": true}}`},
	{"cpu.shares", `{"cpu": {"shares": 2}}`},
	{"cpu.shares", `{"cpu": {"shares": 512}}`},
	{"cpu.shares", `{"cpu": {"shares": 262144}}`},
	{"cpu.quota", `{"cpu": {"quota": 20000}}`},
	{"cpu.quota", `{"cpu": {"quota": 20000, "period": 50000}}`},
	{"cpu.burst", `{"cpu": {"quota": 20000, "burst": 10000}}`},
	{"cpu.period", `{"cpu": {"period": 50000}}`},
	{"cpu.realtimeRuntime", `{"cpu": {"realtimeRuntime": 5000}}`},
	{"cpu.realtimePeriod", `{"cpu": {"realtimePeriod": 500000}}`},
	{"cpu.cpus", `{"cpu": {"cpus": "0"}}`},
	{"cpu.mems", `{"cpu": {"mems": "0"}}`},
	{"cpu.idle", `{"cpu": {"idle": 1}}`},
	{"pids.limit", `{"pids": {"limit": 20}}`},
	{"pids.limit", `{"pids": {"limit": 0}}`},
	{"pids.limit", `{"pids": {"limit": -1}}`},
	{"blockIO.weight", `{"blockIO": {"weight": 200}}`},
	{"blockIO.leafWeight", `{"blockIO": {"leafWeight": 200}}`},
	{"blockIO.weightDevice", `{"blockIO": {"weightDevice": [{"major": MAJ, "minor": MIN, "weight": 200}]}}`},
	{"blockIO.throttleReadBpsDevice", `{"blockIO": {"throttleReadBpsDevice": [{"major": MAJ, "minor": MIN, "rate": 1048576}]}}`},
	{"blockIO.throttleWriteBpsDevice", `{"blockIO": {"throttleWriteBpsDevice": [{"major": MAJ, "minor": MIN, "rate": 1048576}]}}`},
	{"blockIO.throttleReadIOPSDevice", `{"blockIO": {"throttleReadIOPSDevice": [{"major": MAJ, "minor": MIN, "rate": 500}]}}`},
	{"blockIO.throttleWriteIOPSDevice", `{"blockIO": {"throttleWriteIOPSDevice": [{"major": MAJ, "minor": MIN, "rate": 500}]}}`},
	{"hugepageLimits", `{"hugepageLimits": [{"pageSize": "2MB", "limit": 4194304}]}`},
	{"network.classID", `{"network": {"classID": 1048577}}`},
	{"network.priorities", `{"network": {"priorities": [{"name": "lo", "priority": 5}]}}`},
	{"rdma", `{"rdma": {"mlx5_1": {"hcaHandles": 3, "hcaObjects": 10000}}}`},
	{"unified", `{"unified": {"memory.high": "33554432"}}`},
}

// TestResources_EveryFieldReachesTheKernel creates a container with each field, and
// updates another with it: the kernel says the same of both, which the table of
// docs/cgroups.md shows.
func TestResources_EveryFieldReachesTheKernel(t *testing.T) {
	tab := readTable(t, "../../docs/cgroups.md")
	d := aDisk(t)
	plain := create(t, limited(t, nil))
	allowRealtime(t, plain)
	for _, tc := range asked {
		t.Run(tc.json, func(t *testing.T) {
			text := strings.NewReplacer("MAJ", fmt.Sprint(d.major), "MIN", fmt.Sprint(d.minor)).Replace(tc.json)
			var r specs.LinuxResources
			must(t, json.Unmarshal([]byte(text), &r))
			got := strings.ReplaceAll(tell(t, plain, tc.field, &r), d.String(), "MAJ:MIN")
			if tc.field == "cpu.idle" && since(t, 6, 12) { // which rounds the weight of idle cgroups up
				got = strings.ReplaceAll(got, "cpu.weight: `1`", "cpu.weight: `0`")
			}
			tab.want(t, tc.field, "`"+tc.json+"`", got)
			controller, _, _ := strings.Cut(tc.field, ".")
			if got == absent && promised(controller) && kernelHas(t, tc.field) {
				t.Errorf("%s is %s, which SHIM_TEST_REQUIRE=%s promises", tc.field, absent, os.Getenv("SHIM_TEST_REQUIRE"))
			}
		})
	}
	if *update {
		tab.write(t)
	}
}

// tell is what the files of all fields in r say after Create, and after Update,
// that they do not say in plain.
func tell(t *testing.T, plain *box, field string, r *specs.LinuxResources) string {
	t.Helper()
	if err := resources.Check(r, resources.ReadHost(r)); err != nil && field == "unified" {
		return "refused"
	}
	var files []string
	for _, f := range resources.Fields(r) {
		files = append(files, f.Files(unified())...)
	}
	if len(files) == 0 {
		create(t, limited(t, r)) // what has no file does no harm
		return noSetting
	}
	before := controlFiles(t, plain.Cgroup(), files)
	if len(before) == 0 {
		return absent
	}
	if !kernelHas(t, field) {
		_, err := tryCreate(t, t.Context(), limited(t, r))
		wantText(t, err, "linux.resources."+field+": ")
		wantText(t, create(t, limited(t, nil)).Update(r), "linux.resources."+field+": ")
		return absent
	}
	updated := create(t, limited(t, nil))
	if err := updated.Update(r); errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV) {
		return absent // no such device, or its scheduler knows no weights
	} else if err != nil {
		t.Errorf("Update = %v", err)
	}
	created := create(t, limited(t, r))
	got, want := changed(before, controlFiles(t, updated.Cgroup(), files), files), changed(before, controlFiles(t, created.Cgroup(), files), files)
	if field == "blockIO.weightDevice" && controlFiles(t, created.Cgroup(), files)["io.weight"] == before["io.weight"] {
		return absent // iocost is off for the device (cgroup-v2.rst, io.cost.qos)
	}
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
	must(t, err)
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
		must(t, os.WriteFile(file, []byte("50000"), 0o600))
	}
}
