// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package podconfig is the part of CRI's PodSandboxConfig that a shim acts on, for package wire. Names,
// numbers and types are those of k8s.io/cri-api (pkg/apis/runtime/v1), which would link gRPC and all of CRI into the shim; a field that
// is not here is skipped.
package podconfig

// PodSandboxConfig says what a pod is. A member that is no pointer is always there, be it empty.
type PodSandboxConfig struct {
	Metadata     PodSandboxMetadata    `protobuf:"bytes,1,opt,name=metadata,proto3" json:"metadata"`
	Hostname     string                `protobuf:"bytes,2,opt,name=hostname,proto3" json:"hostname,omitempty"`
	LogDirectory string                `protobuf:"bytes,3,opt,name=log_directory,proto3" json:"log_directory,omitempty"`
	DNS          *DNSConfig            `protobuf:"bytes,4,opt,name=dns_config,proto3" json:"dns_config,omitempty"`
	Labels       map[string]string     `protobuf:"bytes,6,rep,name=labels,proto3" json:"labels,omitempty"`
	Annotations  map[string]string     `protobuf:"bytes,7,rep,name=annotations,proto3" json:"annotations,omitempty"`
	Linux        LinuxPodSandboxConfig `protobuf:"bytes,8,opt,name=linux,proto3" json:"linux"`
}

// PodSandboxMetadata is the pod in Kubernetes' words.
type PodSandboxMetadata struct {
	Name      string `protobuf:"bytes,1,opt,name=name,proto3" json:"name,omitempty"`
	UID       string `protobuf:"bytes,2,opt,name=uid,proto3" json:"uid,omitempty"`
	Namespace string `protobuf:"bytes,3,opt,name=namespace,proto3" json:"namespace,omitempty"`
	Attempt   uint32 `protobuf:"varint,4,opt,name=attempt,proto3" json:"attempt,omitempty"`
}

// DNSConfig is what becomes /etc/resolv.conf.
type DNSConfig struct {
	Servers  []string `protobuf:"bytes,1,rep,name=servers,proto3" json:"servers,omitempty"`
	Searches []string `protobuf:"bytes,2,rep,name=searches,proto3" json:"searches,omitempty"`
	Options  []string `protobuf:"bytes,3,rep,name=options,proto3" json:"options,omitempty"`
}

// LinuxPodSandboxConfig is what Linux alone has.
type LinuxPodSandboxConfig struct {
	CgroupParent    string                      `protobuf:"bytes,1,opt,name=cgroup_parent,proto3" json:"cgroup_parent,omitempty"`
	SecurityContext LinuxSandboxSecurityContext `protobuf:"bytes,2,opt,name=security_context,proto3" json:"security_context"`
	Sysctls         map[string]string           `protobuf:"bytes,3,rep,name=sysctls,proto3" json:"sysctls,omitempty"`
	Overhead        *LinuxContainerResources    `protobuf:"bytes,4,opt,name=overhead,proto3" json:"overhead,omitempty"`
	Resources       *LinuxContainerResources    `protobuf:"bytes,5,opt,name=resources,proto3" json:"resources,omitempty"`
}

// LinuxSandboxSecurityContext is the part of a pod's security that is not each container's.
type LinuxSandboxSecurityContext struct {
	NamespaceOptions NamespaceOption `protobuf:"bytes,1,opt,name=namespace_options,proto3" json:"namespace_options"`
	SELinuxOptions   *SELinuxOption  `protobuf:"bytes,2,opt,name=selinux_options,proto3" json:"selinux_options,omitempty"`
	Privileged       bool            `protobuf:"varint,6,opt,name=privileged,proto3" json:"privileged,omitempty"`
}

// SELinuxOption has the parts of an SELinux context that are not the machine's default.
type SELinuxOption struct {
	User  string `protobuf:"bytes,1,opt,name=user,proto3" json:"user,omitempty"`
	Role  string `protobuf:"bytes,2,opt,name=role,proto3" json:"role,omitempty"`
	Type  string `protobuf:"bytes,3,opt,name=type,proto3" json:"type,omitempty"`
	Level string `protobuf:"bytes,4,opt,name=level,proto3" json:"level,omitempty"`
}

// NamespaceMode says whose namespace of a kind the containers of a pod use.
type NamespaceMode int32

// NamespaceOption says whose namespaces the containers use.
type NamespaceOption struct {
	Network NamespaceMode  `protobuf:"varint,1,opt,name=network,proto3" json:"network,omitempty"`
	PID     NamespaceMode  `protobuf:"varint,2,opt,name=pid,proto3" json:"pid,omitempty"`
	IPC     NamespaceMode  `protobuf:"varint,3,opt,name=ipc,proto3" json:"ipc,omitempty"`
	User    *UserNamespace `protobuf:"bytes,5,opt,name=userns_options,proto3" json:"userns_options,omitempty"`
}

// UserNamespace has the mappings of users, where the mode is that of the pod.
type UserNamespace struct {
	Mode NamespaceMode `protobuf:"varint,1,opt,name=mode,proto3" json:"mode,omitempty"`
	UIDs []*IDMapping  `protobuf:"bytes,2,rep,name=uids,proto3" json:"uids,omitempty"`
	GIDs []*IDMapping  `protobuf:"bytes,3,rep,name=gids,proto3" json:"gids,omitempty"`
}

// IDMapping maps ids of the host's to those of a user namespace.
type IDMapping struct {
	HostID      uint32 `protobuf:"varint,1,opt,name=host_id,proto3" json:"host_id,omitempty"`
	ContainerID uint32 `protobuf:"varint,2,opt,name=container_id,proto3" json:"container_id,omitempty"`
	Length      uint32 `protobuf:"varint,3,opt,name=length,proto3" json:"length,omitempty"`
}

// LinuxContainerResources are sums over the containers. CPU times are in µs, memory in bytes.
type LinuxContainerResources struct {
	CPUPeriod   int64 `protobuf:"varint,1,opt,name=cpu_period,proto3" json:"cpu_period,omitempty"`
	CPUQuota    int64 `protobuf:"varint,2,opt,name=cpu_quota,proto3" json:"cpu_quota,omitempty"`
	CPUShares   int64 `protobuf:"varint,3,opt,name=cpu_shares,proto3" json:"cpu_shares,omitempty"`
	MemoryLimit int64 `protobuf:"varint,4,opt,name=memory_limit_in_bytes,proto3" json:"memory_limit_in_bytes,omitempty"`
}
