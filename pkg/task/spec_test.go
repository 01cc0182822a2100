// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/identifiers"
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
		{"an empty root path", func(s *specs.Spec) { s.Root.Path = "" }, []string{"root.path"}},
		{"no process", func(s *specs.Spec) { s.Process = nil }, []string{"process:"}},
		{"no linux", func(s *specs.Spec) { s.Linux = nil }, []string{"linux:"}},
		{"an unknown namespace", func(s *specs.Spec) {
			s.Linux.Namespaces = []specs.LinuxNamespace{{Type: "pid"}, {Type: "bogus"}}
		}, []string{"linux.namespaces[1].type", `"bogus"`, "pid"}},
		{"an empty namespace", func(s *specs.Spec) { s.Linux.Namespaces = []specs.LinuxNamespace{{}} }, []string{"linux.namespaces[0].type", `""`}},
		{"a descriptor of nobody", func(s *specs.Spec) {
			s.Linux.Namespaces = []specs.LinuxNamespace{{Type: "network", Path: "/proc/./self/fd/3"}}
		}, []string{"linux.namespaces[0].path", `"/proc/./self/fd/3"`, "/proc/PID/fd"}},
		{"a host name without a namespace for it", func(s *specs.Spec) {
			s.Hostname, s.Linux.Namespaces = "h", []specs.LinuxNamespace{{Type: "pid"}}
		}, []string{"hostname", `"h"`, "UTS"}},
		{"a domain name without a namespace for it", func(s *specs.Spec) {
			s.Domainname, s.Linux.Namespaces = "d", []specs.LinuxNamespace{{Type: "pid"}}
		}, []string{"domainname", `"d"`, "UTS"}},
		{"a bind mount of nothing", func(s *specs.Spec) {
			s.Mounts = []specs.Mount{{Destination: "/p", Type: "proc"}, {Destination: "/x", Options: []string{"rbind", "ro"}}}
		}, []string{"mounts[1].source", `""`, `"/x"`}},
		{"another bind mount of nothing", func(s *specs.Spec) {
			s.Mounts = []specs.Mount{{Destination: "/x", Type: "bind"}}
		}, []string{"mounts[0].source", `""`, `"/x"`}},
		{"no args", func(s *specs.Spec) { s.Process.Args = nil }, []string{"process.args"}},
		{"empty args", func(s *specs.Spec) { s.Process.Args = []string{} }, []string{"process.args"}},
		{"an empty program", func(s *specs.Spec) { s.Process.Args = []string{"", "x"} }, []string{"process.args[0]", `""`}},
		{"a relative cwd", func(s *specs.Spec) { s.Process.Cwd = "tmp" }, []string{"process.cwd", `"tmp"`, "absolute"}},
		{"a score that the kernel does not know", func(s *specs.Spec) {
			s.Process.OOMScoreAdj = new(1001)
		}, []string{"process.oomScoreAdj 1001: must be from -1000 to 1000"}},
		{"a resource out of range", func(s *specs.Spec) {
			s.Linux.Resources = &specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: new(int64(1))}}
		}, []string{"linux.resources.cpu.quota 1: must be at least 1000 µs"}},
		{"an empty cwd", func(s *specs.Spec) { s.Process.Cwd = "" }, []string{"process.cwd", `""`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := goodSpec()
			tc.change(s)
			wantInvalid(t, checkSpec(s), tc.want...)
		})
	}
}

// What is before the NUL would be masked, mounted, joined or written instead.
func TestCheckSpec_RefusesNUL(t *testing.T) {
	for field, change := range map[string]func(*specs.Spec){
		"root.path":            func(s *specs.Spec) { s.Root.Path = "a\x00b" },
		"process.args[1]":      func(s *specs.Spec) { s.Process.Args = []string{"a", "a\x00b"} },
		"process.env[0]":       func(s *specs.Spec) { s.Process.Env = []string{"a\x00b"} },
		"process.selinuxLabel": func(s *specs.Spec) { s.Process.SelinuxLabel = "a\x00b" },
		"hostname":             func(s *specs.Spec) { s.Hostname = "a\x00b" },
		"mounts[0].destination": func(s *specs.Spec) {
			s.Mounts = []specs.Mount{{Destination: "a\x00b"}}
		},
		"mounts[0].options[1]": func(s *specs.Spec) {
			s.Mounts = []specs.Mount{{Options: []string{"ro", "a\x00b"}}}
		},
		"hooks.prestart[0].path": func(s *specs.Spec) {
			s.Hooks = &specs.Hooks{Prestart: []specs.Hook{{Path: "a\x00b"}}} //nolint:staticcheck // libcontainer runs them
		},
		"linux.maskedPaths[1]":   func(s *specs.Spec) { s.Linux.MaskedPaths = []string{"/proc/kcore", "a\x00b"} },
		"linux.readonlyPaths[0]": func(s *specs.Spec) { s.Linux.ReadonlyPaths = []string{"a\x00b"} },
		"linux.devices[0].path":  func(s *specs.Spec) { s.Linux.Devices = []specs.LinuxDevice{{Path: "a\x00b"}} },
		"linux.namespaces[0].path": func(s *specs.Spec) {
			s.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.NetworkNamespace, Path: "a\x00b"}}
		},
		`linux.sysctl["a\x00b"]`: func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{"a\x00b": "1"} },
		`linux.sysctl["key"]`:    func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{"key": "a\x00b"} },
		"linux.seccomp.syscalls[0].names[0]": func(s *specs.Spec) {
			s.Linux.Seccomp = &specs.LinuxSeccomp{Syscalls: []specs.LinuxSyscall{{Names: []string{"a\x00b"}}}}
		},
	} {
		t.Run(field, func(t *testing.T) {
			s := goodSpec()
			change(s)
			wantInvalid(t, checkSpec(s), field+` "a\x00b": must not contain NUL`)
		})
	}
	s := goodSpec()
	s.Annotations = map[string]string{"a\x00b": "a\x00b"}
	must(t, checkSpec(s))
	s.Process.Cwd = "/a\x00b"
	wantInvalid(t, checkProcess("exec.process", s.Process), `exec.process.cwd "/a\x00b"`)
}

func TestReadSpec_Refuses(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"text that is no JSON", "{half", []string{"config.json"}},
		{"an empty file", "", []string{"config.json"}},
		{"a field of another kind", `{"process": {"args": "true"}}`, []string{"config.json", "process.args"}},
		{"a number out of range far below", `{"linux": {"resources": {"memory": {"limit": 1.5}}}}`, []string{"config.json", "linux.resources.memory.limit", "1.5"}},
		{"a number out of range", `{"process": {"user": {"uid": -1}}}`, []string{"config.json", "uid", "-1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bundle := t.TempDir()
			must(t, os.WriteFile(filepath.Join(bundle, specFile), []byte(tc.text), 0o600))
			_, err := ReadSpec(bundle)
			wantInvalid(t, err, tc.want...)
		})
	}
	bundle := t.TempDir()
	_, err := ReadSpec(bundle)
	wantInvalid(t, err, "config.json", bundle)
}

func TestCheckID(t *testing.T) {
	for _, tc := range []struct {
		name, id string
		want     bool
	}{
		{"letters", "abcXYZ", true},
		{"one digit", "7", true},
		{"all separators", "a.b_c-d", true},
		{"the longest", strings.Repeat("a", 76), true},
		{"one too long", strings.Repeat("a", 77), false},
		{"nothing", "", false},
		{"a dot", ".", false},
		{"two dots", "..", false},
		{"a slash", "a/b", false},
		{"a way up", "../a", false},
		{"a separator first", "-a", false},
		{"a separator last", "a-", false},
		{"two separators", "a..b", false},
		{"a letter that is not ASCII", "ä", false},
		{"a digit that is not ASCII", "a٣", false},
		{"a space", "a b", false},
		{"a line end", "a\n", false},
		{"a zero byte", "a\x00b", false},
		{"bytes that are no text", "a\xff", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := CheckID("field", tc.id)
			if got := err == nil; got != tc.want {
				t.Errorf("CheckID(%q) = %v, want valid: %t", tc.id, err, tc.want)
			}
			if !tc.want {
				wantInvalid(t, err, "field")
			}
			if got := identifiers.Validate(tc.id) == nil; got != tc.want {
				t.Errorf("containerd takes %q: %t, and we: %t", tc.id, got, tc.want)
			}
		})
	}
}

func TestSystemdCgroup(t *testing.T) {
	for _, tc := range []struct {
		path string
		want bool
	}{
		{"system.slice:docker:abc", true},
		{"kubepods-besteffort-pod1.slice:cri-containerd:abc", true},
		{":cri:abc", true},
		{"-.slice:a:b", true},
		{"", false},
		{"/default/abc", false},
		{"default/abc", false},
		{"/kubepods/pod1:a:b", false},
		{"a:b", false},
		{"a:b:c:d", false},
	} {
		s := goodSpec()
		s.Linux.CgroupsPath = tc.path
		if got := systemdCgroup(s); got != tc.want {
			t.Errorf("systemdCgroup(%q) = %t, want %t", tc.path, got, tc.want)
		}
	}
}

func TestExec_ChecksTheID(t *testing.T) {
	s := newManager(t, &fakeEngine{})
	c, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: newBundle(t, goodSpec())})
	must(t, err)
	for _, id := range []string{"", "../e", strings.Repeat("e", 77), "c1"} {
		wantInvalid(t, s.Exec(c, id, goodSpec().Process, c.Init().Status().IO), "exec id", id)
	}
	must(t, s.Exec(c, "e1", goodSpec().Process, c.Init().Status().IO))
	if err := s.Exec(c, "e1", goodSpec().Process, c.Init().Status().IO); !errdefs.IsAlreadyExists(err) {
		t.Errorf("Exec again = %v, want already exists", err)
	}
	if _, err := s.Status("c1", "e2"); !errdefs.IsNotFound(err) {
		t.Errorf("Process of an unknown exec = %v, want not found", err)
	}
	_, err = s.Delete(t.Context(), "c1", "e1")
	must(t, err)
	if _, err := s.Delete(t.Context(), "c1", "e1"); !errdefs.IsNotFound(err) {
		t.Errorf("Delete of a deleted exec = %v, want not found", err)
	}
	_, err = s.Delete(t.Context(), "c1", "")
	must(t, err)
}
