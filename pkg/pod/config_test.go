// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/internal/testx"
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
		"what the pod says": {&cri.LinuxPodSandboxConfig{Sysctls: map[string]string{"net/ipv4/ping_group_range": "1 0"}}, map[string]string{
			"net.ipv4.ip_unprivileged_port_start": "0", "net/ipv4/ping_group_range": "1 0",
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

func TestDecodeConfig_SkipsUnknownFields(t *testing.T) {
	data := captured(t)
	want, err := DecodeConfig(data)
	testx.Must(t, err)
	data = protowire.AppendTag(data, 99, protowire.BytesType)
	data = protowire.AppendString(data, "of a CRI to come")
	data = protowire.AppendTag(data, 100, protowire.VarintType)
	data = protowire.AppendVarint(data, 1)
	got, err := DecodeConfig(data)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("DecodeConfig with fields to come: %v (-want +got):\n%s", err, diff)
	}
}

func TestDecodeConfig_RefusesGarbage(t *testing.T) {
	data := captured(t)
	mode, err := proto.Marshal(&cri.PodSandboxConfig{Linux: withNamespaces(&cri.NamespaceOption{
		UsernsOptions: &cri.UserNamespace{Mode: cri.NamespaceMode_TARGET},
	})})
	testx.Must(t, err)
	for name, value := range map[string][]byte{
		"half a message":                  data[:len(data)/2],
		"text":                            []byte("hostname: web-0"),
		"JSON":                            []byte(`{"hostname":"web-0"}`),
		"a name that is no UTF-8":         {0x12, 1, 0xff},
		"a tag and no value":              {0x12},
		"a length beyond the end":         {0x12, 0xff, 0xff, 0x03, 'a'},
		"an end of a group":               {0x14},
		"users of another container's":    mode,
		"a number where a message stands": {0x0d, 1, 2, 3},
	} {
		if c, err := DecodeConfig(value); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: DecodeConfig(%q) = %+v, %v, want %v", name, value, c, err, errdefs.ErrInvalidArgument)
		}
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
			if path := sysctlPath(sysctlName(key)); !strings.HasPrefix(path, "/proc/sys/") || slices.Contains(strings.Split(path, "/"), "..") {
				t.Errorf("sysctl %q is at %q", key, path)
			}
		}
		if path, err := parentPath(c.CgroupParent); err == nil && slices.Contains(strings.Split(path, "/"), "..") {
			t.Errorf("cgroup parent %q is %q", c.CgroupParent, path)
		}
		_ = (&Pod{Request: Request{Config: c}}).Spec()
	})
}

func TestConfigFromSpec(t *testing.T) {
	for name, test := range map[string]struct {
		spec specs.Spec
		want Config
	}{
		"nothing": {specs.Spec{}, Config{Network: ModeNode, PID: ModeNode, IPC: ModeNode}},
		"what ctr makes": {
			specs.Spec{
				Hostname: "a", Annotations: map[string]string{"k": "v"},
				Linux: &specs.Linux{
					CgroupsPath: "/default/p1", Sysctl: map[string]string{"net.core.somaxconn": "1"}, MountLabel: "u:r:t:s0",
					Namespaces: []specs.LinuxNamespace{{Type: "pid"}, {Type: "ipc"}, {Type: "uts"}, {Type: "mount"}, {Type: "network"}, {Type: "cgroup"}},
				},
			},
			Config{
				Hostname: "a", Annotations: map[string]string{"k": "v"}, CgroupParent: "/default",
				Sysctls: map[string]string{"net.core.somaxconn": "1"}, MountLabel: "u:r:t:s0",
			},
		},
		"a network that is there, and users": {
			specs.Spec{Linux: &specs.Linux{
				CgroupsPath: "a-b.slice:ctr:p1", UIDMappings: mapping, GIDMappings: mapping,
				Namespaces: []specs.LinuxNamespace{{Type: "network", Path: "/run/netns/a"}, {Type: "user"}},
			}},
			Config{
				CgroupParent: "a-b.slice", NetNS: "/run/netns/a", PID: ModeNode, IPC: ModeNode,
				User: &idmap.Mappings{UIDs: mapping, GIDs: mapping},
			},
		},
	} {
		got, err := ConfigFromSpec(&test.spec)
		if diff := cmp.Diff(test.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestConfigFromSpec_RefusesNamespacesThatAreThere(t *testing.T) {
	_, err := ConfigFromSpec(&specs.Spec{Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: "ipc", Path: "/proc/1/ns/ipc"}}}})
	testx.WantInvalid(t, err, `linux.namespaces[0].path "/proc/1/ns/ipc": must be empty for a ipc namespace`)
}
