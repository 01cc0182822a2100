// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/shim/pkg/internal/testx"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestCheckSpec(t *testing.T) {
	if err := checkSpec(goodSpec()); err != nil {
		t.Fatalf("checkSpec of a good configuration = %v", err)
	}
	for _, tc := range []struct {
		name   string
		change func(*specs.Spec)
		want   []string
	}{
		{"no root", func(s *specs.Spec) { s.Root = nil }, []string{"root.path"}},
		{"no process", func(s *specs.Spec) { s.Process = nil }, []string{"process:"}},
		{"no linux", func(s *specs.Spec) { s.Linux = nil }, []string{"linux:"}},
		{"no args", func(s *specs.Spec) { s.Process.Args = nil }, []string{"process.args"}},
		{"an empty program", func(s *specs.Spec) { s.Process.Args = []string{"", "x"} }, []string{"process.args[0]", `""`}},
		{"a relative cwd", func(s *specs.Spec) { s.Process.Cwd = "tmp" }, []string{"process.cwd", `"tmp"`, "absolute"}},
		{"a bind mount of nothing", func(s *specs.Spec) {
			s.Mounts = []specs.Mount{{Destination: "/a"}, {Destination: "/b", Options: []string{"rbind"}}}
		}, []string{`mounts[1].source ""`, `"/b"`}},
		{"a score that the kernel does not know", func(s *specs.Spec) { s.Process.OOMScoreAdj = new(1001) }, []string{"process.oomScoreAdj 1001: must be from -1000 to 1000"}},
		{"a resource out of range", func(s *specs.Spec) {
			s.Linux.Resources = &specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: new(int64(1))}}
		}, []string{"linux.resources.cpu.quota 1: must be at least 1000 µs"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := goodSpec()
			tc.change(s)
			testx.WantInvalid(t, checkSpec(s), tc.want...)
		})
	}
}

// The kernel would mask, mount, join or write what is before the NUL.
func TestCheckSpec_RefusesNUL(t *testing.T) {
	const nul = "a\x00b"
	for field, change := range map[string]func(*specs.Spec){
		"root.path":              func(s *specs.Spec) { s.Root.Path = nul },
		"process.args[1]":        func(s *specs.Spec) { s.Process.Args = []string{"a", nul} },
		"process.env[0]":         func(s *specs.Spec) { s.Process.Env = []string{nul} },
		"process.selinuxLabel":   func(s *specs.Spec) { s.Process.SelinuxLabel = nul },
		"hostname":               func(s *specs.Spec) { s.Hostname = nul },
		"mounts[0].destination":  func(s *specs.Spec) { s.Mounts = []specs.Mount{{Destination: nul}} },
		"mounts[0].options[1]":   func(s *specs.Spec) { s.Mounts = []specs.Mount{{Options: []string{"ro", nul}}} },
		"hooks.prestart[0].path": func(s *specs.Spec) { s.Hooks = &specs.Hooks{Prestart: []specs.Hook{{Path: nul}}} }, //nolint:staticcheck // libcontainer runs them
		"linux.maskedPaths[1]":   func(s *specs.Spec) { s.Linux.MaskedPaths = []string{"/proc/kcore", nul} },
		"linux.readonlyPaths[0]": func(s *specs.Spec) { s.Linux.ReadonlyPaths = []string{nul} },
		"linux.devices[0].path":  func(s *specs.Spec) { s.Linux.Devices = []specs.LinuxDevice{{Path: nul}} },
		"linux.namespaces[0].path": func(s *specs.Spec) {
			s.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.NetworkNamespace, Path: nul}}
		},
		`linux.sysctl["a\x00b"]`: func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{nul: "1"} },
		`linux.sysctl["key"]`:    func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{"key": nul} },
		"linux.seccomp.syscalls[0].names[0]": func(s *specs.Spec) {
			s.Linux.Seccomp = &specs.LinuxSeccomp{Syscalls: []specs.LinuxSyscall{{Names: []string{nul}}}}
		},
	} {
		s := goodSpec()
		change(s)
		testx.WantInvalid(t, checkSpec(s), field+` "a\x00b": must not contain NUL`)
	}
	s := goodSpec()
	s.Annotations = map[string]string{nul: nul}
	testx.Must(t, checkSpec(s))
	s.Process.Cwd = "/" + nul
	testx.WantInvalid(t, checkProcess("exec.process", s.Process), `exec.process.cwd "/a\x00b"`)
}

func TestReadSpec_Refuses(t *testing.T) {
	for _, tc := range []struct {
		text string
		want []string
	}{
		{"{half", nil},
		{"", nil},
		{`{"process": {"args": "true"}}`, []string{"process.args"}},
		{`{"linux": {"resources": {"memory": {"limit": 1.5}}}}`, []string{"linux.resources.memory.limit", "1.5"}},
		{`{"process": {"user": {"uid": -1}}}`, []string{"uid", "-1"}},
	} {
		bundle := t.TempDir()
		testx.Write(t, filepath.Join(bundle, specFile), tc.text)
		_, err := ReadSpec(bundle)
		testx.WantInvalid(t, err, append(tc.want, "config.json")...)
	}
	bundle := t.TempDir()
	_, err := ReadSpec(bundle)
	testx.WantInvalid(t, err, "config.json", bundle)
}

func TestSystemdCgroup(t *testing.T) {
	for path, want := range map[string]bool{
		"system.slice:docker:abc": true, "kubepods-besteffort-pod1.slice:cri-containerd:abc": true, ":cri:abc": true, "-.slice:a:b": true,
		"": false, "/default/abc": false, "default/abc": false, "/kubepods/pod1:a:b": false, "a:b": false, "a:b:c:d": false,
	} {
		s := goodSpec()
		s.Linux.CgroupsPath = path
		if got := systemdCgroup(s); got != want {
			t.Errorf("systemdCgroup(%q) = %t, want %t", path, got, want)
		}
	}
}

func TestExec_ChecksTheID(t *testing.T) {
	s := newManager(t, newRuntime())
	c := create(t, s, "c1", goodSpec())
	exec := func(id string) error { return s.Exec(c, id, goodSpec().Process, c.Init().Status().IO) }
	for _, id := range []string{"", "../e", strings.Repeat("e", 77), "c1"} {
		testx.WantInvalid(t, exec(id), "exec id", id)
	}
	testx.Must(t, exec("e1"))
	testx.WantError(t, exec("e1"), errdefs.ErrAlreadyExists)
	_, err := s.Status("c1", "e2")
	testx.WantError(t, err, errdefs.ErrNotFound)
	_, err = s.Delete(t.Context(), "c1", "e1")
	testx.Must(t, err)
	_, err = s.Delete(t.Context(), "c1", "e1")
	testx.WantError(t, err, errdefs.ErrNotFound)
	remove(t, s, "c1")
}
