// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import "testing"

func TestKubernetes_Volumes(t *testing.T) {
	const idle = `command: [sleep, "1000"]`
	compare(t, []kubeCase{
		{
			name: "emptyDir: shared, on disk and in memory",
			pods: map[string]string{"box": `{volumes: [{name: d, emptyDir: {}}, {name: m, emptyDir: {medium: Memory, sizeLimit: 16Mi}}], containers: [
				{name: a, ` + idle + `, volumeMounts: [{name: d, mountPath: /d}, {name: m, mountPath: /m}]}, {name: b, ` + idle + `, volumeMounts: [{name: d, mountPath: /e}, {name: m, mountPath: /m, readOnly: true}]}]}`},
			script: `ready box; kubectl exec box -c a -- sh -c 'echo hello >/d/f; echo there >/m/f'; kubectl exec box -c b -- sh -c 'cat /e/f /m/f; touch /m/g 2>/dev/null || echo refused'
				kubectl exec box -c a -- sh -c 'grep " /m " /proc/mounts | cut -d " " -f 3; df -k /m | tail -n 1 | tr -s " " | cut -d " " -f 2'`,
			want: "hello\nthere\nrefused\ntmpfs\n16384\n",
		},
		{
			name: "hostPath: directories, files, their types",
			pods: map[string]string{
				"box": `{volumes: [{name: d, hostPath: {path: $W/d, type: DirectoryOrCreate}}, {name: f, hostPath: {path: $W/f, type: FileOrCreate}}], containers: [
					{name: c, ` + idle + `, volumeMounts: [{name: d, mountPath: /d}, {name: f, mountPath: /f}]}]}`,
				"absent": `{volumes: [{name: d, hostPath: {path: $W/absent, type: Directory}}], containers: [{name: c, ` + idle + `, volumeMounts: [{name: d, mountPath: /d}]}]}`,
			},
			script: `ready box; kubectl exec box -- sh -c 'echo hello >/d/f; echo there >/f'; cat $W/d/f $W/f; rm $W/d/f
				cat >$W/refused <<-'END'
				kubectl get events --field-selector reason=FailedMount,involvedObject.name=absent -o jsonpath='{.items[0].message}' | grep -o "hostPath type check failed"
				END
				await "hostPath type check failed" sh $W/refused`,
			want: "hello\nthere\n",
		},
		{
			name:    "a configMap, a secret: files, variables, updates",
			objects: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {key: before}\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {password: pass}\n",
			pods: map[string]string{"box": `{volumes: [{name: m, configMap: {name: m}}, {name: s, secret: {secretName: s, defaultMode: 0400}}], containers: [{name: c, ` + idle + `,
				env: [{name: KEY, valueFrom: {configMapKeyRef: {name: m, key: key}}}, {name: PASS, valueFrom: {secretKeyRef: {name: s, key: password}}}],
				volumeMounts: [{name: m, mountPath: /m}, {name: s, mountPath: /s}, {name: m, mountPath: /key, subPath: key}]}]}`},
			script: `ready box; kubectl exec box -- sh -c 'cat /m/key; echo; cat /s/password; echo; echo $KEY $PASS; stat -Lc %a /s/password'
				kubectl patch configmap m -p '{"data": {"key": "after"}}' >/dev/null; await after kubectl exec box -- cat /m/key; kubectl exec box -- cat /key`,
			want: "before\npass\nbefore pass\n400\nbefore",
		},
		{
			name:    "projected: configMap, secret, downward API, token",
			objects: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {key: value}\n",
			pods: map[string]string{"box": `{annotations: {say: hello}, volumes: [{name: p, projected: {sources: [{configMap: {name: m}}, {serviceAccountToken: {path: token, expirationSeconds: 600}},
				{downwardAPI: {items: [{path: say, fieldRef: {fieldPath: "metadata.annotations['say']"}}, {path: cpu, resourceFieldRef: {containerName: c, resource: limits.cpu, divisor: 1m}}]}}]}}],
				containers: [{name: c, ` + idle + `, resources: {limits: {cpu: 100m, memory: 32Mi}}, volumeMounts: [{name: p, mountPath: /p, readOnly: true}],
				env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}, {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}, {name: MEM, valueFrom: {resourceFieldRef: {resource: limits.memory}}}]}]}`},
			script: `ready box; kubectl exec box -- sh -c 'cd /p; cat key; echo; cat say; echo; cat cpu; echo; tr . "\n" <token | wc -l; echo $NODE $MEM; ip -o addr show eth0 | grep -c "inet $IP/"'
				kubectl annotate pod box say=again --overwrite >/dev/null; await again kubectl exec box -- cat /p/say
				kubectl exec box -- ls /var/run/secrets/kubernetes.io/serviceaccount | tr '\n' ' '`,
			want: "value\nhello\n100\n2\nnode 33554432\n1\nca.crt namespace token ",
		},
		{
			name: "subPath, subPathExpr, also after a restart",
			pods: map[string]string{"box": `{volumes: [{name: d, emptyDir: {}}], containers: [{name: c, command: [sh, -c, "trap 'exit 1' TERM; while :; do sleep 0.1; done"], env: [{name: NAME, value: expr}],
				volumeMounts: [{name: d, mountPath: /d}, {name: d, mountPath: /sub, subPath: a/b}, {name: d, mountPath: /expr, subPathExpr: $(NAME)}]}]}`},
			script: `ready box; kubectl exec box -- sh -c 'echo one >/sub/f; echo two >/expr/f; cat /d/a/b/f /d/expr/f'; kubectl exec box -- kill 1
				await 1 get box '{.status.containerStatuses[0].restartCount}'; ready box; kubectl exec box -- cat /sub/f /expr/f`,
			want: "one\ntwo\none\ntwo\n",
		},
		{
			name: "read-only: alone, and with all below",
			pods: map[string]string{"box": `{volumes: [{name: d, hostPath: {path: $W}}], containers: [{name: c, ` + idle + `, volumeMounts: [
				{name: d, mountPath: /plain, readOnly: true}, {name: d, mountPath: /all, readOnly: true, recursiveReadOnly: Enabled}]}]}`},
			run:    nil,
			script: `ready box; kubectl exec box -- sh -c 'for d in plain all; do touch /$d/f 2>/dev/null || echo refused; done'; kubectl get pod box -o jsonpath='{.status.containerStatuses[0].volumeMounts[?(@.mountPath=="/all")].recursiveReadOnly}'`,
			want:   "refused\nrefused\nEnabled",
		},
		{
			name: "propagation: HostToContainer, Bidirectional",
			pods: map[string]string{"box": `{volumes: [{name: d, hostPath: {path: $W/share, type: DirectoryOrCreate}}], containers: [
				{name: a, ` + idle + `, securityContext: {privileged: true}, volumeMounts: [{name: d, mountPath: /d, mountPropagation: Bidirectional}]},
				{name: b, ` + idle + `, volumeMounts: [{name: d, mountPath: /d, mountPropagation: HostToContainer}]}, {name: c, ` + idle + `, volumeMounts: [{name: d, mountPath: /d}]}]}`},
			script: `ready box; kubectl exec box -c a -- sh -c 'mkdir /d/m; mount -t tmpfs none /d/m; touch /d/m/f'; ls $W/share/m; kubectl exec box -c b -- ls /d/m; kubectl exec box -c c -- ls /d/m; umount $W/share/m; kubectl exec box -c a -- ls /d/m; rmdir $W/share/m`,
			want:   "f\nf\n",
		},
		{
			name:   "an image as a volume",
			pods:   map[string]string{"box": `{volumes: [{name: i, image: {reference: "shim.test/volume:latest", pullPolicy: IfNotPresent}}], containers: [{name: c, ` + idle + `, volumeMounts: [{name: i, mountPath: /i}]}]}`},
			script: `ready box; kubectl exec box -- sh -c 'cat /i/greeting; touch /i/f 2>/dev/null || echo refused'`,
			want:   "hello\nrefused\n",
		},
		{
			name:   "fsGroup",
			pods:   map[string]string{"box": `{securityContext: {runAsUser: 1000, runAsGroup: 1000, fsGroup: 4242, supplementalGroups: [77]}, volumes: [{name: d, emptyDir: {}}], containers: [{name: c, ` + idle + `, volumeMounts: [{name: d, mountPath: /d}]}]}`},
			script: `ready box; kubectl exec box -- sh -c 'touch /d/f; stat -c "%u %g" /d/f; id -G | tr " " "\n" | sort -n | tr "\n" " "'`,
			want:   "1000 4242\n77 1000 4242 4444 ",
		},
		{
			name: "emptyDir over its limit: evicted", changes: true,
			pods:   map[string]string{"box": `{restartPolicy: Never, volumes: [{name: d, emptyDir: {sizeLimit: 1Mi}}], containers: [{name: c, command: [sh, -c, "head -c 5000000 /dev/zero >/d/f; exec sleep 1000"], volumeMounts: [{name: d, mountPath: /d}]}]}`},
			script: `phase Failed box; get box '{.status.reason}: {.status.message}'`,
			want:   "Evicted: Usage of EmptyDir volume \"d\" exceeds the limit \"1Mi\". \n",
		},
	})
}
