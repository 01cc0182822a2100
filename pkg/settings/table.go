// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/options"
)

// Prefix begins the name of each annotation.
const Prefix = "io.containerd.sandbox.v1/"

// Setting is an annotation and the runtime option that applies without it.
type Setting struct {
	Name    string // of the annotation, without Prefix
	Option  string // key of the option; empty: the annotation is a pod's, and pkg/pod reads it
	Bool    bool   // the option is true or false, and not a string
	Default string // value without annotation and option, for those who ask

	Unsafe    bool   // it gives a container access to the host or to other containers
	SafeValue string // the value with which it does not
	// OptionRestricts says that the option restricts containers, and the annotation would lift that. So it is unsafe if
	// the option is set.
	OptionRestricts bool
}

// Table has all settings of a program.
type Table []Setting

// Core returns the settings without those of extensions.
func Core() Table {
	return Table{
		// Another source may be any cgroup of the machine.
		{Name: "cpuset.source", Option: "CpusetSource", Unsafe: true, SafeValue: "parent"},
		{Name: "cpuset.mems", Option: "CpusetMems", Bool: true, Default: "false"},
		{Name: "stop-signal", Option: "StopSignal", Default: "SIGTERM"},
		{Name: "stop-timeout", Option: "StopTimeout", Default: defaultGrace.String()},
		{Name: "exec-limits", Option: "ExecLimits"},
		// Root writes the file.
		{Name: "verdict-file", Option: "VerdictFile", Unsafe: true},
		{Name: "shm-size"}, // pod.ShmSizeAnnotation
	}
}

func (t Table) ofContainers() Table {
	return slices.DeleteFunc(slices.Clone(t), func(s Setting) bool { return s.Option == "" })
}

// Options returns the keys of the options.
func (t Table) Options() (keys []options.Key) {
	for _, s := range t.ofContainers() {
		keys = append(keys, options.Key{Name: s.Option, Bool: s.Bool})
	}
	return keys
}

// Names returns the annotations of a container without Prefix, in alphabetical order.
func (t Table) Names() (names []string) {
	for _, s := range t.ofContainers() {
		names = append(names, s.Name)
	}
	slices.Sort(names)
	return names
}

// Unsafe returns the annotations, without Prefix, that a container may have only if the runtime option
// AllowUnsafeAnnotations names them, in alphabetical order.
func (t Table) Unsafe() []string {
	return slices.DeleteFunc(slices.Clone(t), func(s Setting) bool { return !s.Unsafe && !s.OptionRestricts }).Names()
}

// CheckAnnotations refuses those that nobody reads, since a misspelt one must not be silently ignored. What is read
// from a pod or from a container is allowed on both: CRI passes annotations of a pod on to its containers.
func (t Table) CheckAnnotations(annotations map[string]string) error {
	var known []string
	for _, s := range t {
		known = append(known, Prefix+s.Name)
	}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if strings.HasPrefix(key, Prefix) && !slices.Contains(known, key) {
			return fmt.Errorf("annotations: %q: unknown; known with this prefix are %s: %w",
				key, strings.Join(known, ", "), errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// checkUnsafe refuses unsafe annotations that are not allowed. The author of a container's configuration need not be
// the one who configures the machine: that of a pod is written by those who may create pods.
func (t Table) checkUnsafe(annotations map[string]string, o options.Options) error {
	allowed := o.AllowUnsafeAnnotations
	unsafe := slices.Concat(t.Unsafe(), libcontainerAnnotations)
	for _, name := range allowed {
		if !slices.Contains(unsafe, name) {
			return fmt.Errorf("%s: AllowUnsafeAnnotations: %q: must be one of %s: %w",
				o.Origin(), name, strings.Join(unsafe, ", "), errdefs.ErrInvalidArgument)
		}
	}
	for _, s := range t {
		value, ok := annotations[Prefix+s.Name]
		unsafe := s.Unsafe || s.OptionRestricts && o.Settings[s.Option] != ""
		safe := s.SafeValue != "" && value == s.SafeValue
		if ok && unsafe && !safe && !slices.Contains(allowed, s.Name) {
			return denied(Prefix+s.Name, value, s.Name)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		read, _, _ := strings.Cut(key, "=") // libcontainer keeps KEY=VALUE, and reads up to the first =
		for _, name := range libcontainerAnnotations {
			is := read == name || strings.HasPrefix(read, name+".") && !slices.Contains(harmlessProperties, read[len(name)+1:])
			if is && !slices.Contains(allowed, name) {
				return denied(key, annotations[key], name)
			}
		}
	}
	return nil
}

// libcontainerAnnotations are annotations that libcontainer reads: properties of the container's unit of systemd, with
// which the machine can be powered off when the container ends (CVE-2024-3154), and a file with options of CRIU, which
// is run as root. Annotations that begin with such a name and a dot are meant too.
var libcontainerAnnotations = []string{"org.criu.config", "org.systemd.property"}

// harmlessProperties of a unit change nothing but the unit. Clients set them.
var harmlessProperties = []string{"CollectMode", "Delegate", "KillSignal", "TimeoutStopUSec"}

func denied(key, value, name string) error {
	return fmt.Errorf("config.json: annotations: %s %q: gives the container access to the host or to other containers; "+
		"to allow it, set the runtime option AllowUnsafeAnnotations = [%q]: %w",
		key, value, name, errdefs.ErrPermissionDenied)
}
