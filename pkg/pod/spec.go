// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"fmt"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// The annotations by which containerd's CRI plugin and its plugins know a pod (internal/cri/annotations).
const (
	containerTypeAnnotation = "io.kubernetes.cri.container-type"
	sandboxIDAnnotation     = "io.kubernetes.cri.sandbox-id"
	nameAnnotation          = "io.kubernetes.cri.sandbox-name"
	namespaceAnnotation     = "io.kubernetes.cri.sandbox-namespace"
	uidAnnotation           = "io.kubernetes.cri.sandbox-uid"
	logDirAnnotation        = "io.kubernetes.cri.sandbox-log-directory"
	cpuPeriodAnnotation     = "io.kubernetes.cri.sandbox-cpu-period"
	cpuQuotaAnnotation      = "io.kubernetes.cri.sandbox-cpu-quota"
	cpuSharesAnnotation     = "io.kubernetes.cri.sandbox-cpu-shares"
	memoryAnnotation        = "io.kubernetes.cri.sandbox-memory"
)

// Spec describes the started pod as the OCI configuration that its pause container would have: CRI stores it, and hands
// it to NRI plugins. A namespace that is not there is the host's. The network is where its owner has it, which is there
// until he removes it; what the pid leads to ends with the pod, of which plugins are told after its end.
func (p *Pod) Spec() *specs.Spec {
	c := p.config
	spec := &specs.Spec{
		Version:     specs.Version,
		Hostname:    c.Hostname,
		Annotations: p.annotations(),
		Linux:       &specs.Linux{Sysctl: c.Sysctls, CgroupsPath: p.cgroupsPath(), MountLabel: p.mountLabel},
	}
	add := func(kind specs.LinuxNamespaceType, path string) {
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: kind, Path: path})
	}
	own := func(name string) string { return fmt.Sprintf("/proc/%d/ns/%s", p.Pid(), name) }
	if c.Network == ModePod {
		add(specs.NetworkNamespace, cmp.Or(p.netns, own("net")))
		add(specs.UTSNamespace, own("uts"))
	}
	if c.IPC == ModePod {
		add(specs.IPCNamespace, own("ipc"))
	}
	if c.PID == ModePod {
		add(specs.PIDNamespace, own("pid"))
	}
	if c.User != nil {
		add(specs.UserNamespace, own("user"))
		spec.Linux.UIDMappings, spec.Linux.GIDMappings = c.User.UIDs, c.User.GIDs
	}
	for _, name := range etcFiles {
		spec.Mounts = append(spec.Mounts, p.etcMount(name, true))
	}
	spec.Mounts = append(spec.Mounts, p.shmMount())
	return spec
}

func (p *Pod) annotations() map[string]string {
	c := p.config
	all := map[string]string{
		containerTypeAnnotation: "sandbox",
		sandboxIDAnnotation:     p.id,
		nameAnnotation:          c.Name,
		namespaceAnnotation:     c.Namespace,
		uidAnnotation:           c.UID,
		logDirAnnotation:        c.LogDirectory,
	}
	if r := c.Resources; r != nil {
		all[cpuPeriodAnnotation] = strconv.FormatInt(r.CPUPeriod, 10)
		all[cpuQuotaAnnotation] = strconv.FormatInt(r.CPUQuota, 10)
		all[cpuSharesAnnotation] = strconv.FormatInt(r.CPUShares, 10)
		all[memoryAnnotation] = strconv.FormatInt(r.MemoryLimit, 10)
	}
	return all
}

// cgroupsPath is what CRI would give a pause container (podsandbox, getCgroupsPath).
func (p *Pod) cgroupsPath() string {
	switch parent := p.config.CgroupParent; {
	case parent == "":
		return ""
	case strings.HasSuffix(parent, sliceSuffix):
		return path.Base(parent) + ":cri-containerd:" + p.id
	default:
		return filepath.Join(parent, p.id)
	}
}
