// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"slices"
	"strings"
	"testing"

	"sandbox.internal/shim/cmd/sandboxctl/cli"
	"sandbox.internal/shim/cmd/sandboxctl/measure"
	"sandbox.internal/shim/cmd/sandboxctl/node"
	"sandbox.internal/shim/pkg/inspect"
)

// What others say does nothing to the terminal of whoever looks at it.
func TestTables_ArePrintable(t *testing.T) {
	const evil = "\x1b]0;x\a\x9b2J\u202e\r\xff"
	c := node.Container{
		Namespace: evil, ID: evil, Name: "name" + evil, Image: evil, Runtime: evil, State: evil, Error: "container" + evil,
		Usage: measure.Usage{Cgroup: evil, CPUs: evil, Mems: evil}, CPUSet: &inspect.CPUSet{Source: evil, Pinned: true},
	}
	p := node.Pod{
		Namespace: evil, ID: evil, Name: evil, Sandbox: true, Containers: []node.Container{c},
		Shim: node.Shim{Runtime: evil, Pid: 1, Version: evil, Address: evil, Error: evil},
	}
	var out strings.Builder
	empty := p
	empty.Containers = nil
	for _, full := range []bool{false, true} {
		if err := writeTable(&out, &node.Snapshot{Pods: []node.Pod{p, empty}}, full); err != nil {
			t.Fatal(err)
		}
	}
	known := &inspect.ContainerInfo{
		Bundle: evil, Settings: []inspect.Setting{{Name: evil, Value: evil, Origin: evil}},
		HostRootfs: []inspect.HostDirectory{{Host: evil, Container: evil}},
		CPUSet:     &inspect.CPUSet{Source: evil, CPUs: evil, Error: evil}, Notify: &inspect.Notify{Status: evil},
		Launch: inspect.Launch{Init: evil, InitReason: evil, ExecsByLibcontainer: 1, ExecReason: evil},
		Execs:  inspect.Execs{List: []inspect.Exec{{ID: evil, State: evil}}},
	}
	in := &node.Inspection{
		Namespace: evil, Pod: p, Container: &c, Known: known,
		Shim: &inspect.Shim{Containerd: evil, Events: inspect.Events{Waiting: 1, Oldest: evil, Problem: evil}},
	}
	pr := printer{w: &out}
	pr.inspection(in, true)
	in.Container = nil
	pr.inspection(in, true)
	if pr.err != nil || !strings.Contains(out.String(), "\ufffd") {
		t.Errorf("%v, in %q", pr.err, out.String())
	}
	for line := range strings.Lines(out.String()) {
		if text := strings.TrimSuffix(line, "\n"); cli.Printable(text) != text {
			t.Errorf("%q is printed", text)
		}
	}
}

func TestMemory_IsADashWhereItIsNotKnown(t *testing.T) {
	c := &node.Container{Usage: measure.Usage{Cgroup: "/c", Unknown: measure.Unknown{Memory: true}}}
	if got := memory(c); got != "-" {
		t.Errorf("memory = %q, want -", got)
	}
}

func TestPs_MarksShimsOfAFormerProgram(t *testing.T) {
	var out strings.Builder
	pod := func(id, version string, outdated bool) node.Pod {
		return node.Pod{
			Namespace: "ns", ID: id, Shim: node.Shim{Pid: 7, Version: version, Outdated: outdated},
			Containers: []node.Container{{Namespace: "ns", ID: id, Name: id, State: node.Running}},
		}
	}
	s := &node.Snapshot{Pods: []node.Pod{pod("old", "0.1.0", true), pod("new", "0.2.0", false), pod("runc", "", false), {
		Namespace: "ns", ID: "empty", Name: "empty", Sandbox: true, Shim: node.Shim{Pid: 7, Version: "0.1.1", Outdated: true},
	}}}
	if err := writeTable(&out, s, false); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Fields(line)[6])
	}
	if want := []string{"VERSION", "0.1.0*", "0.2.0", "-", "0.1.1*"}; !slices.Equal(got, want) {
		t.Errorf("versions = %q, want %q, in\n%s", got, want, &out)
	}
}
