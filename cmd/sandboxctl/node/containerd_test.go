// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/containerd/api/types"
	"google.golang.org/protobuf/types/known/anypb"
)

func TestPlaceOf(t *testing.T) {
	const cri = `{"annotations": {"io.kubernetes.cri.sandbox-id": "s1", "io.kubernetes.cri.sandbox-name": "web",
		"io.kubernetes.cri.sandbox-namespace": "prod", "io.kubernetes.cri.container-name": "nginx"}}`
	for name, tc := range map[string]struct {
		sandbox, spec string
		labels        map[string]string
		want          place
	}{
		"no pod":            {spec: `{}`},
		"no OCI spec":       {spec: `x`},
		"CRI":               {spec: cri, want: place{"s1", "prod/web", "nginx"}},
		"Sandbox API":       {sandbox: "s2", spec: `{}`, want: place{sandbox: "s2"}},
		"group":             {spec: `{"annotations": {"io.containerd.runc.v2.group": "g"}}`, want: place{sandbox: "g"}},
		"labels of kubelet": {spec: `{}`, labels: map[string]string{podName: "web", podNamespace: "prod"}, want: place{pod: "prod/web"}},
		"another's label":   {spec: `{}`, labels: map[string]string{"name": "my_web"}},
	} {
		c := &containersapi.Container{Sandbox: tc.sandbox, Labels: tc.labels, Spec: &anypb.Any{Value: []byte(tc.spec)}}
		if got := placeOf(c); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
	for text, want := range map[string]string{
		`{"Version": "v1", "Metadata": {"ID": "s1", "Config": {"metadata": {"name": "web", "namespace": "prod"}}}}`: "prod/web",
		`{"Metadata": {}}`: "labelled/web",
		`x`:                "labelled/web",
	} {
		s := &types.Sandbox{
			Labels:     map[string]string{podName: "web", podNamespace: "labelled"},
			Extensions: map[string]*anypb.Any{"metadata": {Value: []byte(text)}},
		}
		if got := podOfSandbox(s); got != want {
			t.Errorf("pod of a sandbox with %s = %q, want %q", text, got, want)
		}
	}
	if got := podOfSandbox(&types.Sandbox{}); got != "" {
		t.Errorf("pod of a sandbox of another client = %q", got)
	}
}
