// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

// eachShared runs a test in which so many pods share a shim.
func eachShared(t *testing.T, n int, test func(e *env)) {
	t.Helper()
	harness.OursOnly(t, "pods that share a shim")
	for _, way := range ways() {
		t.Run(way, func(t *testing.T) {
			config := cri.ConfiguredWith(fmt.Sprintf("PodsPerShim = %d", n))
			test(newEnvOn(t, startDaemon(t, shared.Env, config), way))
		})
	}
}

// pods runs pods with a container each, and returns them with the containers.
func (e *env) pods(n int) (pods []*pod, containers []*container) {
	e.Helper()
	for i := range n {
		p := e.pod(fmt.Sprint("p", i))
		pods, containers = append(pods, p), append(containers, p.run("c", forever))
	}
	return pods, containers
}

func TestShared_PodsHaveTheirOwnNamespacesAndLives(t *testing.T) {
	eachShared(t, 3, func(e *env) {
		pods, containers := e.pods(4)
		first := e.shim(pods[0])
		for i, p := range pods {
			if same := e.shim(p) == first; same != (i < 3) {
				e.Errorf("pod %d shares the shim of the first: %t", i, same)
			}
			for _, kind := range []string{"net", "ipc", "uts", "mnt", "pid"} {
				for j := range i {
					if e.namespace(containers[i].pid(), kind) == e.namespace(containers[j].pid(), kind) {
						e.Errorf("pods %d and %d share the namespace %s", i, j, kind)
					}
				}
			}
		}
		pods[0].remove() // the shim was started for it
		containers[1].wantExec("lives", "echo", "lives")
		late := pods[2].run("late", forever)
		late.wantExec("lives", "echo", "lives")
		e.must(pods[1].Stop(e.ctx), "stop")
		pods[1].wantState(runtimeapi.PodSandboxState_SANDBOX_NOTREADY)
		pods[2].wantState(runtimeapi.PodSandboxState_SANDBOX_READY)
		late.wantExec("lives", "echo", "lives")
		pods[1].remove()
		pods[2].remove()
		containers[3].wantExec("lives", "echo", "lives")
	})
}

func TestShared_KilledShimEndsItsPodsAndNoOther(t *testing.T) {
	eachShared(t, 3, func(e *env) {
		pods, containers := e.pods(4)
		e.must(unix.Kill(e.shim(pods[0]), unix.SIGKILL), "kill the shim")
		for i := range 3 {
			pods[i].wantState(runtimeapi.PodSandboxState_SANDBOX_NOTREADY)
			e.wantExited(containers[i])
		}
		pods[3].wantState(runtimeapi.PodSandboxState_SANDBOX_READY)
		containers[3].wantExec("lives", "echo", "lives")
		for _, p := range pods {
			p.remove()
		}
		e.wantPodWorks()
	})
}

// Where the pod has no pause container, its holder's end is the end of the pod alone.
func TestShared_KilledHolderEndsItsPodAndNoOther(t *testing.T) {
	eachShared(t, 3, func(e *env) {
		pods, containers := e.pods(2)
		e.must(unix.Kill(pods[0].info().Pid, unix.SIGKILL), "kill the first process")
		pods[0].wantState(runtimeapi.PodSandboxState_SANDBOX_NOTREADY)
		pods[1].wantState(runtimeapi.PodSandboxState_SANDBOX_READY)
		containers[1].wantExec("lives", "echo", "lives")
		for _, p := range pods {
			p.remove()
		}
	})
}

// A shim that has fewer than 200 descriptors left takes no more pods, and one with fewer than 100 no containers. What it
// has goes on.
func TestShared_ShimNearTheLimitOfDescriptors(t *testing.T) {
	eachShared(t, 9, func(e *env) {
		pods, containers := e.pods(2)
		shim := e.shim(pods[0])
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", shim))
		e.must(err, "descriptors of the shim")
		var before unix.Rlimit
		e.must(unix.Prlimit(shim, unix.RLIMIT_NOFILE, nil, &before), "limit of the shim")
		limit := func(n int) {
			e.Helper()
			soft := unix.Rlimit{Cur: uint64(n), Max: before.Max}
			e.must(unix.Prlimit(shim, unix.RLIMIT_NOFILE, &soft, nil), "limit the shim")
		}
		limit(len(fds) + 170)
		if other := e.pod("other"); e.shim(other) == shim {
			e.Error("a shim with too few descriptors got a pod")
		}
		pods[1].run("second", forever).wantExec("lives", "echo", "lives")
		limit(len(fds) + 60)
		third := pods[1].create("third", forever)
		_, err = e.daemon.Runtime.StartContainer(e.ctx, &runtimeapi.StartContainerRequest{ContainerId: third.id})
		want := fmt.Sprintf("of %d are open (RLIMIT_NOFILE)", len(fds)+60)
		if err == nil || !strings.Contains(err.Error(), want) {
			e.Errorf("a container of a shim that has no descriptors: %v, want %q in the error", err, want)
		}
		containers[0].wantExec("lives", "echo", "lives")
		limit(int(before.Cur))
		pods[1].run("fourth", forever).wantExec("lives", "echo", "lives")
	})
}
