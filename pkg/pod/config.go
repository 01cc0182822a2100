// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/userns"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/protofield"
)

// Mode says whose namespace of a kind the containers of a pod use: CRI's NamespaceMode, with its numbers.
type Mode int32

// The modes. Target is for single containers only.
const (
	ModePod       Mode = 0 // the pod's
	ModeContainer Mode = 1 // each container its own
	ModeNode      Mode = 2 // the host's
	ModeTarget    Mode = 3 // another container's
)

// String returns the mode in CRI's words.
func (m Mode) String() string {
	if names := [...]string{"POD", "CONTAINER", "NODE", "TARGET"}; int(m) >= 0 && int(m) < len(names) {
		return names[m]
	}
	return fmt.Sprintf("NamespaceMode(%d)", int(m))
}

// Config says what a pod is.
type Config struct {
	CRI *CRIConfig // from which the rest was read; nil for an OCI configuration

	Name      string
	UID       string
	Namespace string // Kubernetes'

	Hostname     string     // "" for the host's
	DNS          *DNSConfig // nil for the host's /etc/resolv.conf
	LogDirectory string
	Annotations  map[string]string

	CgroupParent string // a path, or the name of a slice of systemd; "" for none
	Sysctls      map[string]string
	Resources    *Resources // sums over the containers, which limit nothing here; nil when not told

	Network Mode           // ModePod or ModeNode
	PID     Mode           // ModePod, ModeContainer or ModeNode
	IPC     Mode           // ModePod or ModeNode
	User    *UserNamespace // nil for the host's
	NetNS   string         // path of the network namespace, which CRI gives beside its message; "" for a new one

	SELinux    *SELinuxOptions // nil for the machine's defaults
	MountLabel string          // in an OCI configuration, in place of SELinux: the whole context
}

// UserNamespace has the mappings of a user namespace, see user_namespaces(7).
type UserNamespace struct {
	UIDs, GIDs []specs.LinuxIDMapping
}

// DecodeConfig reads a PodSandboxConfig in its wire form. Fields that are not known are skipped.
func DecodeConfig(value []byte) (Config, error) {
	var m CRIConfig
	if err := protofield.Unmarshal(value, &m); err != nil {
		return Config{}, fmt.Errorf("PodSandboxConfig of %d bytes: %w: %w", len(value), err, errdefs.ErrInvalidArgument)
	}
	ns := m.Linux.SecurityContext.NamespaceOptions
	c := Config{
		CRI:          &m,
		Name:         m.Metadata.Name,
		UID:          m.Metadata.UID,
		Namespace:    m.Metadata.Namespace,
		Hostname:     m.Hostname,
		DNS:          m.DNS,
		LogDirectory: m.LogDirectory,
		Annotations:  m.Annotations,
		CgroupParent: m.Linux.CgroupParent,
		Sysctls:      m.Linux.Sysctls,
		Resources:    m.Linux.Resources,
		Network:      ns.Network,
		PID:          ns.PID,
		IPC:          ns.IPC,
		SELinux:      m.Linux.SecurityContext.SELinuxOptions,
	}
	if user := ns.User; user != nil {
		switch mode := user.Mode; {
		case mode == ModePod:
			c.User = &UserNamespace{UIDs: decodeMappings(user.UIDs), GIDs: decodeMappings(user.GIDs)}
		case mode != ModeNode:
			return Config{}, fmt.Errorf("userns_options.mode %s: must be %s or %s: %w",
				mode, ModePod, ModeNode, errdefs.ErrInvalidArgument)
		}
	}
	c.addDefaultSysctls()
	return c, nil
}

// addDefaultSysctls lets all users bind to every port and send pings. containerd's CRI plugin does so for its pause
// containers by default (enable_unprivileged_ports and enable_unprivileged_icmp; it does not tell a shim). Sysctls of
// the pod itself take precedence.
func (c *Config) addDefaultSysctls() {
	if c.Network != ModePod {
		return
	}
	defaults := map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"}
	if c.User == nil && !userns.RunningInUserNS() { // the groups are not all mapped there
		defaults["net.ipv4.ping_group_range"] = "0 2147483647"
	}
	for key := range c.Sysctls {
		delete(defaults, sysctlName(key))
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

// ConfigFromSpec is the pod that an OCI configuration asks for, as `ctr sandbox run` passes one: a namespace that is
// not listed is the host's.
func ConfigFromSpec(s *specs.Spec) (Config, error) {
	if s == nil {
		return Config{}, fmt.Errorf("config.json: must have a configuration: %w", errdefs.ErrInvalidArgument)
	}
	c := Config{Hostname: s.Hostname, Annotations: s.Annotations, Network: ModeNode, PID: ModeNode, IPC: ModeNode}
	if s.Linux == nil {
		return c, nil
	}
	c.Sysctls, c.MountLabel = s.Linux.Sysctl, s.Linux.MountLabel
	var seen []specs.LinuxNamespaceType
	for i, ns := range s.Linux.Namespaces {
		if slices.Contains(seen, ns.Type) {
			return Config{}, fmt.Errorf("config.json: linux.namespaces[%d].type %q: must not be there twice: %w",
				i, ns.Type, errdefs.ErrInvalidArgument)
		}
		seen = append(seen, ns.Type)
		if ns.Path != "" && ns.Type != specs.NetworkNamespace {
			const text = "config.json: linux.namespaces[%d].path %q of type %q: a pod can be given a network namespace only: %w"
			return Config{}, fmt.Errorf(text, i, ns.Path, ns.Type, errdefs.ErrInvalidArgument)
		}
		switch ns.Type {
		case specs.NetworkNamespace:
			c.Network, c.NetNS = ModePod, ns.Path
		case specs.PIDNamespace:
			c.PID = ModePod
		case specs.IPCNamespace:
			c.IPC = ModePod
		case specs.UserNamespace:
			c.User = &UserNamespace{UIDs: s.Linux.UIDMappings, GIDs: s.Linux.GIDMappings}
		case specs.UTSNamespace, specs.MountNamespace, specs.CgroupNamespace, specs.TimeNamespace:
			// The host name is the pod's where the network is. The others are each container's own.
		default:
			return Config{}, fmt.Errorf("config.json: linux.namespaces[%d].type %q: not a namespace of Linux: %w",
				i, ns.Type, errdefs.ErrInvalidArgument)
		}
	}
	c.CgroupParent = parentOf(s.Linux.CgroupsPath)
	return c, nil
}
