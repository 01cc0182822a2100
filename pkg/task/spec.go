// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/pkg/identifiers"
	"github.com/containerd/errdefs"
	json "github.com/go-json-experiment/json/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/resources"
)

// Names in a bundle: the OCI runtime specification's (bundle.md), and containerd's, which mounts a snapshot at rootfs.
const (
	specFile  = "config.json"
	rootfsDir = "rootfs"
)

// ReadSpec reads the config.json of a bundle.
func ReadSpec(bundle string) (*specs.Spec, error) {
	data, err := os.ReadFile(filepath.Join(bundle, specFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s: not in bundle %q: %w", specFile, bundle, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return nil, err
	}
	spec := new(specs.Spec)
	return spec, Decode(specFile, data, spec)
}

// Decode decodes a structure of the OCI specification, which stands in field. It refuses NUL, where a string ends for
// the kernel: another path than the named one would be masked, for example.
func Decode(field string, data []byte, structure any) error {
	unescaped := bytes.ReplaceAll(data, []byte(`\\`), nil)
	if bytes.Contains(unescaped, []byte(`\u0000`)) {
		return fmt.Errorf("%s: must not contain NUL: %w", field, errdefs.ErrInvalidArgument)
	}
	if err := json.Unmarshal(data, structure); err != nil {
		return fmt.Errorf("%s: %w: %w", field, err, errdefs.ErrInvalidArgument)
	}
	return nil
}

// checkSpec refuses what libcontainer would refuse late, or without a clear error.
func checkSpec(spec *specs.Spec) error {
	var r *specs.LinuxResources
	if spec.Linux != nil {
		r = spec.Linux.Resources
	}
	return checkSpecOn(spec, resources.ReadHost(r))
}

// checkSpecOn is checkSpec for a machine like h.
func checkSpecOn(spec *specs.Spec, h resources.Host) error {
	switch {
	case spec.Root == nil || spec.Root.Path == "":
		return fmt.Errorf("root.path: must be set: %w", errdefs.ErrInvalidArgument)
	case spec.Process == nil:
		return fmt.Errorf("process: must be set: %w", errdefs.ErrInvalidArgument)
	case spec.Linux == nil:
		return fmt.Errorf("linux: must be set: %w", errdefs.ErrInvalidArgument)
	}
	if adj := spec.Process.OOMScoreAdj; adj != nil && (*adj < -1000 || *adj > 1000) { // proc_pid_oom_score_adj(5)
		return fmt.Errorf("process.oomScoreAdj %d: must be from -1000 to 1000: %w", *adj, errdefs.ErrInvalidArgument)
	}
	return cmp.Or(
		checkMounts(spec.Mounts),
		checkProcess("process", spec.Process),
		resources.Check(spec.Linux.Resources, h),
	)
}

// checkMounts refuses a bind mount without a source, which would mount a directory of the shim.
func checkMounts(mounts []specs.Mount) error {
	for i, m := range mounts {
		has := func(option string) bool { return slices.Contains(m.Options, option) }
		if m.Source == "" && (m.Type == "bind" || has("bind") || has("rbind")) && !has("remount") {
			return fmt.Errorf("mounts[%d].source %q: a bind mount, here at %q, must name a file or a directory: %w",
				i, m.Source, m.Destination, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// checkProcess refuses a process, which stands in field, that no kernel can run.
func checkProcess(field string, p *specs.Process) error {
	switch {
	case len(p.Args) == 0:
		return fmt.Errorf("%s.args: must not be empty: %w", field, errdefs.ErrInvalidArgument)
	case p.Args[0] == "":
		return fmt.Errorf("%s.args[0] %q: must name a program: %w", field, p.Args[0], errdefs.ErrInvalidArgument)
	case !filepath.IsAbs(p.Cwd):
		return fmt.Errorf("%s.cwd %q: must be an absolute path: %w", field, p.Cwd, errdefs.ErrInvalidArgument)
	}
	return nil
}

// systemdCgroup reports whether cgroupsPath has the form slice:prefix:name of the systemd driver.
func systemdCgroup(spec *specs.Spec) bool {
	path := spec.Linux.CgroupsPath
	return !strings.Contains(path, "/") && strings.Count(path, ":") == 2
}

// CheckID refuses ids that are not a single path element, as containerd does.
func CheckID(field, id string) error {
	if err := identifiers.Validate(id); err != nil {
		return fmt.Errorf("%s %q: %w", field, id, err)
	}
	return nil
}
