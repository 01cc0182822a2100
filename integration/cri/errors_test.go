// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/harness"
)

// The kubelet puts these messages into the events and the status of a pod.
func TestError_ClassReachesTheKubeletOnce(t *testing.T) {
	const absent = "/no/such/program"
	eachWay(t, func(e *env) {
		want := func(what string, err error, words ...string) {
			e.Helper()
			message := status.Convert(err).Message()
			harness.WantClassOnce(e, what, message, errdefs.ErrInvalidArgument)
			for _, word := range words {
				if !strings.Contains(message, word) {
					e.Errorf("%s = %q, want %q in it", what, message, word)
				}
			}
		}
		p := e.pod("p")
		bad := p.create("bad", []string{absent})
		_, err := e.daemon.Runtime.StartContainer(e.ctx, &runtimeapi.StartContainerRequest{ContainerId: bad.id})
		want("StartContainer", err, absent, "no such file or directory")
		harness.WantClassOnce(e, "message of ContainerStatus", bad.status().GetMessage(), errdefs.ErrInvalidArgument)

		good := p.run("good", forever)
		_, err = good.tryExec(0, absent)
		want("ExecSync", err, absent, "no such file or directory")
		good.wantExec("well", "echo", "well")
		p.remove()
	})
}
