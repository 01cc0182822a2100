// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/userns"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/protofield"
)

// Mode says whose namespace of a kind the containers of a pod use: CRI's NamespaceMode, with its numbers.
type Mode int32

// The modes of a pod.
const (
	ModePod       Mode = 0 // the pod's
	ModeContainer Mode = 1 // each container its own
	ModeNode      Mode = 2 // the host's
)

// Config says what a pod is.
type Config struct {
	CRI *CRIConfig // CRI config from which the rest was parsed; nil for none

	Hostname     string // "" for the host's
	Annotations  map[string]string
	CgroupParent string // a path, or the name of a slice of systemd; "" for none
	Sysctls      map[string]string

	Network Mode            // ModePod or ModeNode
	PID     Mode            // ModePod, ModeContainer or ModeNode
	IPC     Mode            // ModePod or ModeNode
	User    *idmap.Mappings // nil for the host's user namespace
	NetNS   string          // path of the network namespace, which CRI gives apart from its message; "" for a new one

	SELinux *SELinuxOptions // nil for the machine's defaults
}

// cri returns what CRI says, which may be empty.
func (c Config) cri() *CRIConfig { return cmp.Or(c.CRI, &CRIConfig{}) }

// DecodeConfig reads a PodSandboxConfig in its wire form. Fields that are not known are skipped.
func DecodeConfig(value []byte) (Config, error) {
	var m CRIConfig
	if err := protofield.Unmarshal(value, &m); err != nil {
		return Config{}, invalidf("PodSandboxConfig of %d bytes: %w", len(value), err)
	}
	ns := m.Linux.SecurityContext.NamespaceOptions
	c := Config{
		CRI: &m, Hostname: m.Hostname, Annotations: m.Annotations, CgroupParent: m.Linux.CgroupParent,
		Sysctls: m.Linux.Sysctls, Network: ns.Network, PID: ns.PID, IPC: ns.IPC,
		SELinux: m.Linux.SecurityContext.SELinuxOptions,
	}
	if user := ns.User; user != nil {
		switch mode := user.Mode; {
		case mode == ModePod:
			c.User = &idmap.Mappings{UIDs: decodeMappings(user.UIDs), GIDs: decodeMappings(user.GIDs)}
		case mode != ModeNode:
			return Config{}, invalidf("userns_options.mode %d: must be 0 (POD) or 2 (NODE)", mode)
		}
	}
	c.addDefaultSysctls()
	return c, nil
}

// addDefaultSysctls lets all users bind to every port and send pings, as containerd's CRI plugin does for its pause
// containers by default (enable_unprivileged_ports, enable_unprivileged_icmp). Sysctls of the pod take precedence.
func (c *Config) addDefaultSysctls() {
	if c.Network != ModePod {
		return
	}
	defaults := map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"}
	if c.User == nil && !userns.RunningInUserNS() { // the groups are not all mapped there
		defaults["net.ipv4.ping_group_range"] = "0 2147483647"
	}
	maps.Copy(defaults, c.Sysctls)
	c.Sysctls = defaults
}

func decodeMappings(list []idMapping) []specs.LinuxIDMapping {
	var all []specs.LinuxIDMapping
	for _, m := range list {
		all = append(all, specs.LinuxIDMapping{ContainerID: m.ContainerID, HostID: m.HostID, Size: m.Length})
	}
	return all
}

// CRIConfig is the part of CRI's PodSandboxConfig that a shim acts on, with the JSON of CRI. CRI's own package links
// gRPC (docs/decisions/0013-messages-of-containerd.md); tests compare with it. protofield.Unmarshal reads it: fields
// are in the order of their numbers. A message that is not a pointer is empty if it was not sent.
type CRIConfig struct {
	Metadata struct {
		Name      string `json:"name,omitempty"`
		UID       string `json:"uid,omitempty"`
		Namespace string `json:"namespace,omitempty"`
		Attempt   uint32 `json:"attempt,omitempty"`
	} `json:"metadata"`
	Hostname     string            `json:"hostname,omitempty"`
	LogDirectory string            `json:"log_directory,omitempty"`
	DNS          *DNSConfig        `json:"dns_config,omitempty"`
	_            struct{}          // port_mappings
	Labels       map[string]string `json:"labels,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`
	Linux        struct {
		CgroupParent    string `json:"cgroup_parent,omitempty"`
		SecurityContext struct {
			NamespaceOptions namespaceOption `json:"namespace_options"`
			SELinuxOptions   *SELinuxOptions `json:"selinux_options,omitempty"`
			_, _, _          struct{}        // run_as_user, readonly_rootfs, supplemental_groups
			Privileged       bool            `json:"privileged,omitempty"`
		} `json:"security_context"`
		Sysctls   map[string]string `json:"sysctls,omitempty"`
		Overhead  *Resources        `json:"overhead,omitempty"`
		Resources *Resources        `json:"resources,omitempty"`
	} `json:"linux"`
}

// DNSConfig is for /etc/resolv.conf. Without one it is the host's.
type DNSConfig struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

// SELinuxOptions has the parts of an SELinux context that differ from the machine's default.
type SELinuxOptions struct {
	User  string `json:"user,omitempty"`
	Role  string `json:"role,omitempty"`
	Type  string `json:"type,omitempty"`
	Level string `json:"level,omitempty"`
}

type namespaceOption struct {
	Network Mode     `json:"network,omitempty"`
	PID     Mode     `json:"pid,omitempty"`
	IPC     Mode     `json:"ipc,omitempty"`
	_       struct{} // target_id
	User    *struct {
		Mode Mode        `json:"mode,omitempty"`
		UIDs []idMapping `json:"uids,omitempty"`
		GIDs []idMapping `json:"gids,omitempty"`
	} `json:"userns_options,omitempty"`
}

type idMapping struct {
	HostID      uint32 `json:"host_id,omitempty"`
	ContainerID uint32 `json:"container_id,omitempty"`
	Length      uint32 `json:"length,omitempty"`
}

// Resources are sums over the containers, which limit nothing here. CPU times are in µs, memory in bytes.
type Resources struct {
	CPUPeriod   int64 `json:"cpu_period,omitempty"`
	CPUQuota    int64 `json:"cpu_quota,omitempty"`
	CPUShares   int64 `json:"cpu_shares,omitempty"`
	MemoryLimit int64 `json:"memory_limit_in_bytes,omitempty"`
}

// invalidf is fmt.Errorf with the class errdefs.ErrInvalidArgument.
func invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: %w", fmt.Errorf(format, args...), errdefs.ErrInvalidArgument)
}

// check refuses what no pod can have. The caller has checked ID and Bundle.
func (r Request) check() error {
	c := r.Config
	pods := []Mode{ModePod, ModeNode}
	if !slices.Contains(pods, c.Network) || !slices.Contains(pods, c.IPC) ||
		c.PID != ModeContainer && !slices.Contains(pods, c.PID) {
		const want = "must be 0 (POD) or 2 (NODE), for pid also 1 (CONTAINER)"
		return invalidf("namespace_options: network %d, pid %d, ipc %d: %s", c.Network, c.PID, c.IPC, want)
	}
	if c.Network == ModeNode && (c.Hostname != "" || c.NetNS != "") {
		return invalidf("hostname %q, network namespace %q: must be empty with the network mode NODE", c.Hostname, c.NetNS)
	}
	return cmp.Or(checkMappings(c.User), c.checkSELinux(), checkSysctls(c))
}
