// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/resources"
)

func TestMerge(t *testing.T) {
	const before = `{"devices": [{"allow": false, "access": "rwm"}], "memory": {"limit": 64, "swap": 128, "reservation": 32}, "cpu": {"shares": 512, "quota": 5000, "period": 10000, "cpus": "0-1", "mems": "0"}, "pids": {"limit": 10}, "unified": {"a.x": "1", "b.x": "2"}}`
	for _, tc := range []struct {
		name, r, write string
		next           string // what differs from before, as a JSON merge patch
	}{
		{"nothing", `{}`, `{}`, `{}`},
		{"a memory limit goes with the swap limit that stands", `{"memory": {"limit": 96}}`, `{"memory": {"limit": 96, "swap": 128}}`, `{"memory": {"limit": 96}}`},
		{"a swap limit goes with the memory limit that stands", `{"memory": {"swap": 64}}`, `{"memory": {"limit": 64, "swap": 64}}`, `{"memory": {"swap": 64}}`},
		{"a memory limit above both takes the swap along", `{"memory": {"limit": 256}}`, `{"memory": {"limit": 256, "swap": 320}}`, `{"memory": {"limit": 256, "swap": 320}}`},
		{"no memory limit takes the swap limit away too", `{"memory": {"limit": -1}}`, `{"memory": {"limit": -1, "swap": -1}}`, `{"memory": {"limit": -1, "swap": -1}}`},
		{"no memory limit with a swap limit", `{"memory": {"limit": -1, "swap": 7}}`, `{"memory": {"limit": -1, "swap": 7}}`, `{"memory": {"limit": -1, "swap": 7}}`},
		{"a reservation alone", `{"memory": {"reservation": 16}}`, `{"memory": {"reservation": 16}}`, `{"memory": {"reservation": 16}}`},
		{"zeros are unset", `{"memory": {"limit": 0, "swap": 0, "reservation": 0}, "cpu": {"shares": 0, "quota": 0, "period": 0}}`, `{"memory": {"limit": 0, "swap": 0, "reservation": 0}, "cpu": {"shares": 0, "quota": 0, "period": 0}}`, `{}`},
		{"the check is asked for once", `{"memory": {"checkBeforeUpdate": true}}`, `{"memory": {"checkBeforeUpdate": true}}`, `{"memory": {"checkBeforeUpdate": true}}`},
		{"swappiness and the OOM killer", `{"memory": {"swappiness": 0, "disableOOMKiller": false}}`, `{"memory": {"swappiness": 0, "disableOOMKiller": false}}`, `{"memory": {"swappiness": 0, "disableOOMKiller": false}}`},
		{"shares", `{"cpu": {"shares": 1024}}`, `{"cpu": {"shares": 1024}}`, `{"cpu": {"shares": 1024}}`},
		{"a quota goes with the period that stands", `{"cpu": {"quota": 7000}}`, `{"cpu": {"quota": 7000, "period": 10000}}`, `{"cpu": {"quota": 7000}}`},
		{"a period goes with the quota that stands", `{"cpu": {"period": 20000}}`, `{"cpu": {"quota": 5000, "period": 20000}}`, `{"cpu": {"period": 20000}}`},
		{"a burst goes with both", `{"cpu": {"burst": 0}}`, `{"cpu": {"quota": 5000, "period": 10000, "burst": 0}}`, `{"cpu": {"burst": 0}}`},
		{"real-time", `{"cpu": {"realtimeRuntime": 3}}`, `{"cpu": {"realtimeRuntime": 3}}`, `{"cpu": {"realtimeRuntime": 3}}`},
		{"idle", `{"cpu": {"idle": 0}}`, `{"cpu": {"idle": 0}}`, `{"cpu": {"idle": 0}}`},
		{"other CPUs", `{"cpu": {"cpus": "1"}}`, `{"cpu": {"cpus": "1"}}`, `{"cpu": {"cpus": "1"}}`},
		{"the same CPUs and nodes are left to others", `{"cpu": {"cpus": "0-1", "mems": "0"}}`, `{"cpu": {}}`, `{}`},
		{"the same device rules", `{"devices": [{"allow": false, "access": "rwm"}]}`, `{}`, `{}`},
		{"other device rules", `{"devices": [{"allow": true, "access": "r"}]}`, `{"devices": [{"allow": true, "access": "r"}]}`, `{"devices": [{"allow": true, "access": "r"}]}`},
		{"pids", `{"pids": {"limit": 0}}`, `{"pids": {"limit": 0}}`, `{"pids": {"limit": 0}}`},
		{"pids without a limit", `{"pids": {}}`, `{"pids": {}}`, `{}`},
		{"block IO", `{"blockIO": {"leafWeight": 20, "throttleReadBpsDevice": [{"major": 8, "minor": 0, "rate": 5}]}}`, `{"blockIO": {"leafWeight": 20, "throttleReadBpsDevice": [{"major": 8, "minor": 0, "rate": 5}]}}`, `{"blockIO": {"leafWeight": 20, "throttleReadBpsDevice": [{"major": 8, "minor": 0, "rate": 5}]}}`},
		{"huge pages", `{"hugepageLimits": [{"pageSize": "2MB", "limit": 0}]}`, `{"hugepageLimits": [{"pageSize": "2MB", "limit": 0}]}`, `{"hugepageLimits": [{"pageSize": "2MB", "limit": 0}]}`},
		{"network", `{"network": {"classID": 5, "priorities": [{"name": "lo", "priority": 3}]}}`, `{"network": {"classID": 5, "priorities": [{"name": "lo", "priority": 3}]}}`, `{"network": {"classID": 5, "priorities": [{"name": "lo", "priority": 3}]}}`},
		{"rdma", `{"rdma": {"mlx5_1": {"hcaHandles": 3}}}`, `{"rdma": {"mlx5_1": {"hcaHandles": 3}}}`, `{"rdma": {"mlx5_1": {"hcaHandles": 3}}}`},
		{"files of version 2", `{"unified": {"b.x": "3", "c.x": "4"}}`, `{"unified": {"b.x": "3", "c.x": "4"}}`, `{"unified": {"b.x": "3", "c.x": "4"}}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			stood, r := parse[specs.LinuxResources](t, before), parse[specs.LinuxResources](t, tc.r)
			next, write := resources.Merge(&stood, &r)
			if diff := cmp.Diff(parse[any](t, tc.write), encode(t, write)); diff != "" {
				t.Errorf("write (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(patch(parse[any](t, before), parse[any](t, tc.next)), encode(t, next)); diff != "" {
				t.Errorf("next (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(parse[specs.LinuxResources](t, before), stood); diff != "" {
				t.Errorf("Merge changed what stood before (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(parse[specs.LinuxResources](t, tc.r), r); diff != "" {
				t.Errorf("Merge changed its argument (-want +got):\n%s", diff)
			}
		})
	}
	r := parse[specs.LinuxResources](t, `{"memory": {"limit": 5}, "cpu": {"cpus": "0"}, "blockIO": {"weight": 10}, "unified": {"a.x": "1"}, "network": {"classID": 1}}`)
	next, write := resources.Merge(nil, &r)
	if diff := cmp.Diff(&r, next); diff != "" {
		t.Errorf("next without anything before (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&r, write); diff != "" {
		t.Errorf("write without anything before (-want +got):\n%s", diff)
	}
}

func parse[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

func encode(t *testing.T, v any) any {
	t.Helper()
	data, err := json.Marshal(v)
	testx.Must(t, err)
	return parse[any](t, string(data))
}

// patch applies a JSON merge patch (RFC 7396) that removes nothing.
func patch(target, change any) any {
	fields, ok := change.(map[string]any)
	if !ok {
		return change
	}
	into, ok := target.(map[string]any)
	if !ok {
		into = map[string]any{}
	}
	for key, v := range fields {
		into[key] = patch(into[key], v)
	}
	return into
}
