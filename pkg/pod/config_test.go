// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/protofield"
)

// captured is a configuration with most fields of CRI's message, also those that a shim does not act on, encoded by
// k8s.io/cri-api v0.37.0.
func captured(tb testing.TB) []byte {
	tb.Helper()
	data, err := os.ReadFile("testdata/podsandboxconfig-1.37.bin")
	testx.Must(tb, err)
	return data
}

func TestDecodeConfig_ReadsWhatCRIEncodes(t *testing.T) {
	got, err := DecodeConfig(captured(t))
	testx.Must(t, err)
	want := Config{
		CRI:          got.CRI,
		Hostname:     "web-0",
		Annotations:  map[string]string{ShmSizeAnnotation: "1Gi"},
		CgroupParent: "/kubepods/burstable/pod6f1c",
		Sysctls:      map[string]string{"net.ipv4.ip_unprivileged_port_start": "1024"},
		Network:      ModePod, PID: ModeContainer, IPC: ModeNode,
		User:    &idmap.Mappings{UIDs: mapping, GIDs: mapping},
		SELinux: &SELinuxOptions{Type: "t"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("DecodeConfig (-want +got):\n%s", diff)
	}
	m := got.cri()
	message := []any{
		m.Metadata.Name, m.Metadata.UID, m.Metadata.Namespace, m.Metadata.Attempt, m.LogDirectory, m.Labels["app"],
		m.DNS, m.Linux.Overhead.MemoryLimit, m.Linux.Resources,
	}
	wantMessage := []any{
		"web", "6f1c", "shop", uint32(3), "/var/log/pods/shop_web_6f1c", "web",
		&DNSConfig{
			Servers: []string{"10.96.0.10"}, Searches: []string{"shop.svc.cluster.local", "svc.cluster.local"}, Options: []string{"ndots:5"},
		},
		int64(1 << 20), &Resources{CPUPeriod: 100000, CPUQuota: 50000, CPUShares: 512, MemoryLimit: 64 << 20},
	}
	if diff := cmp.Diff(wantMessage, message); diff != "" {
		t.Errorf("message (-want +got):\n%s", diff)
	}
}

func TestDecodeConfig_AddsTheDefaultsOfCRI(t *testing.T) {
	user := &cri.UserNamespace{Uids: []*cri.IDMapping{{Length: 1}}, Gids: []*cri.IDMapping{{Length: 1}}}
	for name, test := range map[string]struct {
		linux *cri.LinuxPodSandboxConfig
		want  map[string]string
	}{
		"a network of the pod's": {nil, map[string]string{
			"net.ipv4.ip_unprivileged_port_start": "0", "net.ipv4.ping_group_range": "0 2147483647",
		}},
		"what the pod says": {&cri.LinuxPodSandboxConfig{Sysctls: map[string]string{"net.ipv4.ping_group_range": "1 0"}}, map[string]string{
			"net.ipv4.ip_unprivileged_port_start": "0", "net.ipv4.ping_group_range": "1 0",
		}},
		"users of the pod's": {withNamespaces(&cri.NamespaceOption{UsernsOptions: user}), map[string]string{
			"net.ipv4.ip_unprivileged_port_start": "0",
		}},
		"users of the host": {withNamespaces(&cri.NamespaceOption{
			Network: cri.NamespaceMode_NODE, UsernsOptions: &cri.UserNamespace{Mode: cri.NamespaceMode_NODE},
		}), nil},
	} {
		data, err := proto.Marshal(&cri.PodSandboxConfig{Linux: test.linux})
		testx.Must(t, err)
		got, err := DecodeConfig(data)
		if diff := cmp.Diff(test.want, got.Sysctls); diff != "" || err != nil {
			t.Errorf("%s: %v, sysctls (-want +got):\n%s", name, err, diff)
		}
	}
}

func withNamespaces(o *cri.NamespaceOption) *cri.LinuxPodSandboxConfig {
	return &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: o}}
}

// What is no message at all is the subject of the fuzz targets of this package and of pkg/protofield.
func TestDecodeConfig_RefusesGarbage(t *testing.T) {
	mode, err := proto.Marshal(&cri.PodSandboxConfig{Linux: withNamespaces(&cri.NamespaceOption{
		UsernsOptions: &cri.UserNamespace{Mode: cri.NamespaceMode_TARGET},
	})})
	testx.Must(t, err)
	for want, value := range map[string][]byte{
		"PodSandboxConfig of 20 bytes": []byte(`{"hostname":"web-0"}`),
		"userns_options.mode 3":        mode,
	} {
		_, err := DecodeConfig(value)
		testx.WantInvalid(t, err, want)
	}
}

// Whatever is decoded can be checked and described without a panic.
func FuzzDecodeConfig(f *testing.F) {
	f.Add(captured(f))
	f.Add([]byte{})
	f.Add([]byte{0x12, 1, 'a'})
	f.Fuzz(func(t *testing.T, value []byte) {
		c, err := DecodeConfig(value)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("DecodeConfig(%q) = %v, want class %v", value, err, errdefs.ErrInvalidArgument)
			}
			return
		}
		r := Request{ID: "p1", Bundle: "/", Config: c}
		if err := r.check(); err != nil {
			return
		}
		for key := range maps.Keys(c.Sysctls) {
			if path := sysctlPath(key); !strings.HasPrefix(path, "/proc/sys/") || slices.Contains(strings.Split(path, "/"), "..") {
				t.Errorf("sysctl %q is at %q", key, path)
			}
		}
		if path, err := parentPath(c.CgroupParent); err == nil && slices.Contains(strings.Split(path, "/"), "..") {
			t.Errorf("cgroup parent %q is %q", c.CgroupParent, path)
		}
		_ = (&Pod{Request: Request{Config: c}}).Spec()
	})
}

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
