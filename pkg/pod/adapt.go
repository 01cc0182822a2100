// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Adapt adds to a container's configuration what the pod has for it: its files in /etc and its /dev/shm, unless the
// container brings its own. The file system that every OCI configuration begins with at /dev/shm is not its own.
func (p *Pod) Adapt(spec *specs.Spec) error {
	if spec == nil {
		return fmt.Errorf("config.json: must have a configuration: %w", errdefs.ErrInvalidArgument)
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
		return // it shares no memory with the pod
	}
	i := mountAt(spec, devShm)
	switch {
	case i < 0:
		spec.Mounts = append(spec.Mounts, p.shmMount())
	case spec.Mounts[i].Type == "tmpfs" && spec.Mounts[i].Source == "shm":
		spec.Mounts[i] = p.shmMount() // in its place: others may be below it
	}
}

// mountAt is the index of the last mount at this place, or -1.
func mountAt(spec *specs.Spec, destination string) int {
	for i, m := range slices.Backward(spec.Mounts) {
		if path.Join("/", m.Destination) == destination {
			return i
		}
	}
	return -1
}

// namespacePath is the path of the namespace of this kind. One that is not listed is the shim's own.
func namespacePath(spec *specs.Spec, kind specs.LinuxNamespaceType) (path string, listed bool) {
	if spec.Linux == nil {
		return "", false
	}
	for _, ns := range spec.Linux.Namespaces {
		if ns.Type == kind {
			return ns.Path, true
		}
	}
	return "", false
}

// etcMount mounts a file of the pod in /etc. The flags are those that a user namespace could not take away.
func (p *Pod) etcMount(name string, readonly bool) specs.Mount {
	access := "rw"
	if readonly {
		access = "ro"
	}
	return specs.Mount{
		Destination: path.Join("/etc", name), Type: "bind", Source: filepath.Join(p.bundle, etcDir, name),
		Options: []string{"rbind", "rprivate", access, "nosuid", "nodev", "noexec"},
	}
}

func (p *Pod) shmMount() specs.Mount {
	source := filepath.Join(p.bundle, shmDir)
	if p.config.IPC == ModeNode {
		source = devShm
	}
	return specs.Mount{
		Destination: devShm, Type: "bind", Source: source,
		Options: []string{"rbind", "rprivate", "rw", "nosuid", "nodev", "noexec"},
	}
}

// adaptSysctls writes those of a container that are for the pod's network namespace, and takes them out of spec.
// libcontainer takes the main thread's network namespace for the host's (configs/validate, isHostNetNS), which is the
// pod's here: it would refuse them there, and let them pass in the host's.
func (p *Pod) adaptSysctls(spec *specs.Spec) error {
	if spec.Linux == nil || !p.onThread || p.config.Network != ModePod {
		return nil
	}
	path, _ := namespacePath(spec, specs.NetworkNamespace)
	if path == "" {
		return nil // its own, or libcontainer refuses
	}
	ours := map[string]string{}
	for key, value := range spec.Linux.Sysctl {
		if strings.HasPrefix(sysctlName(key), "net.") {
			ours[key] = value
		}
	}
	if len(ours) == 0 {
		return nil
	}
	kind, err := p.networkOf(path)
	switch {
	case err != nil:
		return err
	case kind == hostNetwork:
		return fmt.Errorf("config.json: linux.sysctl %q: must not be set in the network namespace of the host: %w",
			slices.Sorted(maps.Keys(ours)), errdefs.ErrInvalidArgument)
	case kind == otherNetwork:
		return nil
	}
	if err := checkSysctls(Config{Sysctls: ours}); err != nil {
		return fmt.Errorf("config.json: linux.sysctl: %w", err)
	}
	if err := inNamespaces(p.Pid(), []string{"net"}, func() error { return writeSysctls(ours, 0) }); err != nil {
		return fmt.Errorf("config.json: linux.sysctl: %w", err)
	}
	rest := maps.Clone(spec.Linux.Sysctl)
	maps.DeleteFunc(rest, func(key, _ string) bool { _, written := ours[key]; return written })
	spec.Linux.Sysctl = rest
	return nil
}

type network int

const (
	otherNetwork network = iota
	podNetwork
	hostNetwork
)

// networkOf says whose the network namespace at path is.
func (p *Pod) networkOf(path string) (network, error) {
	file, err := os.Stat(path)
	if err != nil {
		return 0, fmt.Errorf("config.json: network namespace: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	host, err := os.Stat(ownNamespace("net"))
	if err != nil {
		return 0, err
	}
	pod, err := os.Stat(fmt.Sprintf("/proc/%d/ns/net", p.Pid()))
	if err != nil {
		return 0, errors.Join(err, errdefs.ErrInternal)
	}
	switch {
	case os.SameFile(file, host):
		return hostNetwork, nil
	case os.SameFile(file, pod):
		return podNetwork, nil
	}
	return otherNetwork, nil
}
