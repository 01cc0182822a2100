// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"runtime"
	"testing"

	"sandbox.internal/shim/integration/cri"
)

// showCPUs is a program that keeps the CPUs on which it may run in /tmp/cpus.
const showCPUs = `[sh, -c, "trap 'exit 0' TERM; while :; do grep Cpus_allowed_list /proc/self/status | cut -f 2 >/tmp/cpus.part; mv /tmp/cpus.part /tmp/cpus; sleep 0.2; done"]`

// followPods is a default configuration by which a container without a cpuset of its own has the CPUs of its pod.
const followPods = "CpusetSource = 'parent'\n"

// On cgroup v2 this shim is told to let containers follow their pods, too. What the CPU manager says counts.
func TestKubernetes_CPUManager(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("SKIPPED: needs two CPUs")
	}
	if unified() {
		cri.SetDefaults(t, followPods)
	}
	reconfigure(t, map[string]any{"cpuManagerPolicy": "static", "systemReserved": map[string]string{"cpu": "500m"}})
	compare(t, []kubeCase{{
		name: "the static CPU manager: exclusive CPUs, which the others leave", alone: true,
		pods: map[string]string{"shared": `containers: [{name: c, command: ` + showCPUs + `}]`},
		run: func(s *session) {
			s.pods(map[string]string{"own": `containers: [{name: c, command: ` + showCPUs + `, resources: {limits: {cpu: "1", memory: 64Mi}}}]`})
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

// Somebody gives CPUs to the pod, and to nothing below it.
func TestKubernetes_CPUSource(t *testing.T) {
	if !unified() {
		t.Skip("SKIPPED: CPUs that follow a cgroup need cgroup v2: make test-kubernetes ON=v2")
	}
	cri.SetDefaults(t, followPods)
	const show = `pod=$(dirname /sys/fs/cgroup$(sed -n 's/^0:://p' /proc/$(pid box)/cgroup))
		`
	compare(t, []kubeCase{{
		name: "CPUs of the pod's cgroup, which its containers follow", alone: true,
		pods: map[string]string{"box": `containers: [{name: c, command: ` + showCPUs + `}]`},
		script: cgroupScript + `ready box; ` + show + `all=$(cat $pod/cpuset.cpus.effective)
			for cpus in 0 1 "$all"; do
				echo $cpus >$pod/cpuset.cpus; await "$cpus" kubectl exec box -- cat /tmp/cpus
				[ "$(kubectl exec box -- grep Cpus_allowed_list /proc/self/status | cut -f 2)" = "$cpus" ] && echo exec
			done`,
		want: "exec\nexec\nexec\n",
		ours: func(s *session) {
			s.Quiet(cgroupScript + show + `echo 1 >$pod/cpuset.cpus; await 1 cat /sys/fs/cgroup$(sed -n 's/^0:://p' /proc/$(pid box)/cgroup)/cpuset.cpus.effective`)
		},
	}})
}
