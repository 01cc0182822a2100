// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/protofield"
)

// fromJSON returns what the JSON of m says. It is the JSON that CRI's own Go structs have.
func fromJSON(t *testing.T, m *cri.PodSandboxConfig) (want CRIConfig) {
	t.Helper()
	data, err := json.Marshal(m)
	testx.Must(t, err)
	testx.Must(t, json.Unmarshal(data, &want))
	return want
}

func everyField() *cri.PodSandboxConfig {
	mapping := []*cri.IDMapping{{HostId: 7, ContainerId: 8, Length: 9}, {}}
	resources := &cri.LinuxContainerResources{CpuPeriod: 1, CpuQuota: -1, CpuShares: 3, MemoryLimitInBytes: 1 << 40}
	return &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: "n", Uid: "u", Namespace: "ns", Attempt: 1 << 31},
		Hostname: "h", LogDirectory: "/l", DnsConfig: &cri.DNSConfig{
			Servers: []string{"s", ""}, Searches: []string{"x"}, Options: []string{"o"},
		},
		PortMappings: []*cri.PortMapping{{HostPort: 1}},
		Labels:       map[string]string{"l": "1", "": ""}, Annotations: map[string]string{"a": "2", "b": ""},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: "/p", Sysctls: map[string]string{"k": "v"}, Overhead: resources, Resources: resources,
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{
					Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER, Ipc: -1, TargetId: "t",
					UsernsOptions: &cri.UserNamespace{Mode: cri.NamespaceMode_NODE, Uids: mapping, Gids: mapping},
				},
				SelinuxOptions: &cri.SELinuxOption{User: "u", Role: "r", Type: "t", Level: "l"},
				RunAsUser:      &cri.Int64Value{Value: 1}, SupplementalGroups: []int64{1}, Privileged: true,
			},
		},
		Windows: &cri.WindowsPodSandboxConfig{},
	}
}

func TestCRIConfig_IsWhatCRISays(t *testing.T) {
	for name, m := range map[string]*cri.PodSandboxConfig{
		"nothing":     {},
		"every field": everyField(),
		"empty messages": {
			Metadata: &cri.PodSandboxMetadata{}, DnsConfig: &cri.DNSConfig{},
			Linux: &cri.LinuxPodSandboxConfig{Overhead: &cri.LinuxContainerResources{}},
		},
	} {
		data, err := proto.Marshal(m)
		testx.Must(t, err)
		var got CRIConfig
		if err := protofield.Unmarshal(data, &got); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(fromJSON(t, m), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// FuzzCRIConfig holds that whatever the library accepts is decoded alike. The library checks more: the insides of
// messages that are skipped here.
func FuzzCRIConfig(f *testing.F) {
	f.Add(captured(f))
	every, err := proto.Marshal(everyField())
	testx.Must(f, err)
	f.Add(every)
	f.Add(append(every, captured(f)...)) // a message that is sent in pieces is merged
	f.Fuzz(func(t *testing.T, data []byte) {
		var want cri.PodSandboxConfig
		if proto.Unmarshal(data, &want) != nil {
			return
		}
		var got CRIConfig
		testx.Must(t, protofield.Unmarshal(data, &got))
		if diff := cmp.Diff(fromJSON(t, &want), got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
