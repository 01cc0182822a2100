// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package tools

import "context"

// Kubernetes is the programs that only `make test-kubernetes` needs.
type Kubernetes struct {
	Version string // of the module: the programs know none

	Etcd, APIServer, Controllers, Scheduler, Kubelet, Kubectl string
}

// BuildKubernetes provides Kubernetes as Build does the other tools. Its programs are tool lines of a module of its
// own, which says what the parts of Kubernetes are that its own go.mod wants in version v0.0.0.
func BuildKubernetes(ctx context.Context) (Kubernetes, error) {
	const module = "k8s.io/kubernetes"
	var k Kubernetes
	for _, p := range []struct {
		path *string
		pkg  string
	}{
		{&k.Etcd, "go.etcd.io/etcd/server/v3"},
		{&k.APIServer, module + "/cmd/kube-apiserver"},
		{&k.Controllers, module + "/cmd/kube-controller-manager"},
		{&k.Scheduler, module + "/cmd/kube-scheduler"},
		{&k.Kubelet, module + "/cmd/kubelet"},
		{&k.Kubectl, module + "/cmd/kubectl"},
	} {
		var err error
		if *p.path, k.Version, err = pinned(ctx, "kubernetes", module, program{pkg: p.pkg, cgo: "0"}); err != nil {
			return Kubernetes{}, err
		}
	}
	return k, nil
}
