// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"fmt"
	"strings"
	"testing"
)

func TestKubernetes_Probes(t *testing.T) {
	const idle = `command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 0.1; done"]`
	compare(t, []kubeCase{
		{
			name: "readiness by exec: ready, not ready, ready",
			pods: map[string]string{"box": `containers: [{name: c, ` + idle + `, readinessProbe: {exec: {command: [test, -e, /tmp/f]}, periodSeconds: 1, failureThreshold: 1}}]`},
			script: `phase Running box; kubectl exec box -- touch /tmp/f; ready box; kubectl exec box -- rm /tmp/f
				await false get box '{.status.containerStatuses[0].ready}'; kubectl exec box -- touch /tmp/f; ready box; get box '{.status.containerStatuses[0].restartCount}'`,
			want: "0\n",
		},
		{
			name: "liveness by exec: a failure restarts",
			pods: map[string]string{"box": `containers: [{name: c, ` + idle + `, livenessProbe: {exec: {command: [test, "!", -e, /tmp/f]}, periodSeconds: 1, failureThreshold: 1}}]`},
			script: `ready box; kubectl exec box -- touch /tmp/f; await 1 get box '{.status.containerStatuses[0].restartCount}'; ready box
				get box '{.status.containerStatuses[0].lastState.terminated.exitCode}'`,
			want: "0\n",
		},
		{
			name: "an exec probe that takes too long",
			pods: map[string]string{"box": `containers: [{name: c, ` + idle + `, readinessProbe: {exec: {command: [sleep, "1001"]}, periodSeconds: 1, timeoutSeconds: 1}}]`},
			script: `phase Running box; cat >$W/count <<-'END'
				[ $(kubectl get events --field-selector reason=Unhealthy -o jsonpath='{.items[*].count}') -ge 3 ] && echo enough
				END
				await enough sh $W/count; [ "$(kubectl exec box -- sh -c 'ps | grep -c "[s]leep 1001" || true')" -le 1 ] && echo ended
				kubectl get events --field-selector reason=Unhealthy -o jsonpath='{.items[0].message}'`,
			want: "ended\nReadiness probe failed: command timed out: \"sleep 1001\" timed out after 1s",
		},
		{
			name: "what a failed exec probe wrote",
			pods: map[string]string{"box": `containers: [{name: c, ` + idle + `, readinessProbe: {exec: {command: [sh, -c, "echo why; echo not >&2; exit 3"]}, periodSeconds: 1}}]`},
			script: `phase Running box; await "Readiness probe failed: why
not" kubectl get events --field-selector reason=Unhealthy -o jsonpath='{.items[0].message}'`,
		},
		{
			name: "startup before liveness",
			pods: map[string]string{"box": `containers: [{name: c, command: [sh, -c, "trap 'exit 0' TERM; sleep 4; touch /tmp/f; while :; do sleep 0.1; done"],
				startupProbe: {exec: {command: [test, -e, /tmp/f]}, periodSeconds: 1, failureThreshold: 30}, livenessProbe: {exec: {command: [test, -e, /tmp/f]}, periodSeconds: 1, failureThreshold: 1}}]`},
			script: `ready box; get box '{.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].started}'`,
			want:   "0 true\n",
		},
		{
			name:   "a startup that fails",
			pods:   map[string]string{"box": `{restartPolicy: Never, containers: [{name: c, command: [sleep, "1000"], startupProbe: {exec: {command: ["false"]}, periodSeconds: 1, failureThreshold: 2}}]}`},
			script: `phase Failed box; get box '{.status.containerStatuses[0].state.terminated.exitCode}'`,
			want:   "137\n",
		},
		{
			name: "by HTTP, and by TCP",
			pods: map[string]string{
				"http": `containers: [{name: c, command: [sh, -c, "mkdir /www; echo ok >/www/health; exec busybox httpd -f -p 8080 -h /www"],
					readinessProbe: {httpGet: {path: /health, port: 8080}, periodSeconds: 1}, livenessProbe: {httpGet: {path: /health, port: 8080}, periodSeconds: 1, failureThreshold: 1, initialDelaySeconds: 2}}]`,
				"tcp": `containers: [{name: c, command: [sh, -c, "exec busybox httpd -f -p 8080 -h /"], readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}}]`,
			},
			script: `ready http tcp; kubectl exec http -- rm /www/health; await 1 get http '{.status.containerStatuses[0].restartCount}'; ready http tcp
				get tcp '{.status.containerStatuses[0].restartCount}'`,
			want: "0\n",
		},
		{
			name: "by gRPC",
			pods: map[string]string{"box": `{volumes: [{name: p, hostPath: {path: $BIN/health}}], containers: [{name: c, command: [/health, ":8080", /tmp/f], volumeMounts: [{name: p, mountPath: /health}],
				readinessProbe: {grpc: {port: 8080}, periodSeconds: 1}, livenessProbe: {grpc: {port: 8080}, periodSeconds: 1, failureThreshold: 3}}]}`},
			script: `ready box; kubectl exec box -- touch /tmp/f; await 1 get box '{.status.containerStatuses[0].restartCount}'; ready box; get box '{.status.containerStatuses[0].lastState.terminated.exitCode}'`,
			want:   "2\n",
		},
		{
			name: "liveness, with a grace of its own", changes: true,
			pods: map[string]string{"box": `{terminationGracePeriodSeconds: 600, containers: [{name: c, command: [sleep, "1000"],
				livenessProbe: {exec: {command: ["false"]}, periodSeconds: 1, failureThreshold: 1, terminationGracePeriodSeconds: 1}}]}`},
			script: `until [ "$(get box '{.status.containerStatuses[0].restartCount}')" -ge 1 ] 2>/dev/null; do sleep 0.3; done; get box '{.status.containerStatuses[0].lastState.terminated.exitCode}'; kubectl delete pod box --grace-period=1 >/dev/null`,
			want:   "137\n",
		},
		thirtyProbes(),
	})
}

// thirtyProbes is thirty pods with an exec probe every second. All stay ready, and there are as many probes as that.
func thirtyProbes() kubeCase {
	pods := map[string]string{}
	var names []string
	for n := range 30 {
		name := fmt.Sprintf("p%02d", n)
		names = append(names, name)
		pods[name] = `containers: [{name: c, command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 1; done"],
			readinessProbe: {exec: {command: [sh, -c, "echo >>/tmp/probes"]}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 1}}]`
	}
	return kubeCase{
		name:  "thirty pods with an exec probe each second",
		alone: true,
		pods:  pods,
		script: `ready ` + strings.Join(names, " ") + `; kubectl exec p00 -- sh -c 'n=$(wc -l </tmp/probes); until [ $(wc -l </tmp/probes) -ge $((n + 20)) ]; do sleep 1; done; echo enough'
			kubectl get pods -o jsonpath='{.items[*].status.containerStatuses[0].ready} {.items[*].status.containerStatuses[0].restartCount}' | tr ' ' '\n' | sort | uniq -c | tr -s ' '
			kubectl get events --field-selector reason=Unhealthy -o name; kubectl exec p29 -- sh -c 'ps | grep -c "[e]cho >>" || true'`,
		want: "enough\n 30 0\n 30 true\n0\n",
	}
}
