// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
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
	return decodeSpec(data)
}

func decodeSpec(data []byte) (*specs.Spec, error) {
	spec := new(specs.Spec)
	if err := json.Unmarshal(data, spec); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", specFile, err, errdefs.ErrInvalidArgument)
	}
	return spec, nil
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
	withoutAnnotations := *spec
	withoutAnnotations.Annotations = nil // they remain texts
	return cmp.Or(
		checkStrings("", withoutAnnotations),
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
	return checkStrings(field, *p)
}

// checkStrings refuses a string with a NUL in a structure of the specification, which stands in field. For the kernel
// the string ends there: another path than the named one would be masked, for example.
func checkStrings(field string, structure any) error {
	path, text := findNUL(reflect.ValueOf(structure))
	if text == "" {
		return nil
	}
	path = strings.TrimPrefix(field+path, ".")
	return fmt.Errorf("%s %q: must not contain NUL: %w", path, text, errdefs.ErrInvalidArgument)
}

// findNUL returns the first string in v that contains a NUL, and where in v it is; "" if there is none.
func findNUL(v reflect.Value) (path, text string) {
	switch v.Kind() { //nolint:exhaustive // the other kinds contain no strings
	case reflect.String:
		if strings.ContainsRune(v.String(), 0) {
			return "", v.String()
		}
	case reflect.Pointer:
		return findNUL(v.Elem())
	case reflect.Slice, reflect.Map:
		for key, value := range v.Seq2() {
			if path, text = findNUL(value); text == "" {
				path, text = findNUL(key)
			}
			if text != "" {
				return fmt.Sprintf("[%#v]%s", key, path), text
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if path, text = findNUL(v.Field(i)); text != "" {
				name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
				return "." + name + path, text
			}
		}
	}
	return "", ""
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
