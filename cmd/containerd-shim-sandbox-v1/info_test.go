// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/cgroups/v3"
)

// onlyUnified returns what is wrong where cgroup v2 is not alone.
func onlyUnified(problem string) string {
	if cgroups.Mode() == cgroups.Unified {
		return ""
	}
	return problem
}

func TestInfo_ShowsTheDefaultConfiguration(t *testing.T) {
	dir, err := os.MkdirTemp("/run", "info-test-") // where nobody but root can write, as the file's safety asks
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "config.toml")
	for _, tc := range []struct{ content, config, problem string }{
		{"", "", ""}, // there is no file
		{"IoUid = 7", `{"IoUid":7}`, ""},
		{"StopTimeout = '1 s'", `{"StopTimeout":"1 s"}`, file + `: StopTimeout "1 s": must be a time`},
		{"[namespace.a]\nNotify = 'x'", "", file + `: namespace.a.Notify "x": must be true or false`},
		{"Listen = 'foo'", `{"Listen":"foo"}`, file + `: Listen: "foo": must be`},
		{"PidFile = 'run/{id}'", `{"PidFile":"run/{id}"}`, file + `: PidFile "run/id": must be the absolute path`},
		{"HostRootfs = 'usr'", `{"HostRootfs":"usr"}`, file + `: HostRootfs "usr": must be`},
		{"HostRootfsMask = 'etc'", `{"HostRootfsMask":"etc"}`, file + `: HostRootfsMask "etc": must be`},
		{"CpusetSource = 'a'", `{"CpusetSource":"a"}`, onlyUnified(file + `: CpusetSource "a": needs a machine with cgroup v2`)},
		{"[namespace.a]\nCpusetSource = ','", `{"namespace":{"a":{"CpusetSource":","}}}`, file + `: CpusetSource ","`},
	} {
		if tc.content != "" {
			if err := os.WriteFile(file, []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got := defaultsAnnotations(file)
		if problem, wrong := got[prefix+"config.error"]; got[prefix+"config"] != tc.config ||
			wrong != (tc.problem != "") || !strings.HasPrefix(problem, tc.problem) {
			t.Errorf("with %q: %q, want config %q, error %q", tc.content, got, tc.config, tc.problem)
		}
	}
}
