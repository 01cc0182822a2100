// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandboxctl

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"

	"sandbox.internal/shim/integration/harness"
)

// inspection is what the tests read of inspect's JSON.
type inspection struct {
	Container row
	Known     *struct {
		ID, State, Cgroup, Bundle string
		Launch                    struct {
			Init                string
			InitReason          string `json:"init_reason"`
			ExecsByLibcontainer int    `json:"execs_by_libcontainer"`
			ExecReason          string `json:"exec_reason"`
		}
		Settings []struct{ Name, Value, Origin string }
		Execs    struct {
			Started int
			List    []struct{ ID, State string }
		}
		Notify *struct{ Ready bool }
	}
	Shim *struct {
		Version, Namespace string
		Clients            int
		Events             struct{ Sent, Waiting int }
	}
	ShimPSS int64 `json:"shim_pss"`
}

func (e *env) inspect(id string) inspection {
	e.Helper()
	var in inspection
	e.must(json.Unmarshal([]byte(e.ctl("inspect", id, "-o", "json")), &in))
	return in
}

func TestInspect_TellsWhatTheShimKnows(t *testing.T) {
	e := newEnv(t)
	task := e.run("web-12345", harness.Ours, []oci.SpecOpts{
		annotate("stop-signal", "SIGQUIT"), annotate("exec-limits", "wall-time=100ms"),
	}, client.WithRuntime(harness.Ours, &options.Options{NoNewKeyring: true}))
	e.exec(task, "short", true, "sh", "-c", "exit 5")
	e.exec(task, "long", true, "sleep", "1000")
	e.exec(task, "left", false, "true")
	harness.Eventually(t, "the last exec has ended", func() error {
		if list := e.inspect("web-12345").Known.Execs.List; len(list) != 1 || list[0].State != "stopped" {
			return fmt.Errorf("execs = %+v, want one that is stopped", list)
		}
		return nil
	})
	in := e.inspect("web") // the beginning of its id
	k := in.Known
	if k.ID != "web-12345" || k.State != "running" || k.Launch.Init != "launcher" || k.Launch.ExecsByLibcontainer != 0 {
		t.Errorf("known = %+v", k)
	}
	if !strings.HasSuffix(k.Cgroup, "/"+e.namespace+"/web-12345") || !strings.HasPrefix(k.Bundle, e.State) {
		t.Errorf("cgroup = %q, bundle = %q", k.Cgroup, k.Bundle)
	}
	settings := map[string][2]string{}
	for _, s := range k.Settings {
		settings[s.Name] = [2]string{s.Value, s.Origin}
	}
	for name, want := range map[string][2]string{
		"stop-signal":  {"SIGQUIT", "annotation"},
		"stop-timeout": {"10s", "default"},
		"NoNewKeyring": {"true", "runtime option"},
	} {
		if settings[name] != want {
			t.Errorf("setting %s = %q, want %q", name, settings[name], want)
		}
	}
	if l := k.Execs; l.Started != 3 || len(l.List) != 1 || l.List[0].ID != "left" || l.List[0].State != "stopped" {
		t.Errorf("execs = %+v, want the one that nobody deleted", l)
	}
	if in.Shim.Namespace != e.namespace || in.Shim.Clients < 2 || in.Shim.Events.Sent < 2 || in.ShimPSS == 0 {
		t.Errorf("shim = %+v, PSS %d", in.Shim, in.ShimPSS)
	}
	if text := e.ctl("stacks", "web-12345"); !strings.Contains(text, "process.(*Process).await") {
		t.Errorf("no waiter of a process in\n%s", text)
	}
	for _, text := range []string{e.ctl("inspect", "web-12345"), e.ctl("inspect", "web-12345", "--all")} {
		for _, want := range []string{"SIGQUIT", "launcher", "cgroup", "goroutines"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
	}
}

func TestInspect_TellsWhyLibcontainerStartsProcesses(t *testing.T) {
	e := newEnv(t)
	task := e.run("c1", harness.Ours, []oci.SpecOpts{harness.ExecByLibcontainer})
	e.exec(task, "e1", true, "true")
	l := e.inspect("c1").Known.Launch
	if l.Init != "libcontainer" || !strings.Contains(l.InitReason, "personality") {
		t.Errorf("init by %s: %q, want libcontainer, for the personality", l.Init, l.InitReason)
	}
	if l.ExecsByLibcontainer != 1 || !strings.Contains(l.ExecReason, "personality") {
		t.Errorf("%d execs by libcontainer: %q, want one, for the personality", l.ExecsByLibcontainer, l.ExecReason)
	}
}

func TestInspect_ContainerOfRuncsShim(t *testing.T) {
	e := newEnv(t)
	task := e.run("old", runc, nil)
	in := e.inspect("old")
	if in.Known != nil || in.Shim != nil || in.Container.Pid != int(task.Pid()) || in.Container.Usage.CPU == 0 {
		t.Errorf("inspect = %+v, want what containerd and the kernel tell", in)
	}
	if said := e.refused("stacks", "old"); !strings.Contains(said, "old: its shim is of another runtime") {
		t.Errorf("stacks of runc's shim: %q", said)
	}
}
