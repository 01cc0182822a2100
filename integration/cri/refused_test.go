// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/harness"
)

func linuxPod(set func(*runtimeapi.LinuxPodSandboxConfig)) func(*runtimeapi.PodSandboxConfig) {
	return func(c *runtimeapi.PodSandboxConfig) { set(c.GetLinux()) }
}

// Some of each kind: the tables of pkg/pod and pkg/sandbox have all that a shim refuses.
func TestPod_ThatCannotBeIsRefusedAndLeavesNothing(t *testing.T) {
	sysctl := func(name, value string) func(*runtimeapi.PodSandboxConfig) {
		return linuxPod(func(l *runtimeapi.LinuxPodSandboxConfig) { l.Sysctls = map[string]string{name: value} })
	}
	rootless := []*runtimeapi.IDMapping{{HostId: firstUser, ContainerId: 1, Length: 10}}
	refused := []struct {
		change func(*runtimeapi.PodSandboxConfig)
		want   string     // in the error
		code   codes.Code // by this shim, where it is the shim that refuses
	}{
		{sysctl("kernel.panic", "1"), "kernel.panic", codes.InvalidArgument},
		{sysctl("net.ipv4.ip_local_port_range", "many"), "ip_local_port_range", codes.InvalidArgument},
		{in(func(o *runtimeapi.NamespaceOption) { o.Network = ofNode }), "hostname", codes.InvalidArgument},
		{in(func(o *runtimeapi.NamespaceOption) {
			o.UsernsOptions = &runtimeapi.UserNamespace{Mode: ofPod, Uids: rootless, Gids: mapping()}
		}), "uid 0", codes.InvalidArgument},
		{linuxPod(func(l *runtimeapi.LinuxPodSandboxConfig) {
			l.SecurityContext.SelinuxOptions = &runtimeapi.SELinuxOption{Level: `s0",size=8G`}
		}), "level", codes.OK},
	}
	eachWay(t, func(e *env) {
		for _, tt := range refused {
			_, err := e.tryPod("bad", tt.change)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				e.Errorf("pod = %v, want an error with %q", err, tt.want)
			}
			if code := status.Code(errors.Unwrap(err)); harness.Runtime() == harness.Ours && tt.code != codes.OK &&
				code != tt.code {
				e.Errorf("class of %v = %v, want %v", err, code, tt.code)
			}
			e.wantNothingLeft()
			harness.Eventually(e, tt.want+": no shim", func() error {
				if shims := harness.ShimsOf(e.daemon.Address, ""); len(shims) > 0 {
					return fmt.Errorf("there are %v", shims)
				}
				return nil
			})
		}
		e.wantPodWorks()
	})
}

// The kubelet puts the messages into the events and the status of the pod, so each names its class once at most. Whoever
// may create pods is not root of the node by the annotations that the handler lets through.
func TestContainer_ThatCannotBeIsRefusedAndThePodLives(t *testing.T) {
	unsafe := func(name, value string) change {
		return func(c *runtimeapi.ContainerConfig) {
			c.Annotations = map[string]string{"io.containerd.sandbox.v1/" + name: value}
		}
	}
	refused := []struct {
		argv   []string
		change change
		want   string
		ours   bool // only this shim refuses it
	}{
		{[]string{"/absent"}, nil, "no such file or directory", false},
		{[]string{"/tmp"}, nil, "/tmp", false},
		{forever, func(c *runtimeapi.ContainerConfig) { c.WorkingDir = "/bin/busybox" }, "/bin/busybox", false},
		{forever, limits(func(r *runtimeapi.LinuxContainerResources) { r.CpuPeriod, r.CpuQuota = 1, 1000 }), "period", false},
		{forever, limits(func(r *runtimeapi.LinuxContainerResources) { r.MemoryLimitInBytes = 4096 }), "", false},
		{forever, mounted("/tmp", "/x", func(m *runtimeapi.Mount) { m.RecursiveReadOnly = true }), "ecursive", false},
		{forever, unsafe("host-rootfs", "/root:/r:rw"), `AllowUnsafeAnnotations = ["host-rootfs"]`, true},
		{forever, unsafe("pid-file", "/run/pid"), `AllowUnsafeAnnotations = ["pid-file"]`, true},
	}
	eachWay(t, func(e *env) {
		p := e.pod("p")
		good := p.run("good", forever)
		for i, tt := range refused {
			if tt.ours && harness.Runtime() != harness.Ours {
				continue
			}
			c, err := p.tryCreate(fmt.Sprintf("bad%d", i), tt.argv, func(c *runtimeapi.ContainerConfig) {
				if tt.change != nil {
					tt.change(c)
				}
			})
			if err == nil {
				_, err = e.daemon.Runtime.StartContainer(e.ctx, &runtimeapi.StartContainerRequest{ContainerId: c.id})
				status := c.status()
				if err != nil && status.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
					e.Errorf("%d: state after a failed start = %v, want exited", i, status)
				}
				harness.WantClassOnce(e, "message of ContainerStatus", status.GetMessage(), errdefs.ErrInvalidArgument)
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				e.Errorf("%d: container = %v, want an error with %q", i, err, tt.want)
			}
			harness.WantClassOnce(e, "error", status.Convert(err).Message(), errdefs.ErrInvalidArgument)
			if tt.change != nil {
				continue
			}
			if _, err = good.tryExec(0, tt.argv...); err == nil || !strings.Contains(err.Error(), tt.want) {
				e.Errorf("exec of %q = %v, want an error with %q", tt.argv, err, tt.want)
			}
			harness.WantClassOnce(e, "error of an exec", status.Convert(err).Message(), errdefs.ErrInvalidArgument)
		}
		good.wantExec("well", "echo", "well")
	})
}
