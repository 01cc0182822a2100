// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// Prefix begins the name of each annotation.
const Prefix = "io.containerd.sandbox.v1/"

// annotation is a row of the table.
type annotation struct {
	name   string                       // without Prefix
	option string                       // the field of options.Options that holds without the annotation
	parse  func(*Settings, Value) error // nil: it is a pod's, and read elsewhere

	// A container gets at the host or at other containers by it, unless its value is harmless.
	unsafe   bool
	harmless string
}

// listenNone is the word for no sockets.
const listenNone = "none"

// table has all annotations. One that needs another comes after it.
func table() []annotation {
	return []annotation{
		// Another source may be any cgroup of the machine.
		{
			name: "cpuset.source", option: "CpusetSource", parse: (*Settings).parseCPUSetSource,
			unsafe: true, harmless: "parent",
		},
		{name: "cpuset.mems", option: "CpusetMems", parse: (*Settings).parseCPUSetMems},
		{name: "stop-signal", option: "StopSignal", parse: (*Settings).parseStopSignal},
		{name: "stop-timeout", option: "StopTimeout", parse: (*Settings).parseStopTimeout},
		{name: "host-rootfs", option: "HostRootfs", parse: (*Settings).parseHostRootfs, unsafe: true, harmless: "off"},
		{name: "host-rootfs.mask", option: "HostRootfsMask", parse: (*Settings).parseHostRootfsMask, unsafe: true},
		{name: "pid-file", option: "PidFile", parse: (*Settings).parsePidFile, unsafe: true},
		{name: "notify", option: "Notify", parse: (*Settings).parseNotify},
		{name: "notify-timeout", option: "NotifyTimeout", parse: (*Settings).parseNotifyTimeout},
		{name: "exec-cgroup", option: "ExecCgroup", parse: (*Settings).parseExecCgroup},
		{name: "exec-timeout", option: "ExecTimeout", parse: (*Settings).parseExecTimeout},
		// Root binds the sockets: ports in the host's network, paths on volumes.
		{name: "listen", option: "Listen", parse: (*Settings).parseListen, unsafe: true, harmless: listenNone},
		{name: "shm-size"}, // pod.ShmSizeAnnotation
	}
}

// Names are the annotations of a container without Prefix, in alphabetical order.
func Names() []string {
	return sortedNames(func(a annotation) bool { return a.parse != nil })
}

// UnsafeAnnotations are those that a container may have only where the runtime option AllowUnsafeAnnotations names
// them.
func UnsafeAnnotations() []string {
	keys := unsafeNames()
	for i, name := range keys {
		keys[i] = Prefix + name
	}
	return keys
}

func unsafeNames() []string { return sortedNames(func(a annotation) bool { return a.unsafe }) }

func sortedNames(keep func(annotation) bool) []string {
	var names []string
	for _, a := range table() {
		if keep(a) {
			names = append(names, a.name)
		}
	}
	slices.Sort(names)
	return names
}

// CheckAnnotations refuses those that nobody reads, since a misspelt one must not be silently without effect. What is
// read of a pod or of a container is allowed at both: CRI hands annotations of a pod on to its containers.
func CheckAnnotations(annotations map[string]string) error {
	var known []string
	for _, a := range table() {
		known = append(known, Prefix+a.name)
	}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if strings.HasPrefix(key, Prefix) && !slices.Contains(known, key) {
			return fmt.Errorf("annotations: %q: unknown; known with this prefix are %s: %w",
				key, strings.Join(known, ", "), errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// checkUnsafe refuses unsafe annotations that are not allowed. Whoever writes a container's configuration need not be
// whoever configures the machine: that of a pod is written by those who may create pods.
func checkUnsafe(annotations map[string]string, allowed []string) error {
	unsafe := unsafeNames()
	for _, name := range allowed {
		if !slices.Contains(unsafe, name) {
			return fmt.Errorf("runtime options: AllowUnsafeAnnotations: %q: must be one of %s: %w",
				name, strings.Join(unsafe, ", "), errdefs.ErrInvalidArgument)
		}
	}
	for _, a := range table() {
		value, ok := annotations[Prefix+a.name]
		if !a.unsafe || !ok || value == a.harmless || slices.Contains(allowed, a.name) {
			continue
		}
		return fmt.Errorf("%s %q: reaches what is not the container's; "+
			"the runtime option AllowUnsafeAnnotations = [%q] would allow it: %w",
			annotationKey(a.name), value, a.name, errdefs.ErrPermissionDenied)
	}
	return nil
}
