// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
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

func TestKubernetes_CPUManager(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("SKIPPED: needs two CPUs")
	}
	reconfigure(t, map[string]any{"cpuManagerPolicy": "static", "systemReserved": map[string]string{"cpu": "500m"}})
	const cpus = `[sh, -c, "trap 'exit 0' TERM; while :; do grep Cpus_allowed_list /proc/self/status | cut -f 2 >/tmp/cpus.part; mv /tmp/cpus.part /tmp/cpus; sleep 0.2; done"]`
	compare(t, []kubeCase{{
		name: "the static CPU manager: exclusive CPUs, which the others leave", alone: true,
		pods: map[string]string{"shared": `containers: [{name: c, command: ` + cpus + `}]`},
		run: func(s *session) {
			s.pods(map[string]string{"own": `containers: [{name: c, command: ` + cpus + `, resources: {limits: {cpu: "1", memory: 64Mi}}}]`})
		},
		script: `ready shared own; own=$(kubectl exec own -- cat /tmp/cpus); case $own in *[!0-9]*) echo "own has $own" ;; esac
			all=$(cat /sys/devices/system/cpu/online); cat >$W/shares <<-'END'
				case ",$(kubectl exec shared -- cat /tmp/cpus)," in "$1") echo all ;; *[-,]$2[-,]*) echo no ;; *) echo rest ;; esac
				END
			await rest sh $W/shares none "$own"; [ "$(kubectl exec own -- grep Cpus_allowed_list /proc/self/status | cut -f 2)" = "$own" ] && echo exec
			kubectl exec shared -- grep -c "Cpus_allowed_list.*$own" /proc/self/status || true
			kubectl delete pod own >/dev/null; await all sh $W/shares ",$all," none`,
		want: "exec\n0\n",
	}})
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
