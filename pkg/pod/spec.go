// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Spec describes the started pod as the OCI configuration that its pause container would have: CRI stores it, and
// passes it to NRI plugins. A namespace that it does not list is the host's. The network namespace is named by the path
// that the pod was given, if it was: plugins read it even after the end of the pod, when /proc/PID is gone.
func (p *Pod) Spec() *specs.Spec {
	c := p.Config
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

// annotations returns those by which containerd's CRI plugin and its plugins know a pod (internal/cri/annotations).
func (p *Pod) annotations() map[string]string {
	const prefix = "io.kubernetes.cri."
	m := p.Config.cri()
	all := map[string]string{
		prefix + "container-type":        "sandbox",
		prefix + "sandbox-id":            p.ID,
		prefix + "sandbox-name":          m.Metadata.Name,
		prefix + "sandbox-namespace":     m.Metadata.Namespace,
		prefix + "sandbox-uid":           m.Metadata.UID,
		prefix + "sandbox-log-directory": m.LogDirectory,
	}
	if r := m.Linux.Resources; r != nil {
		all[prefix+"sandbox-cpu-period"] = strconv.FormatInt(r.CPUPeriod, 10)
		all[prefix+"sandbox-cpu-quota"] = strconv.FormatInt(r.CPUQuota, 10)
		all[prefix+"sandbox-cpu-shares"] = strconv.FormatInt(r.CPUShares, 10)
		all[prefix+"sandbox-memory"] = strconv.FormatInt(r.MemoryLimit, 10)
	}
	return all
}

// cgroupsPath returns what CRI would give a pause container (podsandbox, getCgroupsPath).
func (p *Pod) cgroupsPath() string {
	switch parent := p.Config.CgroupParent; {
	case parent == "":
		return ""
	case strings.HasSuffix(parent, sliceSuffix):
		return path.Base(parent) + ":cri-containerd:" + p.ID
	default:
		return filepath.Join(parent, p.ID)
	}
}

// Adapt adds to a container's configuration what the pod contributes: the files of /etc and /dev/shm, unless the
// container brings its own. The tmpfs that containerd puts at /dev/shm by default does not count as its own.
func (p *Pod) Adapt(spec *specs.Spec) error {
	if spec == nil {
		return invalidf("config.json: must have a configuration")
	}
	readonly := spec.Root != nil && spec.Root.Readonly
	for _, name := range etcFiles {
		if mountAt(spec, path.Join("/etc", name)) < 0 {
			spec.Mounts = append(spec.Mounts, p.etcMount(name, readonly))
		}
	}
	p.adaptShm(spec)
	return p.adaptSysctls(spec)
}

func (p *Pod) adaptShm(spec *specs.Spec) {
	if path, listed := namespacePath(spec, specs.IPCNamespace); listed && path == "" {
		return // the container has an IPC namespace of its own, so it shares no memory with the pod
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

// namespacePath returns the path of the namespace of this kind, which is "" for one to be made.
func namespacePath(spec *specs.Spec, kind specs.LinuxNamespaceType) (path string, listed bool) {
	for _, ns := range cmp.Or(spec.Linux, &specs.Linux{}).Namespaces {
		if ns.Type == kind {
			return ns.Path, true
		}
	}
	return "", false
}

// etcMount returns the mount of a file of the pod in /etc.
func (p *Pod) etcMount(name string, readonly bool) specs.Mount {
	access := "rw"
	if readonly {
		access = "ro"
	}
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

// adaptSysctls writes those of a container that belong to the pod's network namespace, and removes them from spec.
// libcontainer assumes that the main thread's network namespace is the host's (configs/validate, isHostNetNS). Here it
// is the pod's, so libcontainer would refuse them in the pod's, and allow them in the host's.
func (p *Pod) adaptSysctls(spec *specs.Spec) error {
	if !p.onMainThread || p.Config.Network != ModePod {
		return nil
	}
	path, _ := namespacePath(spec, specs.NetworkNamespace)
	if path == "" {
		return nil // the container's own, or libcontainer refuses
	}
	network, rest := map[string]string{}, map[string]string{}
	for key, value := range spec.Linux.Sysctl {
		if strings.HasPrefix(sysctlName(key), "net.") {
			network[key] = value
		} else {
			rest[key] = value
		}
	}
	if len(network) == 0 {
		return nil
	}
	if ours, err := p.isNetNS(path); err != nil {
		return fmt.Errorf("config.json: linux.sysctl %q: %w", slices.Sorted(maps.Keys(network)), err)
	} else if !ours {
		return nil
	}
	err := checkSysctls(Config{Sysctls: network})
	if err == nil {
		err = inNamespaces(p.Pid(), unix.CLONE_NEWNET, func() error { return writeSysctls(network, 0) })
	}
	if err != nil {
		return fmt.Errorf("config.json: linux.sysctl: %w", err)
	}
	spec.Linux.Sysctl = rest
	return nil
}

// isNetNS reports whether the network namespace at path is the pod's. It is an error if it is the host's.
func (p *Pod) isNetNS(path string) (bool, error) {
	file, err := os.Stat(path)
	if err != nil {
		return false, invalidf("network namespace: %w", err)
	}
	host, err := isAt(file, hostNamespace("net"))
	if host {
		err = invalidf("must not be set in the network namespace of the host")
	}
	if err != nil {
		return false, err
	}
	return isAt(file, fmt.Sprintf("/proc/%d/ns/net", p.Pid()))
}
