// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package podconfig has the part of CRI's PodSandboxConfig that a shim acts on, with the JSON of CRI. CRI's own
// package, k8s.io/cri-api/pkg/apis/runtime/v1, links gRPC (docs/decisions/0013-messages-of-containerd.md); tests
// compare with it.
package podconfig

import "sandbox.internal/shim/pkg/protofield"

// PodSandboxConfig says what a pod is. A message that is no pointer is empty where it was not sent.
type PodSandboxConfig struct {
	Metadata     PodSandboxMetadata    `json:"metadata"`
	Hostname     string                `json:"hostname,omitempty"`
	LogDirectory string                `json:"log_directory,omitempty"`
	DNS          *DNSConfig            `json:"dns_config,omitempty"`
	Labels       map[string]string     `json:"labels,omitempty"`
	Annotations  map[string]string     `json:"annotations,omitempty"`
	Linux        LinuxPodSandboxConfig `json:"linux"`
}

// Unmarshal decodes m from its protobuf encoding. It skips fields that m does not have.
func (m *PodSandboxConfig) Unmarshal(b []byte) error {
	return protofield.Decode(b,
		m.Metadata.unmarshal, &m.Hostname, &m.LogDirectory, pointer(&m.DNS), nil, &m.Labels, &m.Annotations,
		m.Linux.unmarshal)
}

// PodSandboxMetadata names the pod as Kubernetes does.
type PodSandboxMetadata struct {
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Attempt   uint32 `json:"attempt,omitempty"`
}

func (m *PodSandboxMetadata) unmarshal(b []byte) error {
	return protofield.Decode(b, &m.Name, &m.UID, &m.Namespace, &m.Attempt)
}

// DNSConfig is for /etc/resolv.conf.
type DNSConfig struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

func (m *DNSConfig) unmarshal(b []byte) error {
	return protofield.Decode(b, &m.Servers, &m.Searches, &m.Options)
}

// LinuxPodSandboxConfig has what is particular to Linux.
type LinuxPodSandboxConfig struct {
	CgroupParent    string                      `json:"cgroup_parent,omitempty"`
	SecurityContext LinuxSandboxSecurityContext `json:"security_context"`
	Sysctls         map[string]string           `json:"sysctls,omitempty"`
	Overhead        *LinuxContainerResources    `json:"overhead,omitempty"`
	Resources       *LinuxContainerResources    `json:"resources,omitempty"`
}

func (m *LinuxPodSandboxConfig) unmarshal(b []byte) error {
	return protofield.Decode(b,
		&m.CgroupParent, m.SecurityContext.unmarshal, &m.Sysctls, pointer(&m.Overhead), pointer(&m.Resources))
}

// LinuxSandboxSecurityContext has the security settings that all containers of the pod share.
type LinuxSandboxSecurityContext struct {
	NamespaceOptions NamespaceOption `json:"namespace_options"`
	SELinuxOptions   *SELinuxOption  `json:"selinux_options,omitempty"`
	Privileged       bool            `json:"privileged,omitempty"`
}

func (m *LinuxSandboxSecurityContext) unmarshal(b []byte) error {
	return protofield.Decode(b, m.NamespaceOptions.unmarshal, pointer(&m.SELinuxOptions), nil, nil, nil, &m.Privileged)
}

// SELinuxOption has the parts of an SELinux context that differ from the machine's default.
type SELinuxOption struct {
	User  string `json:"user,omitempty"`
	Role  string `json:"role,omitempty"`
	Type  string `json:"type,omitempty"`
	Level string `json:"level,omitempty"`
}

func (m *SELinuxOption) unmarshal(b []byte) error {
	return protofield.Decode(b, &m.User, &m.Role, &m.Type, &m.Level)
}

// NamespaceOption has a NamespaceMode of CRI for each kind of namespace.
type NamespaceOption struct {
	Network int32          `json:"network,omitempty"`
	PID     int32          `json:"pid,omitempty"`
	IPC     int32          `json:"ipc,omitempty"`
	User    *UserNamespace `json:"userns_options,omitempty"`
}

func (m *NamespaceOption) unmarshal(b []byte) error {
	return protofield.Decode(b, &m.Network, &m.PID, &m.IPC, nil, pointer(&m.User))
}

// UserNamespace has a NamespaceMode, and for the pod's own namespace its mappings.
type UserNamespace struct {
	Mode int32        `json:"mode,omitempty"`
	UIDs []*IDMapping `json:"uids,omitempty"`
	GIDs []*IDMapping `json:"gids,omitempty"`
}

func (m *UserNamespace) unmarshal(b []byte) error {
	return protofield.Decode(b, &m.Mode, list(&m.UIDs), list(&m.GIDs))
}

// IDMapping maps ids of a user namespace to those of the host.
type IDMapping struct {
	HostID      uint32 `json:"host_id,omitempty"`
	ContainerID uint32 `json:"container_id,omitempty"`
	Length      uint32 `json:"length,omitempty"`
}

func (m *IDMapping) unmarshal(b []byte) error {
	return protofield.Decode(b, &m.HostID, &m.ContainerID, &m.Length)
}

// LinuxContainerResources are sums over the containers. CPU times are in µs, memory in bytes.
type LinuxContainerResources struct {
	CPUPeriod   int64 `json:"cpu_period,omitempty"`
	CPUQuota    int64 `json:"cpu_quota,omitempty"`
	CPUShares   int64 `json:"cpu_shares,omitempty"`
	MemoryLimit int64 `json:"memory_limit_in_bytes,omitempty"`
}

func (m *LinuxContainerResources) unmarshal(b []byte) error {
	return protofield.Decode(b, &m.CPUPeriod, &m.CPUQuota, &m.CPUShares, &m.MemoryLimit)
}

type message[M any] interface {
	*M
	unmarshal(b []byte) error
}

// pointer decodes into *to, which stays nil where the message was not sent.
func pointer[M any, P message[M]](to *P) func([]byte) error {
	return func(b []byte) error {
		if *to == nil {
			*to = new(M)
		}
		return (*to).unmarshal(b)
	}
}

// list appends to *to.
func list[M any, P message[M]](to *[]P) func([]byte) error {
	return func(b []byte) error {
		m := P(new(M))
		*to = append(*to, m)
		return m.unmarshal(b)
	}
}
