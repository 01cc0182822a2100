// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/resources"
)

// resourcesJSON has most fields that Check looks at.
const resourcesJSON = `{"memory":{"limit":64,"swap":128,"swappiness":60},"cpu":{"shares":2,"quota":5000,"burst":1,"period":10000,` +
	`"idle":0,"cpus":"0-1","mems":"0"},"blockIO":{"weight":100,"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":5}]},` +
	`"hugepageLimits":[{"pageSize":"2MB","limit":1}],"rdma":{"a":{"hcaHandles":1}},"network":{"priorities":[{"name":"eth0"}]},` +
	`"devices":[{"allow":true,"type":"c","major":1,"minor":-1,"access":"rw"}],"unified":{"memory.high":"7"},"pids":{"limit":5}}`

func FuzzCheck(f *testing.F) {
	f.Add([]byte(resourcesJSON), true)
	f.Add([]byte(`{"cpu":{"quota":-1,"realtimeRuntime":5,"realtimePeriod":4},"memory":{"limit":-2}}`), false)
	f.Fuzz(func(t *testing.T, data []byte, unified bool) {
		var r specs.LinuxResources
		if json.Unmarshal(data, &r) != nil {
			return
		}
		err := resources.Check(&r, resources.Host{Unified: unified})
		if err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("Check(%s) = %v, want an invalid argument", data, err)
			}
			return
		}
		if !unified && len(r.Unified) > 0 {
			t.Errorf("Check accepts %s on v1", data)
		}
		// v2 has a weight, into which any number is converted.
		if c, m := r.CPU, r.Memory; !unified && c != nil && c.Shares != nil && *c.Shares == 1 ||
			m != nil && m.Limit != nil && *m.Limit < -1 {
			t.Errorf("Check accepts %s", data)
		}
	})
}

func FuzzMerge(f *testing.F) {
	f.Add([]byte(resourcesJSON), []byte(`{"memory":{"limit":256},"cpu":{"quota":7000,"cpus":"1"},"unified":{"a":"b"}}`))
	f.Add([]byte(`null`), []byte(resourcesJSON))
	f.Add([]byte(`{"memory":{"swap":9}}`), []byte(`{"memory":{"limit":-1}}`))
	f.Fuzz(func(t *testing.T, beforeData, data []byte) {
		decode := func(data []byte) *specs.LinuxResources {
			var r *specs.LinuxResources
			if json.Unmarshal(data, &r) != nil {
				t.Skip()
			}
			return r
		}
		before, r := decode(beforeData), decode(data)
		if r == nil {
			return
		}
		next, _ := resources.Merge(before, r)
		if !reflect.DeepEqual(before, decode(beforeData)) || !reflect.DeepEqual(r, decode(data)) {
			t.Errorf("Merge(%s, %s) changes an argument", beforeData, data)
		}
		again, write := resources.Merge(next, r)
		if !reflect.DeepEqual(again, next) {
			t.Errorf("Merge(%s, %s) a second time changes what is asked for: %s, then %s",
				beforeData, data, text(next), text(again))
		}
		if c := write.CPU; c != nil && r.CPU.Cpus != "" && c.Cpus != "" {
			t.Errorf("Merge(%s, %s) a second time writes the same CPUs", beforeData, data)
		}
	})
}

func text(r *specs.LinuxResources) string {
	data, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(data)
}
