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
	"github.com/opencontainers/selinux/go-selinux"

	"sandbox.internal/shim/pkg/idmap"
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
		checkNamespaces(spec),
		checkMounts(spec.Mounts),
		idmap.Check("linux.uidMappings", spec.Linux.UIDMappings),
		idmap.Check("linux.gidMappings", spec.Linux.GIDMappings),
		checkProcess("process", spec.Process),
		resources.Check(spec.Linux.Resources, h),
	)
}

// checkMounts refuses a bind mount of nothing. The runc shim would mount the bundle there, which nobody means.
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

// namespaces are those of the OCI runtime specification, config-linux.md.
var namespaces = []specs.LinuxNamespaceType{
	specs.PIDNamespace, specs.NetworkNamespace, specs.MountNamespace, specs.IPCNamespace,
	specs.UTSNamespace, specs.UserNamespace, specs.CgroupNamespace, specs.TimeNamespace,
}

func checkNamespaces(spec *specs.Spec) error {
	ownUTS := false
	for i, ns := range spec.Linux.Namespaces {
		field := fmt.Sprintf("linux.namespaces[%d]", i)
		if !slices.Contains(namespaces, ns.Type) {
			return fmt.Errorf("%s.type %q: want one of %v: %w", field, ns.Type, namespaces, errdefs.ErrInvalidArgument)
		}
		for _, opener := range []string{"/proc/self/fd/", "/proc/thread-self/fd/"} {
			if strings.HasPrefix(filepath.Clean(ns.Path), opener) {
				return fmt.Errorf("%s.path %q: must not be a descriptor of the process that opens it; /proc/PID/fd names one: %w",
					field, ns.Path, errdefs.ErrInvalidArgument)
			}
		}
		ownUTS = ownUTS || ns.Type == specs.UTSNamespace
	}
	for _, name := range []struct{ field, text string }{{"hostname", spec.Hostname}, {"domainname", spec.Domainname}} {
		if name.text != "" && !ownUTS {
			return fmt.Errorf("%s %q: must be empty without a UTS namespace, since it would be the machine's: %w",
				name.field, name.text, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// checkProcess refuses a process that no kernel can run. field is where it stands.
func checkProcess(field string, p *specs.Process) error {
	switch {
	case len(p.Args) == 0:
		return fmt.Errorf("%s.args: must not be empty: %w", field, errdefs.ErrInvalidArgument)
	case p.Args[0] == "":
		return fmt.Errorf("%s.args[0] %q: must name a program: %w", field, p.Args[0], errdefs.ErrInvalidArgument)
	case !filepath.IsAbs(p.Cwd):
		return fmt.Errorf("%s.cwd %q: must be an absolute path: %w", field, p.Cwd, errdefs.ErrInvalidArgument)
	}
	// Init would find this in an argument only after Start had answered.
	if err := checkStrings(field, *p); err != nil {
		return err
	}
	if p.SelinuxLabel != "" && !selinux.GetEnabled() {
		return fmt.Errorf("%s.selinuxLabel %q: must be empty, since this kernel does not use SELinux: %w",
			field, p.SelinuxLabel, errdefs.ErrInvalidArgument)
	}
	return nil
}

// checkStrings refuses strings that contain a NUL in a structure of the specification, which stands in field. For the
// kernel and for C libraries they end there: for example, another path than the named one would be masked.
func checkStrings(field string, structure any) error {
	path, text := findNUL(reflect.ValueOf(structure))
	if text == "" {
		return nil
	}
	if field == "" {
		path = strings.TrimPrefix(path, ".")
	}
	return fmt.Errorf("%s%s %q: must not contain NUL: %w", field, path, text, errdefs.ErrInvalidArgument)
}

// findNUL returns the first string in v that contains a NUL, and where in v it is; "" if there is none.
func findNUL(v reflect.Value) (path, text string) {
	kind := v.Kind()
	if kind == reflect.String && hasNUL(v.String()) {
		return "", v.String()
	}
	if kind == reflect.Pointer && !v.IsNil() {
		return findNUL(v.Elem())
	}
	if kind == reflect.Slice {
		return findNULInSlice(v)
	}
	if kind == reflect.Map {
		return findNULInMap(v)
	}
	if kind == reflect.Struct {
		return findNULInStruct(v)
	}
	return "", ""
}

func findNULInSlice(v reflect.Value) (path, text string) {
	for i := range v.Len() {
		if path, text := findNUL(v.Index(i)); text != "" {
			return fmt.Sprintf("[%d]%s", i, path), text
		}
	}
	return "", ""
}

func findNULInMap(v reflect.Value) (path, text string) {
	for key, value := range v.Seq2() {
		for _, of := range []reflect.Value{key, value} {
			if path, text := findNUL(of); text != "" {
				return fmt.Sprintf("[%q]%s", key, path), text
			}
		}
	}
	return "", ""
}

func findNULInStruct(v reflect.Value) (path, text string) {
	for i := range v.NumField() {
		if path, text := findNUL(v.Field(i)); text != "" {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			return "." + name + path, text
		}
	}
	return "", ""
}

func hasNUL(s string) bool { return strings.ContainsRune(s, 0) }

// systemdCgroup reports whether cgroupsPath has the form of the systemd driver, slice:prefix:name, and not a path.
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
