// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandboxctl

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
)

func TestPs_ShowsEachState(t *testing.T) {
	e := newEnv(t)
	const limit = 64 << 20
	running := e.run("running", harness.Ours, []oci.SpecOpts{oci.WithMemoryLimit(limit)})
	e.exec(running, "e1", true, "true")
	e.exec(running, "e2", false, "sleep", "1000")
	created := e.create("created", harness.Ours, nil)
	paused := e.run("paused", harness.Ours, nil)
	e.must(paused.Pause(e.ctx))
	stopped := e.run("stopped", harness.Ours, []oci.SpecOpts{oci.WithProcessArgs("sh", "-c", "exit 3")})
	ended, err := stopped.Wait(e.ctx)
	e.must(err)
	<-ended
	e.container("no-task", harness.Ours, nil)
	old := e.run("old", runc, nil)
	oldPaused := e.run("old-paused", runc, nil)
	e.must(oldPaused.Pause(e.ctx))

	pods, all := e.ps()
	for id, want := range map[string]row{
		"running":    {State: "running", Pid: int(running.Pid()), Runtime: harness.Ours},
		"created":    {State: "created", Pid: int(created.Pid()), Runtime: harness.Ours},
		"paused":     {State: "paused", Pid: int(paused.Pid()), Runtime: harness.Ours},
		"stopped":    {State: "stopped", Pid: int(stopped.Pid()), Runtime: harness.Ours, ExitStatus: 3},
		"no-task":    {State: "no-task", Runtime: harness.Ours},
		"old":        {State: "running", Pid: int(old.Pid()), Runtime: runc},
		"old-paused": {State: "paused", Pid: int(oldPaused.Pid()), Runtime: runc},
	} {
		got := all[id]
		if got.State != want.State || got.Pid != want.Pid || got.Runtime != want.Runtime || got.ExitStatus != want.ExitStatus || got.Error != "" {
			t.Errorf("%s = %+v, want %+v", id, got, want)
		}
		if lives := want.State != "no-task" && want.State != "stopped"; lives && (got.Usage.Pids == 0 || got.Usage.CPUs == "" || got.Usage.CPU == 0) {
			t.Errorf("usage of %s = %+v", id, got.Usage)
		}
	}
	if len(all) != 7 {
		t.Errorf("%d containers, want 7", len(all))
	}
	if got := all["running"]; !got.ExecsKnown || got.Execs != 1 || got.ExecsStarted != 2 || got.Usage.Limit != limit || got.Usage.Pids != 2 {
		t.Errorf("running = %+v, want one exec of two, a limit of %d and two processes", got, limit)
	}
	if all["old"].ExecsKnown {
		t.Error("the execs of a container of runc's shim are said to be known")
	}
	for _, p := range pods {
		wantShim := p.ID != "no-task"
		if got := p.Shim.Pid != 0 && p.Shim.RSS != 0; got != wantShim || p.Sandbox {
			t.Errorf("pod %+v: has a shim: %t, want %t, and no sandbox", p, got, wantShim)
		}
	}
	table := e.ctl("ps")
	for _, want := range []string{"NAMESPACE", "paused", "1/2", "/64M", "runc.v2", "no-task"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in the table:\n%s", want, table)
		}
	}
}

func TestPs_SandboxWithoutAPauseContainer(t *testing.T) {
	e := newEnv(t)
	spec := &specs.Spec{Hostname: "box", Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
		{Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
	}}}
	s, err := e.client.NewSandbox(e.ctx, "box", client.WithSandboxRuntime(harness.Ours, nil), client.WithSandboxSpec(spec))
	e.must(err)
	t.Cleanup(func() { e.must(s.Shutdown(e.ctx)) })
	e.must(s.Start(e.ctx))
	shim := e.shim("box")
	one := func() pod {
		t.Helper()
		pods, _ := e.ps()
		if len(pods) != 1 || pods[0].ID != "box" || !pods[0].Sandbox || pods[0].Shim.Pid != shim {
			t.Fatalf("pods = %+v, want box alone, with shim %d", pods, shim)
		}
		return pods[0]
	}
	if got := one(); len(got.Containers) != 0 {
		t.Errorf("containers of the empty sandbox: %+v", got.Containers)
	}
	e.run("c1", harness.Ours, nil, client.WithSandbox("box"))
	e.run("c2", harness.Ours, nil, client.WithSandbox("box"))
	if got := one(); len(got.Containers) != 2 || got.Containers[0].ID != "c1" || got.Containers[1].State != "running" {
		t.Errorf("containers = %+v, want c1 and c2", got.Containers)
	}
	if text := e.ctl("inspect", "box"); !strings.Contains(text, "Sandbox box") || !strings.Contains(text, fmt.Sprint(shim)) {
		t.Errorf("inspect of the sandbox:\n%s", text)
	}
}

func TestRoot_IsNeeded(t *testing.T) {
	e := newEnv(t)
	cmd := exec.CommandContext(e.ctx, binary, "--address", e.Address, "ps")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "sandboxctl must be run as root") {
		t.Errorf("as another user: %v, %q", err, out)
	}
}
