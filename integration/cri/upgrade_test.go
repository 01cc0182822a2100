// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

// upgrade has the shim of a pod become another program in the same process.
func (e *env) upgrade(p *pod, installed *harness.Installed) {
	e.Helper()
	pid := e.shim(p)
	address, err := harness.ShimAddress(e.bundle(p))
	e.must(err, "address of the shim")
	installed.Release(e)
	_, upgraded, err := harness.Upgrade(e.ctx, address, false)
	e.must(err, "upgrade")
	if now := e.shim(p); !upgraded || now != pid {
		e.Errorf("upgraded: %t; the shim is process %d, and was %d", upgraded, now, pid)
	}
	e.wantOnHost(pid)
}

// wantOnHost checks that only the main thread of a shim is in the namespaces of a pod.
func (e *env) wantOnHost(pid int) {
	e.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/ns/net", pid))
	if err != nil || len(threads) < 2 {
		e.Fatalf("threads of the shim: %v, %v, want some", threads, err)
	}
	host, err := os.Readlink("/proc/self/ns/net")
	e.must(err, "network namespace")
	for _, thread := range threads {
		found, err := os.Readlink(thread)
		if err == nil && found != host && !strings.Contains(thread, fmt.Sprintf("/task/%d/", pid)) {
			e.Errorf("%s is %s, and the host's is %s", thread, found, host)
		}
	}
}

func TestUpgrade_PodsDoNotNotice(t *testing.T) {
	harness.OursOnly(t, "a shim that becomes its successor in place")
	for _, tt := range []struct {
		name   string
		change []func(*runtimeapi.PodSandboxConfig)
	}{
		{"pid namespaces of the containers", nil},
		{"pid namespace of the pod", []func(*runtimeapi.PodSandboxConfig){in(func(o *runtimeapi.NamespaceOption) { o.Pid = ofPod })}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, way := range ways() {
				t.Run(way, func(t *testing.T) {
					changed, installed := harness.Install(t, shared.Env)
					e := newEnvOn(t, startDaemon(t, changed, cri.Configured), way)
					p := e.pod("p", tt.change...)
					talker := p.run("talker", []string{"sh", "-c", "i=0; while :; do echo line $i; i=$((i+1)); usleep 1000; done"})
					created := p.create("created", forever)
					network := talker.exec("ip", "-o", "addr", "show", "dev", "eth0")
					told := e.watch()
					for i := range 3 {
						e.upgrade(p, installed)
						talker.wantExec(fmt.Sprint(i), "echo", fmt.Sprint(i))
					}
					if now := talker.exec("ip", "-o", "addr", "show", "dev", "eth0"); now != network || !strings.Contains(now, "eth0") {
						t.Errorf("the network is %q, and was %q", now, network)
					}
					p.wantState(runtimeapi.PodSandboxState_SANDBOX_READY)
					created.start()
					late := p.run("late", forever) // in the namespaces of the pod
					if now := late.exec("ip", "-o", "addr", "show", "dev", "eth0"); now != network {
						t.Errorf("the network of a container that was made later is %q, want %q", now, network)
					}
					e.upgrade(p, installed)
					late.stop(20)
					late.wantExit(0)
					written := strings.Count(talker.log(), "\n")
					talker.wantLog(fmt.Sprintf("line %d\n", written+5))
					wantConsecutive(t, talker.log())
					if n := told.stopped(talker.id); n != 0 {
						t.Errorf("the end of talker was told %d times", n)
					}
					p.remove()
					e.wantPodWorks()
				})
			}
		})
	}
}
