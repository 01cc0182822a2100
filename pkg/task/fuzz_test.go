// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cpuset"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/resources"
	"sandbox.internal/shim/pkg/settings"
)

func FuzzSpec(f *testing.F) {
	limit := int64(1 << 20)
	for _, spec := range []*specs.Spec{
		{},
		{Root: &specs.Root{Path: "rootfs"}, Process: &specs.Process{Args: []string{"a"}, Cwd: "/"}, Linux: &specs.Linux{}},
		{
			Root: &specs.Root{Path: "/r"}, Process: &specs.Process{Args: []string{"a", "b"}, Env: []string{"A=1"}, Cwd: "/"},
			Hostname: "h", Annotations: map[string]string{settings.Prefix + "stop-signal": "TERM"},
			Linux: &specs.Linux{
				Namespaces:  []specs.LinuxNamespace{{Type: "uts"}, {Type: "network", Path: "/proc/self/fd/3"}},
				UIDMappings: []specs.LinuxIDMapping{{Size: 5}, {ContainerID: 5, HostID: 9, Size: 1}},
				CgroupsPath: "a.slice:b:c",
				Resources: &specs.LinuxResources{
					Memory: &specs.LinuxMemory{Limit: &limit}, CPU: &specs.LinuxCPU{Cpus: "0-1"},
					HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB"}}, Unified: map[string]string{"a.b": "c"},
				},
			},
		},
	} {
		data, err := json.Marshal(spec)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"process":{"args":["\u0000"]},"root":{"path":"a"},"linux":{}}`))
	cpus, err := cpuset.Parse("0-3")
	if err != nil {
		f.Fatal(err)
	}
	host := resources.Host{Unified: true, CPUs: cpus}
	f.Fuzz(func(t *testing.T, data []byte) {
		spec := new(specs.Spec)
		err := Decode(specFile, data, spec)
		if err == nil {
			err = checkSpecOn(spec, host)
		}
		if err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("%q: %v, want an invalid argument", data, err)
			}
			return
		}
		p := spec.Process
		if len(p.Args) == 0 || p.Args[0] == "" || !filepath.IsAbs(p.Cwd) ||
			slices.ContainsFunc(slices.Concat(p.Args, p.Env, []string{p.Cwd}), func(s string) bool { return strings.Contains(s, "\x00") }) {
			t.Errorf("%q is accepted with the process %+v", data, p)
		}
		systemdCgroup(spec)
		s, err := extensions.Settings().Parse(spec, options.Options{}, "ns", "id")
		if err != nil && !errdefs.IsInvalidArgument(err) && !errdefs.IsPermissionDenied(err) {
			t.Errorf("settings of %q: %v", data, err)
		}
		if err == nil && (s.Of("pid-file").IsSet() || s.Of("host-rootfs.mask").IsSet()) {
			t.Errorf("%q reaches the host, which no option allows", data)
		}
		again, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		spec = new(specs.Spec)
		if err := Decode(specFile, again, spec); err != nil || checkSpecOn(spec, host) != nil {
			t.Errorf("%q is accepted, and as %q refused: %v", data, again, err)
		}
	})
}
