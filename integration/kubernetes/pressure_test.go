// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// reconfigure restarts the kubelet with further settings, and with the former ones at the end of the test.
func reconfigure(t *testing.T, settings map[string]any) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // which has ended before the end
	again := func(settings map[string]any) error {
		return shared.withoutKubelet(ctx, func() error {
			// A kubelet refuses what it wrote with another policy.
			err := os.Remove(filepath.Join(shared.kubeletDir(), "cpu_manager_state"))
			if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
			return errors.Join(err, shared.configureKubelet(settings))
		})
	}
	if err := again(settings); err != nil {
		t.Fatalf("restart the kubelet: %v\n%s", err, shared.logs())
	}
	t.Cleanup(func() {
		if err := again(nil); err != nil {
			t.Errorf("restart the kubelet: %v\n%s", err, shared.logs())
		}
	})
}

func TestKubernetes_Eviction(t *testing.T) {
	compare(t, []kubeCase{
		{
			name: "eviction: a container over its limit of ephemeral storage", changes: true,
			pods:   map[string]string{"box": `{restartPolicy: Never, containers: [{name: c, command: [sh, -c, "head -c 5000000 /dev/zero >/tmp/f; exec sleep 1000"], resources: {limits: {ephemeral-storage: 1Mi}}}]}`},
			script: `phase Failed box; get box '{.status.reason}'`,
			want:   "Evicted\n",
		},
		{
			name: "eviction: the node's disk is full", changes: true, alone: true,
			pods: map[string]string{
				"box":   `{restartPolicy: Never, terminationGracePeriodSeconds: 5, volumes: [{name: d, emptyDir: {}}], containers: [{name: c, command: [sh, -c, "head -c 980000000 /dev/zero >/d/f; exec sleep 1000"], volumeMounts: [{name: d, mountPath: /d}]}]}`,
				"other": `{containers: [{name: c, command: [sleep, "1000"]}]}`,
			},
			script: `phase Failed box; get box '{.status.reason}'; await False kubectl get node $NODE -o jsonpath='{.status.conditions[?(@.type=="DiskPressure")].status}'; ready other`,
			want:   "Evicted\n",
		},
	})
}
