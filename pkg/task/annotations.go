// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// Annotations of the specification by which one container is given what the
// runtime options give all.
const (
	annotationPrefix = "io.containerd.sandbox.v1/"
	annotationSource = annotationPrefix + "cpuset.source" // options.CpusetSource
	annotationMems   = annotationPrefix + "cpuset.mems"   // options.CpusetMems

	annotationStopSignal  = annotationPrefix + "stop-signal"  // options.StopSignal
	annotationStopTimeout = annotationPrefix + "stop-timeout" // options.StopTimeout

	annotationHostRootfs     = annotationPrefix + "host-rootfs"      // options.HostRootfs
	annotationHostRootfsMask = annotationPrefix + "host-rootfs.mask" // options.HostRootfsMask
	annotationPidFile        = annotationPrefix + "pid-file"         // options.PidFile

	annotationNotify        = annotationPrefix + "notify"         // options.Notify
	annotationNotifyTimeout = annotationPrefix + "notify-timeout" // options.NotifyTimeout
	annotationExecCgroup    = annotationPrefix + "exec-cgroup"    // options.ExecCgroup
	annotationExecTimeout   = annotationPrefix + "exec-timeout"   // options.ExecTimeout
	annotationListen        = annotationPrefix + "listen"         // options.Listen

	annotationShmSize = annotationPrefix + "shm-size" // of a pod: pod.ShmSizeAnnotation
)

// known are all that are read of a container.
func known() []string {
	return []string{
		annotationSource, annotationMems, annotationStopSignal, annotationStopTimeout,
		annotationHostRootfs, annotationHostRootfsMask, annotationPidFile,
		annotationNotify, annotationNotifyTimeout, annotationExecCgroup, annotationExecTimeout, annotationListen,
	}
}

// Settings are the names of what annotations can set, without their prefix, in
// alphabetical order.
func Settings() []string {
	var names []string
	for _, key := range known() {
		names = append(names, strings.TrimPrefix(key, annotationPrefix))
	}
	slices.Sort(names)
	return names
}

// CheckAnnotations refuses those that nobody reads, since a misspelt one must
// not be silently without effect. What is read of a pod and of a container is
// allowed at both: CRI hands annotations of a pod on to its containers.
func CheckAnnotations(annotations map[string]string) error {
	all := append(known(), annotationShmSize)
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if strings.HasPrefix(key, annotationPrefix) && !slices.Contains(all, key) {
			return fmt.Errorf("annotations: %q: unknown; known with this prefix are %s: %w", key, strings.Join(all, ", "), errdefs.ErrInvalidArgument)
		}
	}
	return nil
}
