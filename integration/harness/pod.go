// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// PodKind is which container of a pod one is, in the words of CRI's annotation.
type PodKind string

// The kinds of containers of a pod. The first one, whose id is that of the pod, is its pause container.
const (
	PodFirst PodKind = "sandbox"
	PodOther PodKind = "container"
)

// InPod has the annotations that CRI gives to a container.
func InPod(pod string, kind PodKind) oci.SpecOpts {
	return oci.WithAnnotations(map[string]string{
		"io.kubernetes.cri.sandbox-id":     pod,
		"io.kubernetes.cri.container-type": string(kind),
	})
}

// Sharing has the namespaces of process pid that the containers of a pod share when the kubelet asks for nothing else
// (containerd, internal/cri/opts, WithPodNamespaces).
func Sharing(pid int) (opts []oci.SpecOpts) {
	for kind, name := range map[specs.LinuxNamespaceType]string{
		specs.NetworkNamespace: "net",
		specs.IPCNamespace:     "ipc", specs.UTSNamespace: "uts",
	} {
		opts = append(opts,
			oci.WithLinuxNamespace(specs.LinuxNamespace{Type: kind, Path: fmt.Sprintf("/proc/%d/ns/%s", pid, name)}))
	}
	return opts
}
