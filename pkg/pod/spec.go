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

// Spec describes the started pod as the OCI configuration that its pause container would have: CRI stores it, and hands
// it to NRI plugins. A namespace that it does not list is the host's. The network namespace is named by the path that
// the pod was given, if it was: plugins read it also after the end of the pod, when /proc/PID is gone.
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
		add(specs.NetworkNamespace, cmp.Or(c.NetNS, own("net")))
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

// annotations are those by which containerd's CRI plugin and its plugins know a pod (internal/cri/annotations).
func (p *Pod) annotations() map[string]string {
	const prefix = "io.kubernetes.cri."
	c := p.config
	all := map[string]string{
		prefix + "container-type":        "sandbox",
		prefix + "sandbox-id":            p.id,
		prefix + "sandbox-name":          c.Name,
		prefix + "sandbox-namespace":     c.Namespace,
		prefix + "sandbox-uid":           c.UID,
		prefix + "sandbox-log-directory": c.LogDirectory,
	}
	if r := c.Resources; r != nil {
		all[prefix+"sandbox-cpu-period"] = strconv.FormatInt(r.CPUPeriod, 10)
		all[prefix+"sandbox-cpu-quota"] = strconv.FormatInt(r.CPUQuota, 10)
		all[prefix+"sandbox-cpu-shares"] = strconv.FormatInt(r.CPUShares, 10)
		all[prefix+"sandbox-memory"] = strconv.FormatInt(r.MemoryLimit, 10)
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
