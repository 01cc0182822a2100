// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAt(t *testing.T) {
	const hierarchies = "5:name=systemd:/x\n4:memory:/a:b\n3:cpu,cpuacct:/\n2:pids:/\n1:blkio,net_cls:/\n0::/\n"
	for _, tc := range []struct {
		name  string
		mode  Mode
		there string // directories below the root
		want  map[string]string
	}{
		{"version 2, whether it is there or not", Unified, "", map[string]string{"": "pod/x"}},
		{"version 1, in some hierarchies", Legacy, "memory/pod/x pids/other", map[string]string{"memory": "memory/pod/x"}},
		{"controllers that share a hierarchy", Legacy, "cpu,cpuacct/pod/x blkio/pod/x", map[string]string{
			"cpu": "cpu,cpuacct/pod/x", "cpuacct": "cpu,cpuacct/pod/x", "blkio": "blkio/pod/x",
		}},
		{"hybrid", Hybrid, "unified/pod/x memory/pod/x", map[string]string{"": "unified/pod/x", "memory": "memory/pod/x"}},
		{"a path that looks like a controller's", Legacy, "pod/x", nil},
		{"nowhere", Hybrid, "memory", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			for dir := range strings.FieldsSeq(tc.there) {
				if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			file := filepath.Join(root, "hierarchies")
			put(t, file, hierarchies)
			got, err := at(root, file, tc.mode, "/pod/x")
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]string{}
			for controller, dir := range tc.want {
				want[controller] = filepath.Join(root, dir)
			}
			if !maps.Equal(got.paths, want) {
				t.Errorf("paths = %v, want %v", got.paths, want)
			}
		})
	}
}

func TestAtFindsTheRootOfThisMachine(t *testing.T) {
	got, err := At("/")
	if err != nil || !got.Exists() || got.Path("memory") == "" {
		t.Errorf("At(/) = %v, %v, want a directory for memory", got, err)
	}
}
