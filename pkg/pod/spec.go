// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/ociruntime/systemd"
)

// Spec describes the started pod as the OCI configuration that its pause container would have: CRI stores it, and
// passes it to NRI plugins. A namespace that it does not list is the host's. The network namespace is named by the path
// that the pod was given, if it was: plugins read it even after the end of the pod, when /proc/PID is gone.
func (p *Pod) Spec() *specs.Spec {
	c := p.Config
	spec := &specs.Spec{
		Version: specs.Version, Hostname: c.Hostname, Annotations: p.annotations(),
		Linux: &specs.Linux{Sysctl: c.Sysctls, CgroupsPath: p.cgroupsPath(), MountLabel: p.mountLabel},
	}
	add := func(kind specs.LinuxNamespaceType, path string) {
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: kind, Path: path})
	}
	if c.Network == ModePod {
		add(specs.NetworkNamespace, cmp.Or(c.NetNS, p.ownNamespace("net")))
		add(specs.UTSNamespace, p.ownNamespace("uts"))
	}
	if c.IPC == ModePod {
		add(specs.IPCNamespace, p.ownNamespace("ipc"))
	}
	if c.PID == ModePod {
		add(specs.PIDNamespace, p.ownNamespace("pid"))
	}
	if c.User != nil {
		add(specs.UserNamespace, p.ownNamespace("user"))
		spec.Linux.UIDMappings, spec.Linux.GIDMappings = c.User.UIDs, c.User.GIDs
	}
	return spec
}

// annotations returns those by which containerd's CRI plugin and its plugins know a pod (internal/cri/annotations).
func (p *Pod) annotations() map[string]string {
	const prefix = "io.kubernetes.cri."
	m := p.Config.cri()
	return map[string]string{
		prefix + "container-type":        "sandbox",
		prefix + "sandbox-id":            p.ID,
		prefix + "sandbox-name":          m.Metadata.Name,
		prefix + "sandbox-namespace":     m.Metadata.Namespace,
		prefix + "sandbox-uid":           m.Metadata.UID,
		prefix + "sandbox-log-directory": m.LogDirectory,
	}
}

const sliceSuffix = ".slice"

// parentPath returns the path of a pod's cgroup parent from the root of a hierarchy, "" for none. A relative path
// begins there, too. The suffix .slice means that the driver is systemd's, as in CRI; only the last element of its path
// counts then.
func parentPath(parent string) (string, error) {
	if parent == "" {
		return "", nil
	}
	if !strings.HasSuffix(parent, sliceSuffix) {
		return path.Join("/", parent), nil
	}
	expanded, err := systemd.ExpandSlice(path.Base(parent))
	if err != nil {
		err = invalidf("cgroup_parent %q: %v", parent, err)
	}
	return expanded, err
}

// cgroupsPath returns what CRI would give a pause container (podsandbox, getCgroupsPath).
func (p *Pod) cgroupsPath() string {
	switch parent := p.Config.CgroupParent; {
	case parent == "":
		return ""
	case strings.HasSuffix(parent, sliceSuffix):
		return path.Base(parent) + ":cri-containerd:" + p.ID
	default:
		return path.Join(p.cgroupPath, p.ID)
	}
}

// Adapt adds to a container's configuration what the pod contributes: the files of /etc and /dev/shm, unless the
// container brings its own. The tmpfs that containerd puts at /dev/shm by default does not count as its own.
func (p *Pod) Adapt(spec *specs.Spec) error {
	if spec == nil {
		return invalidf("config.json: must have a configuration")
	}
	p.adaptPIDNamespace(spec)
	if spec.Linux != nil && strings.Contains(spec.Linux.CgroupsPath, "/") {
		spec.Linux.CgroupsPath = path.Join("/", spec.Linux.CgroupsPath) // as the pod's; else it would be below the shim's
	}
	access := "rw"
	if spec.Root != nil && spec.Root.Readonly {
		access = "ro"
	}
	for _, name := range etcFiles {
		if mountAt(spec, path.Join("/etc", name)) < 0 {
			spec.Mounts = append(spec.Mounts, p.etcMount(name, access))
		}
	}
	p.adaptShm(spec)
	return nil
}

// adaptPIDNamespace gives a container a PID namespace of its own in place of that of the process with the pod's pid,
// which is the host's if each container is to have its own. CRI passes that for a container with any mode but
// CONTAINER.
func (p *Pod) adaptPIDNamespace(spec *specs.Spec) {
	if spec.Linux == nil || p.Config.PID != ModeContainer {
		return
	}
	for i, ns := range spec.Linux.Namespaces {
		if ns.Type == specs.PIDNamespace && ns.Path == p.ownNamespace("pid") {
			spec.Linux.Namespaces[i].Path = ""
		}
	}
}

// ownNamespace returns the path that CRI passes for a namespace of the pod.
func (p *Pod) ownNamespace(name string) string { return fmt.Sprintf("/proc/%d/ns/%s", p.Pid(), name) }

func (p *Pod) adaptShm(spec *specs.Spec) {
	for _, ns := range cmp.Or(spec.Linux, &specs.Linux{}).Namespaces {
		if ns.Type == specs.IPCNamespace && ns.Path == "" {
			return // a namespace of the container's own, which shares no memory with the pod
		}
	}
	i := mountAt(spec, devShm)
	switch {
	case i < 0:
		spec.Mounts = append(spec.Mounts, p.shmMount())
	case spec.Mounts[i].Type == "tmpfs" && spec.Mounts[i].Source == "shm":
		spec.Mounts[i] = p.shmMount() // in its place: others may be below it
	}
}

// mountAt returns the index of the last mount at destination, or -1.
func mountAt(spec *specs.Spec, destination string) int {
	for i, m := range slices.Backward(spec.Mounts) {
		if path.Join("/", m.Destination) == destination {
			return i
		}
	}
	return -1
}

// etcMount returns the mount of a file of the pod in /etc, with the access ro or rw.
func (p *Pod) etcMount(name, access string) specs.Mount {
	return bind(filepath.Join(p.Bundle, etcDir, name), path.Join("/etc", name), access)
}

func (p *Pod) shmMount() specs.Mount {
	if p.Config.IPC == ModeNode {
		return bind(devShm, devShm, "rw")
	}
	return bind(filepath.Join(p.Bundle, shmDir), devShm, "rw")
}

// bind returns a mount with the nosuid, nodev and noexec of the file system: a container in a user namespace cannot
// remove them (mount_namespaces(7)).
func bind(source, destination, access string) specs.Mount {
	return specs.Mount{
		Destination: destination, Type: "bind", Source: source,
		Options: []string{"rbind", "rprivate", access, "nosuid", "nodev", "noexec"},
	}
}
