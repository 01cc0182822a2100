// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"encoding/json"
	"os/exec"
	"testing"

	"sandbox.internal/shim/integration/harness"
)

// Pods are shown by the name that Kubernetes gives them, also empty ones.
func TestSandboxctl_NamesPodsAndContainers(t *testing.T) {
	binary, err := harness.Sandboxctl(publicDir(t, "sandboxctl"))
	if err != nil {
		t.Fatal(err)
	}
	type container struct {
		Name, State string
		Pause       bool
	}
	type pod struct {
		ID, Name   string
		Sandbox    bool
		Shim       struct{ Pid int }
		Containers []container
	}
	eachWay(t, func(e *env) {
		ps := func() pod {
			e.Helper()
			cmd := exec.CommandContext(e.ctx, binary, "--address", e.daemon.Address, "--state", e.daemon.State, "ps", "-o", "json")
			cmd.Stderr = e.Output()
			out, err := cmd.Output()
			e.must(err, "sandboxctl ps")
			var s struct{ Pods []pod }
			e.must(json.Unmarshal(out, &s), "decode")
			if len(s.Pods) != 1 {
				e.Fatalf("pods = %+v, want one", s.Pods)
			}
			return s.Pods[0]
		}
		p := e.pod("p")
		config := e.podConfig("p").GetMetadata()
		want := config.GetNamespace() + "/" + config.GetName()
		if got := ps(); got.Name != want || !got.Sandbox || got.Shim.Pid != e.shim(p) {
			e.Errorf("empty pod = %+v, want %s, a sandbox, with shim %d", got, want, e.shim(p))
		}
		p.run("c", forever)
		found := false
		for _, c := range ps().Containers {
			found = found || c == container{Name: "c", State: "running"}
		}
		if got := ps(); !found || got.Name != want {
			e.Errorf("pod = %+v, want c in it, which runs", got)
		}
		p.remove()
	})
}
