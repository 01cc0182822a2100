// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import "testing"

// box is a pod that does nothing.
func box() map[string]string {
	return map[string]string{"box": `containers: [{name: c, command: [sleep, "1000"]}]`}
}

func TestKubernetes_Life(t *testing.T) {
	compare(t, []kubeCase{
		{
			name:   "a pod runs",
			pods:   box(),
			script: `ready box; get box {.status.phase}; kubectl exec box -- echo hello`,
			want:   "Running\nhello\n",
		},
	})
}
