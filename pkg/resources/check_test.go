// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cpuset"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/resources"
)

func host(tb testing.TB, unified bool) resources.Host {
	tb.Helper()
	cpus, err := cpuset.Parse("0-3")
	testx.Must(tb, err)
	nodes, err := cpuset.Parse("0")
	testx.Must(tb, err)
	return resources.Host{Unified: unified, CPUs: cpus, Nodes: nodes}
}

// v1 marks requests of which only cgroup v1 refuses the values.
const v1 = "v1: "

func TestCheck_Refuses(t *testing.T) {
	for request, want := range map[string]string{ // the whole message, without linux.resources and the class
		`{"memory": {"limit": -5}}`:                            "memory.limit -5: must be at least 0, or -1 for no limit",
		`{"memory": {"reservation": -2}}`:                      "memory.reservation -2: must be at least 0, or -1 for no limit",
		`{"memory": {"swap": -2}}`:                             "memory.swap -2: must be at least 0, or -1 for no limit",
		`{"memory": {"swap": 9}}`:                              "memory.swap 9: limits memory and swap together, must be at least memory.limit 0, which must be set",
		`{"memory": {"swap": 9, "limit": 10}}`:                 "memory.swap 9: limits memory and swap together, must be at least memory.limit 10, which must be set",
		`{"memory": {"swappiness": 101}}`:                      "memory.swappiness 101: must be from 0 to 100",
		`{"cpu": {"quota": 999}}`:                              "cpu.quota 999: must be at least 1000 µs, 0 (unset), or -1 for no limit",
		`{"cpu": {"period": 999}}`:                             "cpu.period 999: must be 0 (unset) or from 1000 to 1000000 µs",
		`{"cpu": {"period": 1000001}}`:                         "cpu.period 1000001: must be 0 (unset) or from 1000 to 1000000 µs",
		`{"cpu": {"quota": 2000, "burst": 2001}}`:              "cpu.burst 2001: must be at most cpu.quota 2000",
		`{"cpu": {"idle": 2}}`:                                 "cpu.idle 2: must be 0 or 1",
		`{"cpu": {"cpus": "0-"}}`:                              `cpu.cpus "0-": must be numbers and ranges of them from 0 to 8191, such as 0-3,7`,
		`{"cpu": {"cpus": "2-4,9"}}`:                           `cpu.cpus "2-4,9": must be among 0-3, which exist here`,
		`{"cpu": {"mems": "1"}}`:                               `cpu.mems "1": must be among 0, which exist here`,
		`{"blockIO": {"weight": 9}}`:                           "blockIO.weight 9: must be 0 (unset) or from 10 to 1000",
		`{"blockIO": {"leafWeight": 1001}}`:                    "blockIO.leafWeight 1001: must be 0 (unset) or from 10 to 1000",
		`{"unified": {"cpuset.mems": "some"}}`:                 `unified["cpuset.mems"] "some": must be numbers and ranges of them from 0 to 8191, such as 0-3,7`,
		v1 + `{"cpu": {"shares": 1}}`:                          "cpu.shares 1: must be 0 (unset) or from 2 to 262144",
		v1 + `{"cpu": {"shares": 262145}}`:                     "cpu.shares 262145: must be 0 (unset) or from 2 to 262144",
		v1 + `{"unified": {"memory.high": "1"}}`:               `unified["memory.high"] "1": needs cgroup v2, and this machine has v1`,
		`{"unified": {"cpuset.cpus": "0-8192"}}`:               `unified["cpuset.cpus"] "0-8192": must be numbers and ranges of them from 0 to 8191, such as 0-3,7`,
		`{"cpu": {"realtimeRuntime": 3, "realtimePeriod": 2}}`: "cpu.realtimeRuntime 3: must be at most cpu.realtimePeriod 2",
	} {
		t.Run(request, func(t *testing.T) {
			text, onlyV1 := strings.CutPrefix(request, v1)
			r := parse[specs.LinuxResources](t, text)
			err := resources.Check(&r, host(t, !onlyV1))
			if want := "linux.resources." + want + ": invalid argument"; err == nil || err.Error() != want || !errdefs.IsInvalidArgument(err) {
				t.Errorf("Check = %v, want %s", err, want)
			}
			if onlyV1 {
				testx.Must(t, resources.Check(&r, host(t, true)))
			}
		})
	}
}

// What clients send where nothing is asked for, or where they ask for the extremes.
func TestCheck_Accepts(t *testing.T) {
	for _, request := range []string{
		`{}`,
		`{"memory": {}, "cpu": {}, "pids": {}, "blockIO": {}, "network": {}}`,
		`{"memory": {"limit": 0, "reservation": 0, "swap": 0, "swappiness": 0, "disableOOMKiller": false},
		  "cpu": {"shares": 0, "quota": 0, "period": 0, "burst": 0, "realtimeRuntime": 0, "realtimePeriod": 0, "idle": 0},
		  "pids": {"limit": 0}, "blockIO": {"weight": 0, "leafWeight": 0}, "network": {"classID": 0}}`,
		`{"memory": {"limit": -1, "reservation": -1, "swap": -1}, "cpu": {"quota": -1, "realtimeRuntime": -1}, "pids": {"limit": -1}}`,
		`{"memory": {"limit": 64, "swap": 64}}`,
		`{"memory": {"limit": 64, "swap": -1}}`,
		`{"memory": {"swappiness": 18446744073709551615}}`,
		`{"cpu": {"shares": 2}}`,
		`{"cpu": {"shares": 262144}}`,
		`{"cpu": {"quota": 1000, "period": 1000000, "burst": 1000}}`,
		`{"cpu": {"burst": 5}}`,
		`{"cpu": {"cpus": "0-1, 3", "mems": "0"}}`,
	} {
		r := parse[specs.LinuxResources](t, request)
		for _, unified := range []bool{false, true} {
			if err := resources.Check(&r, host(t, unified)); err != nil {
				t.Errorf("Check(%s) = %v, want none", request, err)
			}
		}
	}
	testx.Must(t, resources.Check(nil, resources.Host{}))
	anything := parse[specs.LinuxResources](t, `{"cpu": {"cpus": "77", "mems": "77"}}`)
	testx.Must(t, resources.Check(&anything, resources.Host{})) // a machine that tells nothing
}

// A request alone makes ReadHost ask for what the request is checked by: what no machine has is refused, if the kernel
// tells.
func TestReadHost_ReadsWhatARequestNeeds(t *testing.T) {
	for request, sysfs := range map[string]string{
		`{"cpu": {"cpus": "0,8191"}}`: "/sys/devices/system/cpu/possible",
		`{"cpu": {"mems": "0,8191"}}`: "/sys/devices/system/node/possible",
	} {
		_, err := os.Stat(sysfs)
		told := err == nil
		r := parse[specs.LinuxResources](t, request)
		if err := resources.Check(&r, resources.ReadHost(&r)); (err != nil) != told {
			t.Errorf("Check(%s) = %v; %s is there: %t", request, err, sysfs, told)
		}
	}
	if h := resources.ReadHost(nil); !h.CPUs.Empty() || !h.Nodes.Empty() {
		t.Errorf("ReadHost(nil) = %+v, want nothing asked but the version of cgroups", h)
	}
}
