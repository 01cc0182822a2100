// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import "testing"

// cgroupScript prints files of the cgroups of the container c of a pod, and of the pod's, as limit of its own.
const cgroupScript = `value() { # value PID LEVELS-UP V1-CONTROLLER V1-FILE V2-FILE
	dir=$(sed -n "s/^[0-9]*:$3:/\/sys\/fs\/cgroup\/$3/p" /proc/$1/cgroup)
	file=$4
	if [ -z "$dir" ]; then dir=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/$1/cgroup); file=$5; fi
	for up in $(seq $2); do dir=${dir%/*}; done
	cat $dir/$file
}
pid() { # pid POD: of its container c
	id=$(kubectl get pod $1 -o jsonpath='{.status.containerStatuses[?(@.name=="c")].containerID}')
	for pid in $(cat $(find /sys/fs/cgroup -path "*/${id##*/}/cgroup.procs" 2>/dev/null | head -n 1)); do echo $pid; break; done
}
`

// limitsScript prints memory, quota and weight of the CPUs of a process, or of the cgroup some levels up.
const limitsScript = `limits() { # limits PID LEVELS-UP
	echo $(value $1 $2 memory memory.limit_in_bytes memory.max) $(value $1 $2 cpu cpu.cfs_quota_us cpu.max) $(value $1 $2 cpu cpu.shares cpu.weight)
}
`

// The weights on cgroup v2 are those into which runc and this shim convert the kubelet's shares.
func TestKubernetes_Resources(t *testing.T) {
	const idle = `command: [sleep, "1000"]`
	up, down := on("134217728 30000 153", "134217728 30000 100000 24"), on("50331648 10000 102", "50331648 10000 100000 17")
	compare(t, []kubeCase{
		{
			name: "classes of QoS, their cgroups and limits",
			pods: map[string]string{
				"best":       `containers: [{name: c, ` + idle + `}]`,
				"burst":      `containers: [{name: c, ` + idle + `, resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {memory: 64Mi}}}]`,
				"guaranteed": `containers: [{name: c, ` + idle + `, resources: {limits: {cpu: 200m, memory: 64Mi}}}]`,
			},
			script: cgroupScript + limitsScript + `ready best burst guaranteed; for pod in best burst guaranteed; do get $pod {.status.qosClass}; pid=$(pid $pod)
				limits $pid 0; cat /proc/$pid/oom_score_adj >&2
				sed -n 's/^\([0-9]*:memory\|0:\)://p' /proc/$pid/cgroup | head -n 1 | sed 's/[0-9a-f]\{64\}/ID/; s|/pod[0-9a-f-]*|/POD|; s/^.shim-test-kube-[0-9]*//'; done`,
			want: "BestEffort\n" + on("9223372036854771712 -1 2", "max max 100000 1") + "\n/kubepods/besteffort/POD/ID\n" +
				"Burstable\n" + on("67108864 -1 102", "67108864 max 100000 17") + "\n/kubepods/burstable/POD/ID\n" +
				"Guaranteed\n" + on("67108864 20000 204", "67108864 20000 100000 29") + "\n/kubepods/POD/ID\n",
		},
		{
			name: "resize in place: CPU and memory, up and down",
			pods: map[string]string{"box": `containers: [{name: c, command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 0.1; done"], resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}}]`},
			script: cgroupScript + limitsScript + `ready box; pid=$(pid box)
				kubectl patch pod box --subresource resize -p '{"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "150m", "memory": "40Mi"}, "limits": {"cpu": "300m", "memory": "128Mi"}}}]}}' >/dev/null
				until [ "$(limits $pid 0)" = "` + up + `" ]; do sleep 0.5; done; await 300m get box '{.status.containerStatuses[0].resources.limits.cpu}'
				kubectl patch pod box --subresource resize -p '{"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": "100m", "memory": "48Mi"}}}]}}' >/dev/null
				until [ "$(limits $pid 0)" = "` + down + `" ]; do sleep 0.5; done; await 48Mi get box '{.status.containerStatuses[0].resources.limits.memory}'
				await "" get box '{.status.conditions[?(@.type=="PodResizeInProgress")].status}'; get box '{.status.containerStatuses[0].restartCount}'; [ $(pid box) = $pid ] && echo same`,
			want: "0\nsame\n",
		},
		{
			name: "resize with a restart of the container",
			pods: map[string]string{"box": `containers: [{name: c, command: [sh, -c, "trap 'exit 3' TERM; touch /tmp/f; while :; do sleep 0.1; done"], readinessProbe: {exec: {command: [test, -e, /tmp/f]}, periodSeconds: 1}, resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}], resources: {limits: {cpu: 100m, memory: 64Mi}}}]`},
			script: cgroupScript + `ready box; kubectl patch pod box --subresource resize -p '{"spec": {"containers": [{"name": "c", "resources": {"requests": {"memory": "96Mi"}, "limits": {"memory": "96Mi"}}}]}}' >/dev/null
				await 1 get box '{.status.containerStatuses[0].restartCount}'; ready box; value $(pid box) 0 memory memory.limit_in_bytes memory.max`,
			want: "100663296\n",
		},
		{
			name:   "overhead of the runtime class in the pod's cgroup",
			pods:   map[string]string{"box": `containers: [{name: c, ` + idle + `, resources: {limits: {cpu: 100m, memory: 64Mi}}}]`},
			script: `ready box`,
			ours: func(s *session) {
				got := s.Quiet(cgroupScript + `echo $(value $(pid box) 1 memory memory.limit_in_bytes memory.max) $(value $(pid box) 1 cpu cpu.cfs_quota_us cpu.max)`)
				if want := on("83886080 11000", "83886080 11000 100000"); got != want {
					s.Fatalf("limits of the pod are %q, want those of the container and 16Mi, 10m: %q", got, want)
				}
			},
		},
		{
			name:   "the limit of processes",
			pods:   map[string]string{"box": `containers: [{name: c, ` + idle + `}]`},
			script: cgroupScript + `ready box; value $(pid box) 1 pids pids.max pids.max; kubectl exec box -- sh -c 'for n in $(seq 600); do sleep 5 & done' 2>&1 | grep -c "can't fork" | sed 's/^[1-9][0-9]*/refused/'`,
			want:   "512\nrefused\n",
		},
	})
}
