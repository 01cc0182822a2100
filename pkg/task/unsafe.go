// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/cpuset"
	"sandbox.internal/shim/pkg/hostrootfs"
)

// unsafeAnnotations are those by which a container gets at the host or at other
// containers, each with the value that does no harm; "" is none.
func unsafeAnnotations() map[string]string {
	return map[string]string{
		annotationHostRootfs:     hostrootfs.Off,
		annotationHostRootfsMask: "",
		annotationPidFile:        "",
		annotationListen:         listenNone,    // root binds the sockets: ports in the host's network, paths on volumes
		annotationSource:         cpuset.Parent, // another may be any cgroup of the machine
	}
}

// UnsafeAnnotations are those that a container may have only where the runtime
// option AllowUnsafeAnnotations names them.
func UnsafeAnnotations() []string { return slices.Sorted(maps.Keys(unsafeAnnotations())) }

// unsafeNames are UnsafeAnnotations without their prefix, as the option has them.
func unsafeNames() []string {
	names := UnsafeAnnotations()
	for i, key := range names {
		names[i] = strings.TrimPrefix(key, annotationPrefix)
	}
	return names
}

// checkUnsafe refuses unsafe annotations that are not allowed. Who writes a
// container's configuration need not be who configures the machine: of a pod it
// is whoever may create pods.
func checkUnsafe(annotations map[string]string, allowed []string) error {
	for _, name := range allowed {
		if names := unsafeNames(); !slices.Contains(names, name) {
			return fmt.Errorf("runtime options: AllowUnsafeAnnotations: %q: must be one of %s: %w", name, strings.Join(names, ", "), errdefs.ErrInvalidArgument)
		}
	}
	harmless := unsafeAnnotations()
	for _, key := range UnsafeAnnotations() {
		name := strings.TrimPrefix(key, annotationPrefix)
		value, ok := annotations[key]
		if !ok || value == harmless[key] || slices.Contains(allowed, name) {
			continue
		}
		return fmt.Errorf("%s: annotations: %s %q: reaches what is not the container's; the runtime option AllowUnsafeAnnotations = [%q] would allow it: %w",
			specFile, key, value, name, errdefs.ErrPermissionDenied)
	}
	return nil
}
