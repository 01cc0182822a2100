// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/internal/testx"
)

// mounts are those of spec, short: what from where, how.
func mounts(spec *specs.Spec, bundle string) []string {
	var all []string
	for _, m := range spec.Mounts {
		all = append(all, fmt.Sprintf("%s %s %s %s", m.Destination, m.Type, strings.ReplaceAll(m.Source, bundle, "B"), strings.Join(m.Options, ",")))
	}
	return all
}

// defaultShm is what containerd's OCI configuration begins with.
var defaultShm = specs.Mount{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "size=65536k"}}

func TestAdapt_AddsWhatIsMissing(t *testing.T) {
	const rw, ro = "rbind,rprivate,rw,nosuid,nodev,noexec", "rbind,rprivate,ro,nosuid,nodev,noexec"
	all := func(access string) []string {
		return []string{
			"/etc/hostname bind B/etc/hostname " + access, "/etc/hosts bind B/etc/hosts " + access, "/etc/resolv.conf bind B/etc/resolv.conf " + access,
		}
	}
	shared := []specs.LinuxNamespace{{Type: "ipc", Path: pinned(t, 0)}}
	for name, test := range map[string]struct {
		config Config
		spec   specs.Spec
		want   []string
	}{
		"a container without mounts": {Config{}, specs.Spec{}, append(all(rw), "/dev/shm bind B/shm "+rw)},
		"a read-only root":           {Config{}, specs.Spec{Root: &specs.Root{Readonly: true}}, append(all(ro), "/dev/shm bind B/shm "+rw)},
		"the shared memory that all begin with": {
			Config{},
			specs.Spec{Mounts: []specs.Mount{{Destination: "/proc"}, defaultShm, {Destination: "/dev/shm/below"}}, Linux: &specs.Linux{Namespaces: shared}},
			append([]string{"/proc   ", "/dev/shm bind B/shm " + rw, "/dev/shm/below   "}, all(rw)...),
		},
		"the host's ipc": {
			Config{IPC: ModeNode},
			specs.Spec{Mounts: []specs.Mount{defaultShm}},
			append([]string{"/dev/shm bind /dev/shm " + rw}, all(rw)...),
		},
		"an ipc namespace of its own": {
			Config{},
			specs.Spec{Mounts: []specs.Mount{defaultShm}, Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: "ipc"}}}},
			append([]string{"/dev/shm tmpfs shm nosuid,size=65536k"}, all(rw)...),
		},
		"all its own": {
			Config{},
			specs.Spec{Mounts: []specs.Mount{
				{Destination: "/etc/hosts", Source: "h"},
				{Destination: "etc/hostname/", Source: "n"},
				{Destination: "/etc/./resolv.conf", Source: "r"},
				{Destination: "/dev/shm", Type: "bind", Source: "/mem"},
			}},
			[]string{"/etc/hosts  h ", "etc/hostname/  n ", "/etc/./resolv.conf  r ", "/dev/shm bind /mem "},
		},
		"memory of its own": {
			Config{},
			specs.Spec{Mounts: []specs.Mount{defaultShm, {Destination: "/dev/shm", Type: "tmpfs", Source: "tmpfs"}}},
			append([]string{"/dev/shm tmpfs shm nosuid,size=65536k", "/dev/shm tmpfs tmpfs "}, all(rw)...),
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := test.config
			config.PID = ModeContainer
			p := create(t, request(t, func(r *Request) { r.Config = config }))
			testx.Must(t, p.Adapt(&test.spec))
			if diff := cmp.Diff(test.want, mounts(&test.spec, p.Bundle)); diff != "" {
				t.Errorf("mounts (-want +got):\n%s", diff)
			}
		})
	}
}

// A relative path would lead below the cgroup of the shim.
func TestAdapt_CgroupBeginsAtTheRoot(t *testing.T) {
	for path, want := range map[string]string{"pods/p1/c1": "/pods/p1/c1", "/pods/c1": "/pods/c1", "a.slice:x:c1": "a.slice:x:c1"} {
		spec := &specs.Spec{Linux: &specs.Linux{CgroupsPath: path}}
		testx.Must(t, create(t, request(t)).Adapt(spec))
		if got := spec.Linux.CgroupsPath; got != want {
			t.Errorf("path %q is %q, want %q", path, got, want)
		}
	}
}

// CRI passes the pod's PID namespace, which is the host's if each container is to have its own.
func TestAdapt_PIDNamespaceOfTheContainer(t *testing.T) {
	user := &idmap.Mappings{UIDs: mapping, GIDs: mapping}
	for name, test := range map[string]struct {
		config Config
		own    bool
	}{
		"main thread":                   {Config{PID: ModeContainer}, true},
		"main thread, PIDs of the host": {Config{PID: ModeNode}, false},
		"process":                       {Config{}, false},
		"process, users":                {Config{PID: ModeContainer, User: user}, true},
	} {
		p := start(t, request(t, func(r *Request) { r.Config = test.config }))
		path := fmt.Sprintf("/proc/%d/ns/pid", p.Pid())
		spec := &specs.Spec{Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace, Path: path}}}}
		testx.Must(t, p.Adapt(spec))
		if got := spec.Linux.Namespaces[0].Path; (got == "") != test.own || got != "" && got != path {
			t.Errorf("%s: path = %q, want one of its own: %t", name, got, test.own)
		}
		testx.Must(t, p.Close())
	}
}

func TestSpec_DescribesThePod(t *testing.T) {
	m := &CRIConfig{LogDirectory: "/log"}
	m.Metadata.Name, m.Metadata.UID, m.Metadata.Namespace = "web", "u", "shop"
	config := Config{
		CRI: m, Hostname: "web-0", CgroupParent: "/", PID: ModeContainer, Sysctls: map[string]string{"kernel.shmmni": "5"},
	}
	p := start(t, request(t, func(r *Request) { r.Config = config }))
	got := p.Spec()
	path := func(name string) string { return fmt.Sprintf("/proc/%d/ns/%s", os.Getpid(), name) }
	want := &specs.Spec{
		Version: specs.Version, Hostname: "web-0",
		Annotations: map[string]string{
			"io.kubernetes.cri.container-type": "sandbox", "io.kubernetes.cri.sandbox-id": "p1", "io.kubernetes.cri.sandbox-name": "web",
			"io.kubernetes.cri.sandbox-namespace": "shop", "io.kubernetes.cri.sandbox-uid": "u", "io.kubernetes.cri.sandbox-log-directory": "/log",
		},
		Linux: &specs.Linux{
			CgroupsPath: "/p1", Sysctl: map[string]string{"kernel.shmmni": "5"},
			Namespaces: []specs.LinuxNamespace{{Type: "network", Path: path("net")}, {Type: "uts", Path: path("uts")}, {Type: "ipc", Path: path("ipc")}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Spec() (-want +got):\n%s", diff)
	}
}

// Whoever is told of the pod after its end finds the network there still.
func TestSpec_NamesTheNetworkWhereItsOwnerHasIt(t *testing.T) {
	for name, pid := range map[string]Mode{"main thread": ModeContainer, "process": ModePod} {
		t.Run(name, func(t *testing.T) {
			path := pinned(t, 0)
			p := start(t, request(t, func(r *Request) { r.Config.NetNS, r.Config.PID = path, pid }))
			if got, want := p.Spec().Linux.Namespaces[0], (specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: path}); got != want {
				t.Errorf("network = %v, want %v", got, want)
			}
		})
	}
}

// Every path in it can be joined, and is the pod's.
func TestSpec_OfAPodWithAProcess(t *testing.T) {
	p := start(t, request(t, func(r *Request) {
		r.Config.PID, r.Config.User = ModePod, &idmap.Mappings{UIDs: mapping, GIDs: mapping}
	}))
	spec := p.Spec()
	var kinds []specs.LinuxNamespaceType
	for _, ns := range spec.Linux.Namespaces {
		kinds = append(kinds, ns.Type)
		a, err := os.Stat(ns.Path)
		testx.Must(t, err)
		b, err := os.Stat(strings.Replace(ns.Path, fmt.Sprint(p.Pid()), "thread-self", 1))
		if err != nil || os.SameFile(a, b) {
			t.Errorf("namespace %s is the host's (%v)", ns.Path, err)
		}
	}
	if got, want := fmt.Sprint(kinds), "[network uts ipc pid user]"; got != want {
		t.Errorf("namespaces = %s, want %s", got, want)
	}
	if diff := cmp.Diff(mapping, spec.Linux.UIDMappings); diff != "" {
		t.Errorf("uid mappings (-want +got):\n%s", diff)
	}
}
