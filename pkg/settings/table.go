// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/inspect"
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

// Options returns the keys of the options.
func (t Table) Options() (keys []options.Key) {
	for _, s := range t {
		if s.Option != "" {
			keys = append(keys, options.Key{Name: s.Option, Bool: s.Bool})
		}
	}
	return keys
}

// Names returns the annotations of a container without Prefix, sorted.
func (t Table) Names() (names []string) {
	for _, s := range t {
		if s.Option != "" {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Unsafe returns the names, sorted, that AllowUnsafeAnnotations has to allow.
func (t Table) Unsafe() []string {
	return slices.DeleteFunc(slices.Clone(t), func(s Setting) bool { return !s.Unsafe }).Names()
}

// List returns the settings of a container with their origins, and the other options that are set.
func (t Table) List(annotations map[string]string, o options.Options) []inspect.Setting {
	fromOptions := cmp.Or(o.File, inspect.FromOption)
	var list []inspect.Setting
	values := t.ValuesOf(annotations, o, "", "")
	for _, s := range t {
		shown := inspect.Setting{Name: s.Name, Option: s.Option, Value: s.Default, Origin: inspect.FromDefault}
		switch v := values.Of(s.Name); {
		case s.Option == "":
			continue
		case v.ByAnnotation:
			shown.Value, shown.Origin = v.Text, inspect.FromAnnotation
		case v.IsSet():
			shown.Value, shown.Origin = v.Text, fromOptions
		}
		list = append(list, shown)
	}
	fields := reflect.ValueOf(o)
	for i := range fields.NumField() {
		name := fields.Type().Field(i).Name
		if v := fields.Field(i); !v.IsZero() && name != "Settings" && name != "File" {
			list = append(list, inspect.Setting{Name: name, Value: fmt.Sprint(v), Origin: fromOptions})
		}
	}
	return list
}

// CheckAnnotations refuses unknown annotations. CRI passes those of a pod on to its containers.
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

// libcontainerAnnotations are read by libcontainer, also with a suffix: properties of the unit, which can power the
// machine off (CVE-2024-3154), and a file with options of CRIU, which is run as root.
var libcontainerAnnotations = []string{"org.criu.config", "org.systemd.property"}

// harmlessProperties change nothing but the unit. Clients set them.
var harmlessProperties = []string{"CollectMode", "Delegate", "KillSignal", "TimeoutStopUSec"}

// scalar matches a harmless property in GVariant's text format. On other texts the parser of libcontainer hangs (a
// digit that is not ASCII), needs memory without bound, or panics.
var scalar = sync.OnceValue(func() *regexp.Regexp {
	const number = `[+-]?(0x[0-9a-fA-F]+|[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?)`
	const text = `'([ -&(-[\]-~]|\\[ -~])*'|"([ !#-[\]-~]|\\[ -~])*"` // printable ASCII, quotes and backslashes after one
	const typed = `((boolean|byte|u?int(16|32|64)|string|@[bynqiuxtds]) +)?`
	return regexp.MustCompile(`^ *` + typed + `(true|false|` + number + `|` + text + `) *$`)
})

// checkUnsafe refuses unsafe annotations that are not allowed: the creator of a pod need not be root of the machine.
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
		safe := s.SafeValue != "" && value == s.SafeValue
		if ok && s.Unsafe && !safe && !slices.Contains(allowed, s.Name) {
			return denied(Prefix+s.Name, value, s.Name)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		read, _, _ := strings.Cut(key, "=") // libcontainer keeps KEY=VALUE, and reads up to the first =
		for _, name := range libcontainerAnnotations {
			property, below := strings.CutPrefix(read, name+".")
			switch {
			case read != name && !below, slices.Contains(allowed, name):
			case !below || !slices.Contains(harmlessProperties, property):
				return denied(key, annotations[key], name)
			case !scalar().MatchString(annotations[key]):
				return Value{Key: "config.json: annotations: " + key, Text: annotations[key]}.Refuse(
					"true, false, a number, or printable ASCII in quotes, also after its type, such as uint64 5")
			}
		}
	}
	return nil
}

func denied(key, value, name string) error {
	return fmt.Errorf("config.json: annotations: %s %q: gives the container access to the host or to other containers; "+
		"to allow it, set the runtime option AllowUnsafeAnnotations = [%q]: %w",
		key, value, name, errdefs.ErrPermissionDenied)
}
