// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/cgroups"
	_ "github.com/opencontainers/cgroups/devices" // without it, rules of devices have no effect
	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/cgroups/manager"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/ociruntime/systemd"
	"sandbox.internal/shim/pkg/unixfile"
)

const sliceSuffix = ".slice"

// parentOf returns the cgroup parent in an OCI cgroupsPath: the slice of slice:prefix:name, or the directory of a path.
func parentOf(cgroupsPath string) string {
	if cgroupsPath == "" {
		return ""
	}
	if !strings.Contains(cgroupsPath, "/") && strings.Count(cgroupsPath, ":") == 2 {
		slice, _, _ := strings.Cut(cgroupsPath, ":")
		return slice
	}
	return path.Dir(path.Join("/", cgroupsPath))
}

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

// madeFile lies in the pod's bundle and lists the cgroups that were made for the pod. It is written before they are
// made, for the delete command, should the shim die.
const madeFile = "shim.cgroups.json"

// makeParent makes the pod's cgroup if it does not exist, as the start of a pause container would, and returns the
// directories that it made. systemd makes a slice with the first scope in it.
func makeParent(bundle, parent, cgroupPath string) (made []string, err error) {
	if cgroupPath == "" || strings.HasSuffix(parent, sliceSuffix) {
		return nil, nil
	}
	group, err := cgroup.At(cgroupPath)
	if err != nil || group.Exists() { // in whichever hierarchies its owner has
		return nil, err
	}
	missing, err := cgroup.Missing(cgroupPath)
	if err == nil {
		err = writeMade(bundle, missing)
	}
	if err == nil {
		made, err = cgroup.Make(cgroupPath, missing)
	}
	if err != nil {
		err = errors.Join(fmt.Errorf("cgroup_parent %q: %w", parent, err), writeMade(bundle, nil))
	}
	return made, err
}

func writeMade(bundle string, dirs []string) error {
	path := filepath.Join(bundle, madeFile)
	if len(dirs) == 0 {
		return unixfile.Remove(path)
	}
	return unixfile.WriteJSON(path, dirs)
}

// enterCgroup moves the process that holds the namespaces into a cgroup of its own below the pod's, in which no device
// may be used: where the pause container would be. With containers below the pod's, no process can be in that itself
// (Documentation/admin-guide/cgroup-v2.rst, No Internal Process Constraint).
func (p *Pod) enterCgroup(ctx context.Context, pid int) error {
	if p.cgroupPath == "" {
		return nil
	}
	const every = devices.Wildcard
	deny := []*devices.Rule{{Type: devices.WildcardDevice, Major: every, Minor: every, Permissions: "rwm"}}
	config := &cgroups.Cgroup{Path: p.cgroupsPath(), Resources: &cgroups.Resources{Devices: deny}}
	if parts := strings.Split(config.Path, ":"); strings.HasSuffix(p.Config.CgroupParent, sliceSuffix) {
		config.Path, config.Parent, config.ScopePrefix, config.Name, config.Systemd = "", parts[0], parts[1], parts[2], true
		if err := systemd.Prepare(ctx, p.cgroupsPath(), config); err != nil {
			return err
		}
		defer systemd.Connected()()
	}
	m, err := manager.New(config)
	if err != nil {
		return err
	}
	paths := m.GetPaths()
	list := slices.Concat(p.madeCgroups, slices.Collect(maps.Values(paths)))
	if err := writeMade(p.Bundle, list); err != nil {
		return err
	}
	p.holderCgroup = cgroup.New(paths)
	return errors.Join(m.Apply(pid), m.Set(config.Resources))
}

// removeMade removes cgroups that were made for the pod. It returns those that are in use, which stay on the list.
func removeMade(bundle string, made []string) ([]string, error) {
	if left := cgroup.RemoveEmpty(made); len(left) > 0 {
		return left, nil
	}
	return nil, writeMade(bundle, nil)
}
