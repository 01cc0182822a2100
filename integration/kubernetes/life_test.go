// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"regexp"
	"testing"
)

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
		{
			name: "phases and exit codes: Succeeded, Failed, by a signal",
			pods: map[string]string{
				"zero":   `{restartPolicy: Never, containers: [{name: c, command: ["true"]}]}`,
				"three":  `{restartPolicy: Never, containers: [{name: c, command: [sh, -c, exit 3]}]}`,
				"signal": `{restartPolicy: Never, containers: [{name: c, command: [sh, -c, "sleep 1000 & kill -9 $!; wait $!"]}]}`,
			},
			script: `phase Succeeded zero; phase Failed three signal; for pod in zero three signal; do
				get $pod '{.status.containerStatuses[0].state.terminated.exitCode} {.status.containerStatuses[0].state.terminated.reason}'; done`,
			want: "0 Completed\n3 Error\n137 Error\n",
		},
		{
			name: "two containers: one fails, one does not",
			pods: map[string]string{"box": `{restartPolicy: Never, containers: [
				{name: a, command: ["true"]}, {name: b, command: [sh, -c, "sleep 1; exit 4"]}]}`},
			script: `phase Failed box; get box '{.status.containerStatuses[*].state.terminated.exitCode}'`,
			want:   "0 4\n",
		},
		{
			name: "OOMKilled",
			pods: map[string]string{"box": `{restartPolicy: Never, containers: [
				{name: c, command: [tail, /dev/zero], resources: {limits: {memory: 32Mi}}}]}`},
			script: `phase Failed box; get box '{.status.containerStatuses[0].state.terminated.exitCode} {.status.containerStatuses[0].state.terminated.reason}'`,
			want:   "137 OOMKilled\n",
		},
		{
			name: "OOMKilled again and again", changes: true,
			pods: map[string]string{"box": `{containers: [
				{name: c, command: [tail, /dev/zero], resources: {limits: {memory: 32Mi}}}]}`},
			script: `await CrashLoopBackOff get box '{.status.containerStatuses[0].state.waiting.reason}'; get box '{.status.containerStatuses[0].lastState.terminated.reason}'`,
			want:   "OOMKilled\n",
		},
		{
			name: "an OOM kill of another process than the first",
			pods: map[string]string{"box": `{restartPolicy: Never, containers: [
				{name: c, command: [sh, -c, "tail /dev/zero; exit 5"], resources: {limits: {memory: 32Mi}}}]}`},
			script: `phase Failed box; get box '{.status.containerStatuses[0].state.terminated.exitCode}'`,
			want:   "5\n",
		},
		{
			name:   "DeadlineExceeded",
			pods:   map[string]string{"box": `{activeDeadlineSeconds: 2, containers: [{name: c, command: [sleep, "1000"]}]}`},
			script: `phase Failed box; get box {.status.reason}`,
			want:   "DeadlineExceeded\n",
		},
		{
			name: "a program that is absent, or not executable",
			pods: map[string]string{
				"absent": `{restartPolicy: Never, containers: [{name: c, command: [nothing]}]}`,
				"file":   `{restartPolicy: Never, containers: [{name: c, command: [/etc/passwd]}]}`,
			},
			script: `phase Failed absent file; for pod in absent file; do
				get $pod '{.status.containerStatuses[0].state.terminated.exitCode} {.status.containerStatuses[0].state.terminated.reason}'; done`,
			want: "128 StartError\n128 StartError\n",
			mask: regexp.MustCompile(`failed to create .*`), reason: "the words of the error",
		},
		{
			name: "restartPolicy Always: back-off", changes: true,
			pods: map[string]string{"box": `containers: [{name: c, command: [sh, -c, exit 7]}]`},
			script: `await CrashLoopBackOff get box '{.status.containerStatuses[0].state.waiting.reason}'
				get box '{.status.containerStatuses[0].lastState.terminated.exitCode} {.status.phase}'; n=$(get box '{.status.containerStatuses[0].restartCount}')
				await $((n+1)) get box '{.status.containerStatuses[0].restartCount}'
				await CrashLoopBackOff get box '{.status.containerStatuses[0].state.waiting.reason}'`,
			want: "7 Running\n",
		},
		{
			name: "restartPolicy OnFailure: until it succeeds",
			pods: map[string]string{"box": `{restartPolicy: OnFailure, volumes: [{name: v, emptyDir: {}}], containers: [{name: c,
				command: [sh, -c, "echo run; test -e /v/f || { touch /v/f; exit 1; }"], volumeMounts: [{name: v, mountPath: /v}]}]}`},
			script: `phase Succeeded box; get box '{.status.containerStatuses[0].restartCount}'; kubectl logs box`,
			want:   "1\nrun\n",
		},
		{
			name: "init containers, in order",
			pods: map[string]string{"box": `{volumes: [{name: v, emptyDir: {}}], initContainers: [
				{name: a, command: [sh, -c, "sleep 1; echo a >>/v/f"], volumeMounts: [{name: v, mountPath: /v}]},
				{name: b, command: [sh, -c, "echo b >>/v/f"], volumeMounts: [{name: v, mountPath: /v}]}],
				containers: [{name: c, command: [sh, -c, "cat /v/f; exec sleep 1000"], volumeMounts: [{name: v, mountPath: /v}]}]}`},
			script: `ready box; kubectl logs box -c c; get box '{.status.initContainerStatuses[*].state.terminated.reason}'`,
			want:   "a\nb\nCompleted Completed\n",
		},
		{
			name: "an init container that fails", changes: true,
			pods: map[string]string{
				"never": `{restartPolicy: Never, initContainers: [{name: a, command: ["false"]}], containers: [{name: c, command: [sleep, "1000"]}]}`,
				"again": `{initContainers: [{name: a, command: ["false"]}], containers: [{name: c, command: [sleep, "1000"]}]}`,
			},
			script: `phase Failed never; get never '{.status.containerStatuses[0].state.waiting.reason}'
				await CrashLoopBackOff get again '{.status.initContainerStatuses[0].state.waiting.reason}'; get again {.status.phase}`,
			want: "PodInitializing\nPending\n",
		},
		{
			name: "a sidecar: begins before, ends after",
			pods: map[string]string{"box": `{restartPolicy: Never, terminationGracePeriodSeconds: 10, volumes: [{name: v, emptyDir: {}}], initContainers: [
				{name: side, restartPolicy: Always, volumeMounts: [{name: v, mountPath: /v}],
				command: [sh, -c, "touch /v/f; trap 'echo end; exit 0' TERM; while :; do sleep 0.1; done"], startupProbe: {exec: {command: [test, -e, /v/f]}, periodSeconds: 1}}],
				containers: [{name: c, command: [sh, -c, "ls /v"], volumeMounts: [{name: v, mountPath: /v}]}]}`},
			script: `phase Succeeded box; kubectl logs box -c c; await end kubectl logs box -c side; get box '{.status.initContainerStatuses[0].state.terminated.exitCode}'`,
			want:   "f\n0\n",
		},
		{
			name: "a sidecar that dies is started again",
			pods: map[string]string{"box": `{initContainers: [{name: side, restartPolicy: Always, command: [sh, -c, "trap 'exit 3' TERM; while :; do sleep 0.1; done"]}],
				containers: [{name: c, command: [sleep, "1000"]}]}`},
			script: `ready box; kubectl exec box -c side -- kill 1; await 1 get box '{.status.initContainerStatuses[0].restartCount}'; ready box
				get box '{.status.initContainerStatuses[0].lastState.terminated.exitCode}'`,
			want: "3\n",
		},
		{
			name: "the message of the end",
			pods: map[string]string{
				"file": `{restartPolicy: Never, containers: [{name: c, command: [sh, -c, "echo why >/dev/termination-log; exit 1"]}]}`,
				"logs": `{restartPolicy: Never, containers: [{name: c, command: [sh, -c, "echo told; exit 1"], terminationMessagePolicy: FallbackToLogsOnError}]}`,
			},
			script: `phase Failed file logs; for pod in file logs; do get $pod '{.status.containerStatuses[0].state.terminated.message}'; done`,
			want:   "why\n\ntold\n\n",
		},
		{
			name: "a job, a deployment",
			objects: `apiVersion: batch/v1
kind: Job
metadata: {name: j}
spec: {completions: 2, parallelism: 2, template: {spec: {$CLASS, restartPolicy: Never, containers: [{name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [echo, done]}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec: {replicas: 2, selector: {matchLabels: {app: d}}, template: {metadata: {labels: {app: d}}, spec: {$CLASS, terminationGracePeriodSeconds: 1,
  containers: [{name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, "1000"]}]}}}
`,
			script: `kubectl wait --for=condition=Complete --timeout=90s job/j >/dev/null; kubectl logs job/j --all-pods=true | cut -d ' ' -f 2
				kubectl rollout status deployment/d --timeout=90s >/dev/null; kubectl rollout restart deployment/d >/dev/null
				kubectl rollout status deployment/d --timeout=90s >/dev/null; kubectl scale deployment/d --replicas=0 >/dev/null
				await "" kubectl get pods -l app=d -o name`,
			want: "done\ndone\n",
		},
	})
}

func TestKubernetes_End(t *testing.T) {
	const trap = `[sh, -c, "trap 'echo asked; sleep 1; echo end; exit 0' TERM; echo ready; while :; do sleep 0.1; done"]`
	const follow = `ready box; kubectl logs -f box >$W/log & await ready kubectl logs box; `
	compare(t, []kubeCase{
		{
			name:   "grace: a container that listens ends by itself",
			pods:   map[string]string{"box": `{terminationGracePeriodSeconds: 30, containers: [{name: c, command: ` + trap + `}]}`},
			script: follow + `kubectl delete pod box >/dev/null; wait; cat $W/log`,
			want:   "ready\nasked\nend\n",
		},
		{
			name: "grace: one that does not is killed",
			pods: map[string]string{"box": `{terminationGracePeriodSeconds: 2, containers: [{name: c,
				command: [sh, -c, "trap 'echo asked' TERM; echo ready; while :; do sleep 0.1; done"]}]}`},
			script: follow + `begin=$(date +%s); kubectl delete pod box >/dev/null; wait; [ $(($(date +%s) - begin)) -lt 20 ]; cat $W/log`,
			want:   "ready\nasked\n",
		},
		{
			name:   "delete with a grace of its own, and at once",
			pods:   map[string]string{"box": `{terminationGracePeriodSeconds: 600, containers: [{name: c, command: [sleep, "1000"]}]}`, "now": `{terminationGracePeriodSeconds: 600, containers: [{name: c, command: [sleep, "1000"]}]}`},
			script: `ready box now; kubectl delete pod box --grace-period=1; kubectl delete pod now --grace-period=0 --force 2>/dev/null; kubectl get pods -o name`,
			want:   "pod \"box\" deleted from <namespace> namespace\npod \"now\" force deleted from <namespace> namespace\n",
		},
		{
			name: "the stop signal of a container",
			pods: map[string]string{"box": `{terminationGracePeriodSeconds: 30, os: {name: linux}, containers: [{name: c, lifecycle: {stopSignal: SIGUSR1},
				command: [sh, -c, "trap 'echo usr1; exit 0' USR1; echo ready; while :; do sleep 0.1; done"]}]}`},
			script: follow + `kubectl delete pod box >/dev/null; wait; cat $W/log`,
			want:   "ready\nusr1\n",
		},
		{
			name: "postStart and preStop",
			pods: map[string]string{"box": `{terminationGracePeriodSeconds: 30, containers: [{name: c,
				lifecycle: {postStart: {exec: {command: [sh, -c, "echo started >/proc/1/fd/1"]}}, preStop: {exec: {command: [sh, -c, "echo stopping >/proc/1/fd/1; sleep 1"]}}},
				command: [sh, -c, "trap 'echo asked; exit 0' TERM; while :; do sleep 0.1; done"]}]}`},
			script: `ready box; kubectl logs -f box >$W/log & await started kubectl logs box; kubectl delete pod box >/dev/null; wait; cat $W/log`,
			want:   "started\nstopping\nasked\n",
		},
		{
			name: "preStop by HTTP, and by sleep",
			pods: map[string]string{
				"http": `{terminationGracePeriodSeconds: 30, containers: [{name: c, lifecycle: {preStop: {httpGet: {path: /bye, port: 8080}}},
					command: [sh, -c, "trap 'exit 0' TERM; busybox httpd -v -f -p 8080 -h /etc & wait"], readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}}]}`,
				"sleep": `{terminationGracePeriodSeconds: 30, containers: [{name: c, lifecycle: {preStop: {sleep: {seconds: 2}}}, command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 0.1; done"]}]}`,
			},
			script: `ready http sleep; kubectl logs -f http >$W/log & begin=$(date +%s); kubectl delete pod http sleep >/dev/null; wait
				[ $(($(date +%s) - begin)) -ge 2 ]; grep -c 'response:404' $W/log`,
			want: "1\n",
		},
		{
			name:   "a postStart that fails",
			pods:   map[string]string{"box": `{restartPolicy: Never, containers: [{name: c, lifecycle: {postStart: {exec: {command: ["false"]}}}, command: [sleep, "1000"]}]}`},
			script: `phase Failed box; get box '{.status.containerStatuses[0].state.terminated.exitCode}'`,
			want:   "137\n",
		},
		{
			name:   "a preStop that does not end",
			pods:   map[string]string{"box": `{terminationGracePeriodSeconds: 2, containers: [{name: c, lifecycle: {preStop: {exec: {command: [sleep, "1000"]}}}, command: [sleep, "1000"]}]}`},
			script: `ready box; begin=$(date +%s); kubectl delete pod box >/dev/null; [ $(($(date +%s) - begin)) -lt 20 ]`,
		},
		{
			name:   "the end of the first process ends all",
			pods:   map[string]string{"box": `{restartPolicy: Never, containers: [{name: c, command: [sh, -c, "(trap '' TERM; while :; do sleep 0.1; done) & sleep 1"]}]}`},
			script: `phase Succeeded box`,
		},
	})
}
