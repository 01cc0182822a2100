// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

func (s *session) containerID(pod string) string {
	id := s.Quiet(`kubectl get pod ` + pod + ` -o jsonpath='{.status.containerStatuses[0].containerID}'`)
	return strings.TrimPrefix(id, "containerd://")
}

// shims are those of this cluster's pods.
func (c *cluster) shims() []harness.Proc { return harness.ShimsOf(c.Address, "") }

// kill ends processes, and what is in the cgroup of pods, without warning, and waits for their end.
func kill(list []harness.Proc) error {
	for _, p := range list {
		_ = unix.Kill(p.Pid, unix.SIGKILL) // it may be gone
	}
	return harness.Poll(func() error {
		for _, p := range list {
			if harness.Alive(p.Pid) {
				return fmt.Errorf("%v lives", p)
			}
		}
		return nil
	})
}

// reboot does to a node what a power failure does: all processes of pods end, and what is in /run is gone. A pod does
// not see that the machine's kernel is the same.
func (s *session) reboot() error {
	err := errors.Join(s.end(syscall.SIGKILL), s.Kill())
	err = errors.Join(err, kill(s.shims()), kill(harness.InCgroup("/"+scopeName)))
	return errors.Join(err, s.unmountState(), os.RemoveAll(s.State), s.setSysctl(bootID, uuid.NewString()),
		s.Daemon.Start(s.Context), s.startKubelet(s.Context), s.awaitNode(s.Context))
}

// unmountState detaches everything below containerd's state, and removes the states of runtimes.
func (s *session) unmountState() error {
	var err error
	for _, point := range s.scope().Mounts() {
		err = errors.Join(err, unix.Unmount(point, unix.MNT_DETACH))
	}
	// containerd looks for what to remove where the state was.
	work := filepath.Join(s.cluster.Dir, "root", "io.containerd.runtime.v2.task", "k8s.io")
	return errors.Join(err, removeAll("/run/containerd/runc"), removeAll(work), s.removeSockets())
}

func (c *cluster) removeSockets() error { return removeAll(c.Sockets) }

func removeAll(dir string) error {
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	for _, name := range names {
		err = errors.Join(err, os.RemoveAll(name))
	}
	return err
}

func TestKubernetes_Node(t *testing.T) {
	const count = `[sh, -c, "trap 'echo asked; exit 5' TERM; n=0; while :; do n=$((n+1)); echo $n; sleep 0.1; done"]`
	counts := map[string]string{"box": `{restartPolicy: Never, terminationGracePeriodSeconds: 30, containers: [{name: c, command: ` + count + `}]}`}
	// The output has no gap.
	const complete = `kubectl logs box | grep -v asked >$W/got; seq $(wc -l <$W/got) | cmp - $W/got && echo all; `
	compare(t, []kubeCase{
		{
			name: "a restart of containerd: pods go on", alone: true, pods: counts,
			run: func(s *session) {
				s.Quiet(`ready box`)
				s.Must(errors.Join(s.Stop(), s.Daemon.Start(s.Context)), "restart containerd")
			},
			script: `await hello kubectl exec box -- echo hello; ready box; get box '{.status.containerStatuses[0].restartCount}'; ` + complete,
			want:   "0\nall\n",
		},
		{
			name: "containerd is killed under an exec probe", alone: true,
			pods: map[string]string{"box": `containers: [{name: c, command: [sleep, "1000"], readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}}]`},
			run: func(s *session) {
				s.Quiet(`ready box`)
				s.Must(errors.Join(s.Kill(), s.Daemon.Start(s.Context)), "restart containerd")
			},
			script: `await hello kubectl exec box -- echo hello; ready box; get box '{.status.containerStatuses[0].restartCount}'`,
			want:   "0\n",
		},
		{
			name: "a container that ends while containerd is dead", alone: true,
			pods: map[string]string{"box": `{restartPolicy: Never, containers: [{name: c, command: [sh, -c, "sleep 3; echo end; exit 9"]}]}`},
			run: func(s *session) {
				s.Quiet(`ready box`)
				id := s.containerID("box")
				s.Must(s.Kill(), "kill containerd")
				s.Must(harness.Poll(func() error {
					for _, p := range harness.InCgroup("/" + scopeName) {
						if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.Pid)); err == nil && strings.Contains(string(text), id) {
							return fmt.Errorf("%v lives", p)
						}
					}
					return nil
				}), "the end of the container")
				s.Must(s.Daemon.Start(s.Context), "start containerd")
			},
			script: `phase Failed box; get box '{.status.containerStatuses[0].state.terminated.exitCode}'; kubectl logs box`,
			want:   "9\nend\n",
			fails:  map[string]string{runcShim: "the exit code is 255, and the last output is lost"},
		},
		{
			name: "a restart of the kubelet: pods go on", alone: true, pods: counts,
			run: func(s *session) {
				s.Quiet(`ready box`)
				s.Must(s.withoutKubelet(s.Context, func() error { return nil }), "restart the kubelet")
			},
			script: `ready box; await hello kubectl exec box -- echo hello; get box '{.status.containerStatuses[0].restartCount}'; ` + complete,
			want:   "0\nall\n",
		},
		{
			name: "a killed shim: the container is started again", alone: true, pods: box(),
			mask: restarts, reason: "what is told of the former container",
			run: func(s *session) {
				s.Quiet(`ready box`)
				s.Must(kill(s.shims()), "kill the shim")
				if s.way == runcShim { // it leaves its sockets
					s.Must(s.removeSockets(), "sockets")
				}
			},
			script: `await 1 get box '{.status.containerStatuses[0].restartCount}'; ready box; kubectl exec box -- echo hello`,
			want:   "hello\n",
		},
		{
			name: "the pause container is killed", alone: true, pods: box(),
			run: func(s *session) {
				s.Quiet(`ready box`)
				for _, p := range harness.InCgroup("/" + scopeName) {
					if len(p.Argv) == 1 && p.Argv[0] == "/pause" {
						s.Must(kill([]harness.Proc{p}), "kill the pause container")
						s.Quiet(`await 1 get box '{.status.containerStatuses[0].restartCount}'`)
					}
				}
			},
			script: `ready box; kubectl exec box -- echo hello`,
			want:   "hello\n",
			mask:   restarts, reason: "there is none",
		},
		{
			name: "a reboot of the node", alone: true,
			pods: map[string]string{
				"box":  `{volumes: [{name: v, emptyDir: {}}], containers: [{name: c, command: [sh, -c, "echo run >>/v/f; exec sleep 1000"], volumeMounts: [{name: v, mountPath: /v}]}]}`,
				"done": `{restartPolicy: Never, containers: [{name: c, command: ["true"]}]}`,
				"init": `{initContainers: [{name: i, command: [echo, init]}, {name: s, restartPolicy: Always, command: [sleep, "1000"]}], containers: [{name: c, command: [sleep, "1000"]}]}`,
			},
			run: func(s *session) {
				s.Quiet(`phase Succeeded done; ready box init`)
				s.Must(s.reboot(), "reboot")
			},
			script: `await 1 get box '{.status.containerStatuses[0].restartCount}'; await 1 get init '{.status.containerStatuses[0].restartCount}'; ready box init; kubectl exec box -- cat /v/f; get done {.status.phase}`,
			want:   "run\nrun\nSucceeded\n",
		},
		{
			name: "drain, uncordon", alone: true,
			objects: `apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: b}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: d}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec: {replicas: 3, selector: {matchLabels: {app: d}}, template: {metadata: {labels: {app: d}}, spec: {$CLASS, terminationGracePeriodSeconds: 5,
  containers: [{name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 0.1; done"]}]}}}
`,
			pods: box(),
			script: `ready box; kubectl rollout status deployment/d --timeout=90s >/dev/null; kubectl drain $NODE --force --timeout=5s >/dev/null 2>&1 || echo refused; kubectl delete pdb b >/dev/null; kubectl drain $NODE --force --delete-emptydir-data --timeout=90s >/dev/null 2>$W/err || { cat $W/err; exit 1; }
				kubectl get pods -o jsonpath='{.items[*].status.phase}'; echo; kubectl uncordon $NODE >/dev/null; kubectl rollout status deployment/d --timeout=90s >/dev/null; kubectl get pods -o jsonpath='{.items[*].status.phase}'`,
			want: "refused\nPending Pending Pending\nRunning Running Running",
		},
		hundredAndTen(),
	})
}

// hundredAndTen is as many pods as a node has by default.
func hundredAndTen() kubeCase {
	return kubeCase{
		name: "110 pods", alone: true,
		objects: `apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec: {replicas: 110, selector: {matchLabels: {app: d}}, template: {metadata: {labels: {app: d}}, spec: {$CLASS, terminationGracePeriodSeconds: 5,
  containers: [{name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 1; done"]}]}}}
`,
		script: `kubectl rollout status deployment/d --timeout=230s >/dev/null; kubectl get pods -o jsonpath='{.items[*].status.containerStatuses[0].restartCount}' | tr ' ' '\n' | sort | uniq -c | tr -s ' '
			kubectl get pods -o name | head -n 110 | while read -r pod; do kubectl exec $pod -- echo hello </dev/null; done | sort | uniq -c | tr -s ' '`,
		want: " 110 0\n 110 hello\n",
	}
}
