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
func TestDecode_RefusesNUL(t *testing.T) {
	for text, want := range map[string]string{
		`"a\u0000"`: "", `"\\\u0000"`: "", `"\\u0000"`: `\u0000`, `"\\\\u0000"`: `\\u0000`, `"\u00001"`: "", `"\\\u0001"`: "\\\x01",
	} {
		spec := new(specs.Spec)
		err := Decode("f", []byte(`{"linux": {"maskedPaths": [`+text+`]}}`), spec)
		if want == "" {
			testx.WantInvalid(t, err, "f: must not contain NUL")
		} else if err != nil || spec.Linux.MaskedPaths[0] != want {
			t.Errorf("%s is read as %+v, %v, want %q", text, spec.Linux, err, want)
		}
	}
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
