// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"sandbox.internal/shim/integration/harness"
)

// seccompProfile refuses mkdir alone. The kubelet has it as deny.json.
func (c *cluster) writeSeccompProfile() error {
	text, err := json.Marshal(map[string]any{
		"defaultAction": "SCMP_ACT_ALLOW",
		"syscalls":      []any{map[string]any{"names": []string{"mkdir", "mkdirat"}, "action": "SCMP_ACT_ERRNO"}},
	})
	if err != nil {
		return err
	}
	dir := filepath.Join(c.kubeletDir(), "seccomp")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "deny.json"), text, 0o644)
}

func TestKubernetes_Security(t *testing.T) {
	const idle = `command: [sleep, "1000"]`
	harness.Must(t, shared.writeSeccompProfile())
	compare(t, []kubeCase{
		{
			name: "runAsUser, runAsGroup, supplementalGroups",
			pods: map[string]string{
				"box":    `{securityContext: {runAsUser: 1000, runAsGroup: 2000, supplementalGroups: [3000]}, containers: [{name: c, ` + idle + `}, {name: d, ` + idle + `, securityContext: {runAsUser: 77}}]}`,
				"strict": `{securityContext: {runAsUser: 1000, supplementalGroupsPolicy: Strict}, containers: [{name: c, ` + idle + `}]}`,
			},
			script: `ready box strict; kubectl exec box -c c -- id; kubectl exec box -c d -- id; kubectl exec strict -- id -G`,
			want:   "uid=1000(tester) gid=2000 groups=2000,3000,4444(extra)\nuid=77 gid=2000 groups=2000,3000\n1000\n",
		},
		{
			name:   "runAsNonRoot: root is refused",
			pods:   map[string]string{"box": `{securityContext: {runAsNonRoot: true}, containers: [{name: c, ` + idle + `}]}`},
			script: `await CreateContainerConfigError get box '{.status.containerStatuses[0].state.waiting.reason}'`,
		},
		{
			name: "capabilities, no new privileges, seccomp",
			pods: map[string]string{
				"box":  `containers: [{name: c, ` + idle + `}]`,
				"drop": `containers: [{name: c, ` + idle + `, securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL], add: [NET_ADMIN]}, seccompProfile: {type: RuntimeDefault}}}]`,
				"deny": `{securityContext: {seccompProfile: {type: Localhost, localhostProfile: deny.json}}, containers: [{name: c, ` + idle + `}]}`,
			},
			script: `ready box drop deny; for pod in box drop deny; do kubectl exec $pod -- sh -c 'grep -E "^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs|Seccomp):" /proc/1/status; grep -E "^(CapEff|NoNewPrivs|Seccomp):" /proc/self/status' | tr '\t\n' '  '; echo; done
				kubectl exec deny -- mkdir /tmp/d 2>&1 | head -n 1`,
			want: "CapInh: 0000000000000000 CapPrm: 00000000a80425fb CapEff: 00000000a80425fb CapBnd: 00000000a80425fb CapAmb: 0000000000000000 NoNewPrivs: 0 Seccomp: 0 CapEff: 00000000a80425fb NoNewPrivs: 0 Seccomp: 0 \n" +
				"CapInh: 0000000000000000 CapPrm: 0000000000001000 CapEff: 0000000000001000 CapBnd: 0000000000001000 CapAmb: 0000000000000000 NoNewPrivs: 1 Seccomp: 2 CapEff: 0000000000001000 NoNewPrivs: 1 Seccomp: 2 \n" +
				"CapInh: 0000000000000000 CapPrm: 00000000a80425fb CapEff: 00000000a80425fb CapBnd: 00000000a80425fb CapAmb: 0000000000000000 NoNewPrivs: 0 Seccomp: 2 CapEff: 00000000a80425fb NoNewPrivs: 0 Seccomp: 2 \n" +
				"mkdir: can't create directory '/tmp/d': Operation not permitted\n",
		},
		{
			name:   "privileged",
			pods:   map[string]string{"box": `containers: [{name: c, ` + idle + `, securityContext: {privileged: true}}]`},
			script: `ready box; kubectl exec box -- sh -c 'mount -t tmpfs none /tmp && echo mounted; test -e /dev/kmsg && echo devices; mount | grep -c "^proc on /proc/.*ro" || true'`,
			want:   "mounted\ndevices\n0\n",
		},
		{
			name:   "readOnlyRootFilesystem, what /proc and /sys hide",
			pods:   map[string]string{"box": `containers: [{name: c, ` + idle + `, securityContext: {readOnlyRootFilesystem: true}}]`},
			script: `ready box; kubectl exec box -- sh -c 'touch /f 2>/dev/null || echo refused; grep -E " /(proc|sys)(/| )" /proc/mounts | cut -d " " -f 2,3 | sort | grep -v /sys/fs/cgroup >&2'`,
			want:   "refused\n",
		},
		{
			name:   "sysctls, safe and allowed ones",
			pods:   map[string]string{"box": `{securityContext: {sysctls: [{name: net.ipv4.ip_unprivileged_port_start, value: "80"}, {name: net.core.somaxconn, value: "321"}, {name: kernel.msgmax, value: "4444"}]}, containers: [{name: c, ` + idle + `}]}`},
			script: `ready box; kubectl exec box -- cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/net/core/somaxconn /proc/sys/kernel/msgmax`,
			want:   "80\n321\n4444\n",
		},
		{
			name: "users of a pod's own (hostUsers: false)",
			pods: map[string]string{"box": `{hostUsers: false, volumes: [{name: e, emptyDir: {}}], containers: [{name: a, ` + idle + `, volumeMounts: [{name: e, mountPath: /e}]}, {name: b, ` + idle + `, securityContext: {runAsUser: 1000}}]}`},
			script: `ready box; kubectl exec box -c a -- sh -c 'id -u; awk "{print (\$1 == 0) (\$2 >= 65536) \$3}" /proc/self/uid_map; touch /e/f; stat -c %u /e/f /var/run/secrets/kubernetes.io/serviceaccount/..data/token'
				kubectl exec box -c b -- id -u; a=$(kubectl exec box -c a -- readlink /proc/self/ns/user); b=$(kubectl exec box -c b -- readlink /proc/self/ns/user); [ "$a" = "$b" ] && [ "$a" != "$(readlink /proc/self/ns/user)" ] && echo own`,
			want: "0\n1165536\n0\n0\n1000\nown\n",
		},
		{
			name:   "namespaces of the host: network, PID, IPC",
			pods:   map[string]string{"box": `{hostNetwork: true, hostPID: true, hostIPC: true, containers: [{name: c, ` + idle + `}]}`},
			script: `ready box; for ns in net pid ipc uts; do [ "$(kubectl exec box -- readlink /proc/self/ns/$ns)" = "$(readlink /proc/self/ns/$ns)" ] && echo $ns; done; kubectl get pod box -o jsonpath='{.status.podIP}'`,
			want:   "net\npid\nipc\nuts\n10.99.0.1",
		},
		{
			name:   "shareProcessNamespace",
			pods:   map[string]string{"box": `{shareProcessNamespace: true, containers: [{name: a, ` + idle + `}, {name: b, command: [sleep, "1001"]}]}`},
			script: `ready box; kubectl exec box -c a -- sh -c 'ps | grep -c "[s]leep 1001"; kill $(ps | awk "/[s]leep 1001/ {print \$1}")'; await 1 get box '{.status.containerStatuses[1].restartCount}'; get box '{.status.containerStatuses[0].restartCount}'`,
			want:   "1\n0\n",
		},
		{
			name: "containers of a pod share network, IPC and host name",
			pods: map[string]string{"box": `{hostname: here, subdomain: there, hostAliases: [{ip: 10.1.2.3, hostnames: [alias]}], dnsPolicy: None, dnsConfig: {nameservers: [10.9.9.9], searches: [example.org], options: [{name: ndots, value: "3"}]}, containers: [{name: a, ` + idle + `}, {name: b, ` + idle + `}]}`},
			script: `ready box; for c in a b; do kubectl exec box -c $c -- sh -c 'for n in net ipc uts pid mnt; do readlink /proc/self/ns/$n; done' | sort >$W/$c; done; comm -12 $W/a $W/b | cut -d: -f 1 | sort | tr '\n' ' '
				kubectl exec box -c b -- sh -c 'hostname; cat /etc/resolv.conf; grep -c "10.1.2.3.*alias" /etc/hosts; grep -c "here.there" /etc/hosts'`,
			want: "ipc net uts here\nsearch example.org\nnameserver 10.9.9.9\noptions ndots:3\n1\n1\n",
		},
	})
}
