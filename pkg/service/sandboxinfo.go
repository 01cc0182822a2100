// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"encoding/json"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/pod"
	"sandbox.internal/shim/pkg/podsandbox"
)

// podState returns the name that CRI has for the stage (PodSandboxState).
func podState(s podsandbox.Stage) string {
	if s == podsandbox.Running {
		return "SANDBOX_READY"
	}
	return "SANDBOX_NOTREADY"
}

// podInfo returns what SandboxStatus tells if it is asked to be verbose. CRI decodes the value of "info" and encodes it
// again, so what CRI does not know stands under other keys.
func podInfo(s podsandbox.Status) (map[string]string, error) {
	info := map[string]string{}
	for key, value := range map[string]any{
		"info": sandboxInfo{
			Pid: s.Pid, Status: s.Stage.String(), RuntimeType: "io.containerd.sandbox.v1",
			Config: s.Config.CRI, RuntimeSpec: s.Spec,
			Overhead: criResources{s.Updated.Overhead}, Resources: criResources{s.Updated.Resources},
		},
		"members": members(s.Containers),
		"cpusets": cpusets(s.Containers),
	} {
		data, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("sandbox %q: encode status: %w", s.ID, err)
		}
		info[key] = string(data)
	}
	return info, nil
}

// sandboxInfo has the names that CRI reads (containerd internal/cri/server/podsandbox/types, SandboxInfo).
type sandboxInfo struct {
	Pid         int            `json:"pid"`
	Status      string         `json:"processStatus"`
	RuntimeType string         `json:"runtimeType"`
	Config      *pod.CRIConfig `json:"config"`
	RuntimeSpec *specs.Spec    `json:"runtimeSpec"`

	Overhead  criResources `json:"overhead,omitzero"`
	Resources criResources `json:"resources,omitzero"`
}

// criResources has the names of CRI's ContainerResources.
type criResources struct {
	Linux *json.RawMessage `json:"linux"`
}

type memberInfo struct {
	ID     string              `json:"id"`
	Pid    int                 `json:"pid"`
	State  string              `json:"state"`
	Notify *notifyInfo         `json:"notify,omitempty"`
	Execs  map[string]execInfo `json:"execs,omitempty"`
}

// notifyInfo is what a container sent to its notify socket (docs/executors.md).
type notifyInfo struct {
	Ready  bool   `json:"ready"`
	Status string `json:"status,omitempty"`
	Errno  int    `json:"errno,omitempty"`
}

// execInfo is what an exec with a cgroup of its own has used.
type execInfo struct {
	CPUSeconds  float64 `json:"cpuSeconds"`
	MemoryBytes uint64  `json:"memoryBytes"`
	CgroupTotal bool    `json:"memoryIsOfAll"` // and not of its largest process alone
}

func members(list []podsandbox.ContainerStatus) []memberInfo {
	all := []memberInfo{}
	for _, m := range list {
		info := memberInfo{
			ID: m.ID, Pid: m.Pid, State: m.State.String(), Notify: (*notifyInfo)(m.Notified), Execs: map[string]execInfo{},
		}
		for id, used := range m.Execs {
			info.Execs[id] = execInfo{
				CPUSeconds: used.CPU.Seconds(), MemoryBytes: used.Memory, CgroupTotal: used.CgroupTotal,
			}
		}
		all = append(all, info)
	}
	return all
}

// cpusetInfo says how a container follows the CPUs of another cgroup (docs/cpuset.md).
type cpusetInfo struct {
	Source string `json:"source"`
	CPUs   string `json:"cpus"`
	Mems   string `json:"mems,omitempty"`
	Writes int    `json:"writes"`
	Pinned bool   `json:"pinned"`
	Error  string `json:"error,omitempty"`
}

func cpusets(list []podsandbox.ContainerStatus) map[string]cpusetInfo {
	all := map[string]cpusetInfo{}
	for _, m := range list {
		if m.CPUSet == nil {
			continue
		}
		info := cpusetInfo{
			Source: m.CPUSet.Source, CPUs: m.CPUSet.CPUs.String(), Mems: m.CPUSet.Mems.String(),
			Writes: m.CPUSet.Writes, Pinned: m.CPUSet.Pinned,
		}
		if m.CPUSet.Err != nil {
			info.Error = m.CPUSet.Err.Error()
		}
		all[m.ID] = info
	}
	return all
}
