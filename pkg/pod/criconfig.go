// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

// CRIConfig is the part of CRI's PodSandboxConfig that a shim acts on, with the JSON of CRI. CRI's own package,
// k8s.io/cri-api/pkg/apis/runtime/v1, links gRPC (docs/decisions/0013-messages-of-containerd.md); tests compare with
// it. protofield.Unmarshal reads it: fields are in the order of their numbers. A message that is no pointer is empty
// where it was not sent.
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

// DNSConfig is for /etc/resolv.conf.
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

// Resources are sums over the containers. CPU times are in µs, memory in bytes.
type Resources struct {
	CPUPeriod   int64 `json:"cpu_period,omitempty"`
	CPUQuota    int64 `json:"cpu_quota,omitempty"`
	CPUShares   int64 `json:"cpu_shares,omitempty"`
	MemoryLimit int64 `json:"memory_limit_in_bytes,omitempty"`
}
