// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

// linuxPod changes a pod's part for Linux.
func linuxPod(set func(*runtimeapi.LinuxPodSandboxConfig)) func(*runtimeapi.PodSandboxConfig) {
	return func(c *runtimeapi.PodSandboxConfig) { set(c.GetLinux()) }
}

func TestPod_ThatCannotBeIsRefusedAndLeavesNothing(t *testing.T) {
	sysctl := func(name, value string) func(*runtimeapi.PodSandboxConfig) {
		return linuxPod(func(l *runtimeapi.LinuxPodSandboxConfig) { l.Sysctls = map[string]string{name: value} })
	}
	users := func(u *runtimeapi.UserNamespace) func(*runtimeapi.PodSandboxConfig) {
		return in(func(o *runtimeapi.NamespaceOption) { u.Mode = runtimeapi.NamespaceMode_POD; o.UsernsOptions = u })
	}
	two := []*runtimeapi.IDMapping{
		{HostId: firstUser, Length: 10},
		{HostId: firstUser + 10, ContainerId: 10, Length: 10},
	}
	rootless := []*runtimeapi.IDMapping{{HostId: firstUser, ContainerId: 1, Length: 10}}
	refused := []struct {
		name   string
		change func(*runtimeapi.PodSandboxConfig)
		want   string     // in the error
		code   codes.Code // by this shim, where it is the shim that refuses
		paused bool       // of the pause container only
	}{
		{"sysctl of the machine", sysctl("kernel.panic", "1"), "kernel.panic", codes.InvalidArgument, false},
		{"sysctl that is none", sysctl("net.ipv4.no_such_thing", "1"), "no_such_thing", codes.InvalidArgument, false},
		{"sysctl with a value it does not take", sysctl("net.ipv4.ip_local_port_range", "many"), "ip_local_port_range", codes.InvalidArgument, false},
		{"sysctl that leads out", sysctl("net../../kernel.panic", "1"), "net", codes.InvalidArgument, false},
		{"network sysctl on the machine's network", func(c *runtimeapi.PodSandboxConfig) {
			in(func(o *runtimeapi.NamespaceOption) { o.Network = runtimeapi.NamespaceMode_NODE })(c)
			c.Hostname = ""
			sysctl("net.ipv4.ip_local_port_range", "32000 32100")(c)
		}, "net.ipv4.ip_local_port_range", codes.InvalidArgument, false},
		{"name of its own on the machine's network", in(func(o *runtimeapi.NamespaceOption) { o.Network = runtimeapi.NamespaceMode_NODE }), "hostname", codes.InvalidArgument, false},
		{"name too long for the kernel", func(c *runtimeapi.PodSandboxConfig) { c.Hostname = strings.Repeat("h", 65) }, "hostname", codes.OK, false},
		{"cgroup parent with a file in its place", linuxPod(func(l *runtimeapi.LinuxPodSandboxConfig) { l.CgroupParent += "/cgroup.procs" }), "cgroup", codes.OK, false},
		{"users without a mapping", users(&runtimeapi.UserNamespace{}), "", codes.OK, false},
		{"users of two mappings", users(&runtimeapi.UserNamespace{Uids: two, Gids: two}), "", codes.OK, false},
		{"users without root", users(&runtimeapi.UserNamespace{Uids: rootless, Gids: mapping()}), "uid 0", codes.InvalidArgument, false},
		{"groups without root", users(&runtimeapi.UserNamespace{Uids: mapping(), Gids: rootless}), "gid 0", codes.InvalidArgument, false},
		{"users without root on the machine's network", func(c *runtimeapi.PodSandboxConfig) {
			users(&runtimeapi.UserNamespace{Uids: rootless, Gids: rootless})(c)
			in(func(o *runtimeapi.NamespaceOption) { o.Network = runtimeapi.NamespaceMode_NODE })(c)
			c.Hostname = ""
		}, "uid 0", codes.InvalidArgument, false},
		{"users that are not there", users(&runtimeapi.UserNamespace{
			Uids: []*runtimeapi.IDMapping{{HostId: 1<<32 - 10, Length: 100}},
			Gids: []*runtimeapi.IDMapping{{HostId: 1<<32 - 10, Length: 100}},
		}), "", codes.OK, false},
		{"seccomp profile that is absent", linuxPod(func(l *runtimeapi.LinuxPodSandboxConfig) {
			l.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{
				ProfileType:  runtimeapi.SecurityProfile_Localhost,
				LocalhostRef: "/absent.json",
			}
		}), "/absent.json", codes.OK, true},
		{"SELinux level that is none", linuxPod(func(l *runtimeapi.LinuxPodSandboxConfig) {
			l.SecurityContext.SelinuxOptions = &runtimeapi.SELinuxOption{Level: `s0",size=8G`}
		}), `level`, codes.OK, false},
		{"no name", func(c *runtimeapi.PodSandboxConfig) { c.Metadata = nil }, "metadata", codes.OK, false},
	}
	eachWay(t, func(e *env) {
		for _, tt := range refused {
			if e.way != cri.PodSandbox && tt.paused {
				continue // there is no pause container that it is for
			}
			_, err := e.tryPod("bad", tt.change)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				e.Errorf("%s: pod = %v, want an error with %q", tt.name, err, tt.want)
			}
			if code := status.Code(errors.Unwrap(err)); harness.Runtime() == harness.Ours && tt.code != codes.OK &&
				code != tt.code {
				e.Errorf("%s: class of %v = %v, want %v", tt.name, err, code, tt.code)
			}
			e.wantNothingLeft()
			harness.Eventually(e, tt.name+": no shim", func() error {
				if shims := harness.ShimsOf(e.daemon.Address, ""); len(shims) > 0 {
					return fmt.Errorf("there are %v", shims)
				}
				return nil
			})
		}
		e.wantPodWorks()
	})
}

func TestPod_OfAnUnknownHandlerIsRefused(t *testing.T) {
	eachWay(t, func(e *env) {
		handler := e.handler
		e.handler = "absent"
		if _, err := e.tryPod("p"); err == nil || !strings.Contains(err.Error(), "absent") {
			e.Errorf("pod = %v, want an error that names the handler", err)
		}
		e.handler = handler
		e.wantPodWorks()
	})
}

func TestContainer_ThatCannotBeIsRefusedAndThePodLives(t *testing.T) {
	refused := []struct {
		name   string
		argv   []string
		change change
		want   string
	}{
		{"program that is absent", []string{"/absent"}, nil, "/absent"},
		{"program that is a directory", []string{"/tmp"}, nil, "/tmp"},
		{"directory that is no directory", forever, func(c *runtimeapi.ContainerConfig) { c.WorkingDir = "/bin/busybox" }, "/bin/busybox"},
		{"user that is absent", forever, security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUsername = "nobody-here" }), "no users found"},
		{"group without a user", forever, security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsGroup = &runtimeapi.Int64Value{Value: 1} }), "group"},
		{"CPU period out of range", forever, limits(func(r *runtimeapi.LinuxContainerResources) { r.CpuPeriod, r.CpuQuota = 1, 1000 }), "period"},
		{"CPUs that the machine has not", forever, limits(func(r *runtimeapi.LinuxContainerResources) { r.CpusetCpus = "4000-4001" }), "4000"},
		{"memory limit below what starts", forever, limits(func(r *runtimeapi.LinuxContainerResources) { r.MemoryLimitInBytes = 4096 }), ""},
		{"image that is absent", forever, func(c *runtimeapi.ContainerConfig) { c.Image = &runtimeapi.ImageSpec{Image: "shim.test/absent:latest"} }, "absent"},
		{"image volume that is absent", forever, func(c *runtimeapi.ContainerConfig) {
			c.Mounts = []*runtimeapi.Mount{{
				Image:         &runtimeapi.ImageSpec{Image: "shim.test/absent:latest"},
				ContainerPath: "/x", Readonly: true,
			}}
		}, "absent"},
		{"device that is absent", forever, func(c *runtimeapi.ContainerConfig) {
			c.Devices = []*runtimeapi.Device{{HostPath: "/dev/absent", ContainerPath: "/dev/absent", Permissions: "rw"}}
		}, "/dev/absent"},
		{"recursively read-only and writable", forever, mounted("/tmp", "/x", func(m *runtimeapi.Mount) { m.RecursiveReadOnly = true }), "ecursive"},
		{"pids of a container that is absent", forever, security(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.NamespaceOptions.Pid, s.NamespaceOptions.TargetId = runtimeapi.NamespaceMode_TARGET, "absent"
		}), "absent"},
		{"other users than the pod's", forever, security(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{
				Mode: runtimeapi.NamespaceMode_POD,
				Uids: mapping(), Gids: mapping(),
			}
		}), "user"},
		{"seccomp profile that is none", forever, security(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.Seccomp = &runtimeapi.SecurityProfile{
				ProfileType:  runtimeapi.SecurityProfile_Localhost,
				LocalhostRef: "/bin/busybox",
			}
		}), ""},
	}
	eachWay(t, func(e *env) {
		p := e.pod("p")
		good := p.run("good", forever)
		for i, tt := range refused {
			var changes []change
			if tt.change != nil {
				changes = append(changes, tt.change)
			}
			c, err := p.tryCreate(fmt.Sprintf("bad%d", i), tt.argv, changes...)
			if err == nil {
				_, err = e.daemon.Runtime.StartContainer(e.ctx, &runtimeapi.StartContainerRequest{ContainerId: c.id})
				if status := c.status(); err != nil && status.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
					e.Errorf("%s: state after a failed start = %v, want exited", tt.name, status)
				}
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				e.Errorf("%s: container = %v, want an error with %q", tt.name, err, tt.want)
			}
			good.wantExec("well", "echo", "well")
		}
		p.run("next", forever).wantExec("well", "echo", "well")
		p.remove()
	})
}
