// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"os"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

func TestPod_RunsAndLeavesNothing(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		p.wantState(runtimeapi.PodSandboxState_SANDBOX_READY)
		c := p.run("c", []string{"sh", "-c", "echo out; echo err >&2; exit 3"})
		c.wantExit(3)
		c.wantLog("out\n")
		c.wantLog("err\n")
		p.remove()
	})
}

func TestPod_LivesWithoutContainers(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		for range 2 { // the second has no container beside it to hold anything
			c := p.run("c", forever)
			c.wantExec("hello", "echo", "hello")
			c.end()
			c.remove()
			p.wantState(runtimeapi.PodSandboxState_SANDBOX_READY)
		}
		p.remove()
	})
}

func TestPod_HasOneShimForAllContainers(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		p.run("a", forever)
		p.run("b", forever)
		if shims := harness.ShimsOf(e.daemon.Address, ""); len(shims) != 1 {
			e.Errorf("shims = %v, want one", shims)
		}
	})
}

func TestHandler_ReportsItsFeatures(t *testing.T) {
	eachWay(t, func(e *env) {
		r, err := e.daemon.Runtime.Status(e.ctx, &runtimeapi.StatusRequest{})
		e.must(err, "status")
		for _, h := range r.GetRuntimeHandlers() {
			if h.GetName() != e.handler {
				continue
			}
			if f := h.GetFeatures(); !f.GetUserNamespaces() || !f.GetRecursiveReadOnlyMounts() {
				e.Errorf("features of %s = %v, want user namespaces and recursive read-only mounts", h.GetName(), f)
			}
			return
		}
		e.Errorf("no handler %s in %v", e.handler, r.GetRuntimeHandlers())
	})
}

func TestHandler_OptionsReachTheShim(t *testing.T) {
	eachWay(t, func(e *env) {
		if e.way == cri.PodSandbox {
			e.handler = cri.Options
		} else {
			e.Skip("the handler with options is of the other way")
		}
		hasKeyring := func() bool {
			p := e.pod("p")
			c := p.run("c", forever)
			keys, err := os.ReadFile("/proc/keys") // of all users, for root
			e.must(err, "keys of the machine")
			p.remove()
			return strings.Contains(string(keys), "_ses."+c.id)
		}
		with := hasKeyring() // NoNewKeyring is among the options
		e.handler = cri.PodSandbox
		if without := hasKeyring(); with || !without {
			e.Errorf("a container has a keyring of its own: %t with the option NoNewKeyring, %t without", with, without)
		}
	})
}
