// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/ociruntime/translate"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// FuzzConfig translates a config.json that has what pkg/task asks of one. Whatever else it has, nothing panics, and
// what the launcher binds has an absolute path.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"process":{"user":{"uid":1,"additionalGids":[2]},"args":["a"],"env":["A=1"],"cwd":"/","capabilities":{"bounding":["CAP_CHOWN"]},
"rlimits":[{"type":"RLIMIT_NOFILE","hard":5,"soft":4}],"noNewPrivileges":true,"scheduler":{"policy":"SCHED_BATCH"}},"root":{"path":"r","readonly":true},
"mounts":[{"destination":"/proc","type":"proc","source":"proc"},{"destination":"/d","type":"bind","source":"x","options":["rbind","ro","idmap"]}],
"linux":{"namespaces":[{"type":"pid"},{"type":"mount"},{"type":"user"}],"uidMappings":[{"size":1}],"gidMappings":[{"size":1}],
"sysctl":{"net.ipv4.a":"1"},"maskedPaths":["/proc/kcore"],"cgroupsPath":"/a","devices":[{"path":"/dev/fuse","type":"c","major":10,"minor":229}],
"seccomp":{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["getcwd"],"action":"SCMP_ACT_ERRNO"}]},"rootfsPropagation":"rslave"}}`))
	f.Add([]byte(`{"process":{"args":["a"],"cwd":"/"},"root":{"path":"r"},"linux":{"seccomp":{},"intelRdt":{},"personality":{}},"hooks":{"poststop":[{}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var spec specs.Spec
		if json.Unmarshal(data, &spec) != nil || spec.Root == nil || spec.Process == nil || spec.Linux == nil {
			return
		}
		for _, ns := range spec.Linux.Namespaces {
			if ns.Path != "" {
				return // libcontainer looks at it
			}
		}
		c := process.Config{ID: "c1", Bundle: "/bundle", Rootfs: "/bundle/rootfs", Spec: &spec}
		config, err := translate.Container(c)
		if err != nil {
			return
		}
		if config.Rootfs != c.Rootfs || !slices.Contains(config.Labels, "bundle="+c.Bundle) {
			t.Errorf("%q: rootfs %q, labels %q", data, config.Rootfs, config.Labels)
		}
		p, err := translate.Process(spec.Process, &stdio.Streams{})
		if err != nil || translate.UnsupportedInit(c, config, p) != "" ||
			translate.LauncherContainer(config).Unsupported() != "" {
			return
		}
		for _, m := range config.Mounts {
			if m.IsBind() && !filepath.IsAbs(m.Source) {
				t.Errorf("%q: the launcher would mount %+v", data, m)
			}
		}
	})
}
