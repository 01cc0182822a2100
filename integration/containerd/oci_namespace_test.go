// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// mapped is where the tests' user namespaces lie: users 0 to 65535 of the container are these of the host.
const mapped = 200000

var idMap = []specs.LinuxIDMapping{{ContainerID: 0, HostID: mapped, Size: 65536}}

// letOthersIn opens the directory of the shared containerd, which is in a directory of root's alone, to the users that
// a user namespace maps: containerd's own directories let them through.
func letOthersIn(t *testing.T) {
	t.Helper()
	if err := os.Chmod(shared.Dir, 0o711); err != nil {
		t.Fatal(err)
	}
}

func TestNamespace_UserNamespaceOfItsOwn(t *testing.T) {
	letOthersIn(t)
	parent := newEnv(t)
	for i, tt := range []struct {
		name     string
		snapshot func(id string) client.NewContainerOpts
		overlay  bool
	}{
		{name: "with a root file system that was changed to the mapped users", snapshot: func(id string) client.NewContainerOpts {
			return client.WithUserNSRemappedSnapshot(id, parent.image, idMap, idMap)
		}},
		{name: "with a root file system that is mounted with the mapping", overlay: true, snapshot: func(id string) client.NewContainerOpts {
			return client.WithNewSnapshot(id, parent.image, client.WithUserNSRemapperLabels(idMap, idMap))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.overlay && parent.snapshotter != "overlayfs" {
				t.Skipf("CANNOT RUN HERE: only overlayfs mounts with a mapping, and here the snapshotter is %s",
					parent.snapshotter)
			}
			e := parent.sub(t)
			c := e.run(fmt.Sprintf("u%d", i), config{
				new:  []client.NewContainerOpts{tt.snapshot(fmt.Sprintf("u%d-root", i))},
				opts: with(oci.WithUserNamespace(idMap, idMap)),
			}, "sh", "-c", "id -u; tr -s ' ' </proc/self/uid_map; stat -c %u:%g /bin/busybox\n"+
				"touch /new && stat -c %u /new; echo ready; sleep 1000")
			c.out.WaitFor(t, "ready")
			if got, want := c.out.String(), fmt.Sprintf("0\n 0 %d 65536\n0:0\n0\nready\n", mapped); got != want {
				t.Errorf("stdout = %q, want %q", got, want)
			}
			info, err := os.Stat(fmt.Sprintf("/proc/%d/root/new", c.Task.Pid()))
			e.must(err, "file of the container seen from outside")
			if !strings.Contains(fmt.Sprintf("%+v", info.Sys()), fmt.Sprintf("Uid:%d ", mapped)) {
				t.Errorf("owner of the container's file is %+v, want user %d", info.Sys(), mapped)
			}
			x := c.exec("e1", config{}, func(p *specs.Process) { p.User = specs.User{UID: 1000, GID: 1000} }, "sh",
				"-c", "id -u; tr -s ' ' </proc/self/gid_map")
			e.must(x.Start(e.ctx), "start e1")
			x.wantExit(0)
			if got, want := x.out.String(), fmt.Sprintf("1000\n 0 %d 65536\n", mapped); got != want {
				t.Errorf("stdout of the exec = %q, want %q", got, want)
			}
			c.kill()
		})
	}
}

func TestTerminal_InAUserNamespaceBelongsToItsUser(t *testing.T) {
	letOthersIn(t)
	e := newEnv(t)
	c := e.run("c1", config{
		terminal: true,
		new:      []client.NewContainerOpts{client.WithUserNSRemappedSnapshot("c1-root", e.image, idMap, idMap)},
		opts:     with(oci.WithUserNamespace(idMap, idMap), oci.WithTTYSize(80, 24)),
	}, "sh", "-c", "stat -c %u $(tty); stty size; echo again >$(tty)")
	c.wantExit(0)
	if got, want := c.out.String(), "0\r\n24 80\r\nagain\r\n"; got != want {
		t.Errorf("output = %q, want %q", got, want)
	}
}

func TestNamespace_IsThatOfTheConfiguration(t *testing.T) {
	offsets := spec(func(s *oci.Spec) {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.TimeNamespace})
		s.Linux.TimeOffsets = map[string]specs.LinuxTimeOffset{
			"boottime":  {Secs: 700000000},
			"monotonic": {Secs: 700000000},
		}
	})
	own := oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.CgroupNamespace})
	runRows(t, []row{
		{
			name: "cgroup namespace: the container sees its cgroup as the root", opts: with(own),
			script: "cut -d: -f3 /proc/self/cgroup | sort -u", want: "/\n",
		},
		{
			name: "no cgroup namespace: the container sees the host's", opts: with(oci.WithHostNamespace(specs.CgroupNamespace)),
			script: "grep -c '/shim-test-[^/]*/r1$' /proc/self/cgroup >/dev/null && echo seen", want: "seen\n",
		},
		{
			name: "time namespace: the clocks are moved", opts: with(offsets), needs: "/proc/self/ns/time",
			script: "read up rest </proc/uptime; [ ${up%.*} -gt 700000000 ] && echo moved", want: "moved\n",
		},
		{name: "host name", opts: with(oci.WithHostname("name-of-its-own")), script: "hostname", want: "name-of-its-own\n"},
		{
			name: "domain name", opts: with(oci.WithDomainname("domain.of.its.own")),
			script: "cat /proc/sys/kernel/domainname", want: "domain.of.its.own\n",
		},
	})
}

func TestNamespace_HasItsKernelSettings(t *testing.T) {
	sysctl := func(name, value string) []oci.SpecOpts {
		return with(spec(func(s *oci.Spec) { s.Linux.Sysctl = map[string]string{name: value} }))
	}
	runRows(t, []row{
		{name: "network", opts: sysctl("net.ipv4.ip_forward", "1"), script: "cat /proc/sys/net/ipv4/ip_forward", want: "1\n"},
		{name: "network, off", opts: sysctl("net.ipv4.ip_forward", "0"), script: "cat /proc/sys/net/ipv4/ip_forward", want: "0\n"},
		{name: "shared memory", opts: sysctl("kernel.shmmni", "321"), script: "cat /proc/sys/kernel/shmmni", want: "321\n"},
		{name: "shared memory, removal", opts: sysctl("kernel.shm_rmid_forced", "1"), script: "cat /proc/sys/kernel/shm_rmid_forced", want: "1\n"},
	})
	t.Run("one that is the whole machine's is refused", func(t *testing.T) {
		wantRefused(t,
			[]refusal{{name: "vm.swappiness", opts: sysctl("vm.swappiness", "1"), words: []string{"vm.swappiness"}}})
	})
}

func TestExec_JoinsTheNamespacesOfItsContainer(t *testing.T) {
	e := newEnv(t)
	opts := with(oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.CgroupNamespace}),
		oci.WithHostname("name-of-its-own"), spec(func(s *oci.Spec) {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.TimeNamespace})
			s.Linux.TimeOffsets = map[string]specs.LinuxTimeOffset{"boottime": {Secs: 700000000}}
		}))
	needKernel(t, "/proc/self/ns/time")
	const script = "cd /proc/self/ns; for n in cgroup ipc mnt net pid time user uts; do readlink $n; done"
	c := e.run("c1", config{opts: opts}, "sh", "-c", script+"; echo; sleep 1000")
	c.out.WaitFor(t, "\n\n")
	x := c.exec("e1", config{}, nil, "sh", "-c", script+"; echo")
	e.must(x.Start(e.ctx), "start e1")
	x.wantExit(0)
	if got, want := x.out.String(), c.out.String(); got != want {
		t.Errorf("namespaces of the exec:\n%s\nof init:\n%s", got, want)
	}
	c.kill()
}
