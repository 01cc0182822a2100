// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"fmt"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/harness"
)

// security changes a container's security context.
func security(set func(*runtimeapi.LinuxContainerSecurityContext)) change {
	return func(c *runtimeapi.ContainerConfig) { set(c.GetLinux().GetSecurityContext()) }
}

func TestSeccomp_Profiles(t *testing.T) {
	eachWay(t, func(e *env) {
		profile := e.file("profile.json", `{
			"defaultAction": "SCMP_ACT_ALLOW",
			"syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]
		}`)
		with := func(kind runtimeapi.SecurityProfile_ProfileType, ref string) change {
			return security(func(s *runtimeapi.LinuxContainerSecurityContext) {
				s.Seccomp = &runtimeapi.SecurityProfile{ProfileType: kind, LocalhostRef: ref}
			})
		}
		p := e.pod("p")
		const mode = "awk '/^Seccomp:/ {print $2}' /proc/self/status"
		standard := p.run("default", forever, with(runtimeapi.SecurityProfile_RuntimeDefault, ""))
		standard.wantExec("2", "sh", "-c", mode)
		standard.wantExec("refused", "sh", "-c", "unshare -m true 2>/dev/null || echo refused")
		own := p.run("own", forever, with(runtimeapi.SecurityProfile_Localhost, profile))
		own.wantExec("refused", "sh", "-c", "mkdir /tmp/x 2>/dev/null || echo refused")
		own.exec("touch", "/tmp/file")
		none := p.run("none", forever, with(runtimeapi.SecurityProfile_Unconfined, ""))
		none.wantExec("0", "sh", "-c", mode)
		if _, err := p.tryCreate("absent", forever,
			with(runtimeapi.SecurityProfile_Localhost, "/absent.json")); err == nil ||
			!strings.Contains(err.Error(), "/absent.json") {
			e.Errorf("container with a profile that is absent = %v, want an error that names it", err)
		}
		p.remove()
	})
}

func TestSecurity_UsersGroupsAndPrivileges(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		const groups = "awk '/^Groups:/ {$1=\"\"; print}' /proc/self/status"
		as := func(policy runtimeapi.SupplementalGroupsPolicy) change {
			return security(func(s *runtimeapi.LinuxContainerSecurityContext) {
				s.RunAsUser, s.RunAsGroup = &runtimeapi.Int64Value{Value: 1000}, &runtimeapi.Int64Value{Value: 3000}
				s.SupplementalGroups, s.SupplementalGroupsPolicy = []int64{77}, policy
				s.NoNewPrivs = true
			})
		}
		merge := p.run("merge", forever, as(runtimeapi.SupplementalGroupsPolicy_Merge))
		strict := p.run("strict", forever, as(runtimeapi.SupplementalGroupsPolicy_Strict))
		sorted := func(c *container) string { return strings.Join(strings.Fields(c.exec("sh", "-c", groups)), " ") }
		if got := sorted(merge); !strings.Contains(got, "77") || !strings.Contains(got, "4444") {
			e.Errorf("groups when merged = %s, want 77 and the image's 4444", got)
		}
		if got := sorted(strict); !strings.Contains(got, "77") || strings.Contains(got, "4444") {
			e.Errorf("groups when strict = %s, want 77 and not the image's 4444", got)
		}
		strict.wantExec("1000 3000", "sh", "-c", "echo $(id -u) $(id -g)")
		strict.wantExec("1", "sh", "-c", "awk '/^NoNewPrivs:/ {print $2}' /proc/self/status")
		user := strict.status().GetUser().GetLinux()
		if user.GetUid() != 1000 || user.GetGid() != 3000 {
			e.Errorf("user in the status = %v, want 1000 and 3000", user)
		}
		readOnly := p.run("readonly", forever, security(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.ReadonlyRootfs = true
			s.Capabilities = &runtimeapi.Capability{
				DropCapabilities: []string{"ALL"},
				AddCapabilities:  []string{"NET_BIND_SERVICE"},
			}
			s.MaskedPaths, s.ReadonlyPaths = []string{"/proc/kcore"}, []string{"/proc/sys"}
		}))
		readOnly.wantExec("refused", "sh", "-c", "touch /file 2>/dev/null || echo refused")
		readOnly.wantExec("0000000000000400", "sh", "-c", "awk '/^CapEff:/ {print $2}' /proc/self/status")
		readOnly.wantExec("0", "sh", "-c", "head -c 1 /proc/kcore | wc -c")
		p.remove()
	})
}

func TestSecurity_PrivilegedContainer(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p", func(c *runtimeapi.PodSandboxConfig) { c.GetLinux().GetSecurityContext().Privileged = true })
		c := p.run("c", forever,
			security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.Privileged, s.Seccomp = true, nil }))
		c.exec("sh", "-c", "mkdir /tmp/x && mount -t tmpfs tmpfs /tmp/x && touch /tmp/x/file")
		c.exec("sh", "-c", "test -e /dev/kmsg -o -e /dev/mem -o -e /dev/vda -o -e /dev/fuse")
		p.remove()
	})
}

func TestSecurity_SysctlsOfThePod(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p", func(c *runtimeapi.PodSandboxConfig) {
			c.GetLinux().Sysctls = map[string]string{
				"net.ipv4.ip_local_port_range": "32000 32100", "kernel.shm_rmid_forced": "1",
				"net.ipv4.ip_unprivileged_port_start": "1000",
				"fs.mqueue.msg_max":                   "20",
			}
		})
		a, b := p.run("a", forever), p.run("b", forever)
		for _, c := range []*container{a, b} {
			c.wantExec("32000\t32100", "cat", "/proc/sys/net/ipv4/ip_local_port_range")
			c.wantExec("1", "cat", "/proc/sys/kernel/shm_rmid_forced")
			c.wantExec("20", "cat", "/proc/sys/fs/mqueue/msg_max")
			c.wantExec("1000", "cat", "/proc/sys/net/ipv4/ip_unprivileged_port_start") // not containerd's 0
		}
		other := e.pod("other").run("c", forever)
		other.wantExec("0", "cat", "/proc/sys/net/ipv4/ip_unprivileged_port_start")
		other.wantExec("10", "cat", "/proc/sys/fs/mqueue/msg_max")
	})
}

// The handler lets all annotations through; whoever may create pods is not root of the node by that.
func TestUnsafeAnnotations_AreRefused(t *testing.T) {
	harness.OursOnly(t, "annotations by which a container reaches the host")
	eachWay(t, func(e *env) {
		p := e.pod("p")
		for name, value := range map[string]string{
			"host-rootfs": "/root:/r:rw", "pid-file": e.dir + "/pid",
			"listen": "tcp://127.0.0.1:1",
		} {
			c, err := p.tryCreate(name, forever, func(c *runtimeapi.ContainerConfig) {
				c.Annotations = map[string]string{"io.containerd.sandbox.v1/" + name: value}
			})
			if err == nil { // CRI makes the task when it starts the container
				_, err = e.daemon.Runtime.StartContainer(e.ctx, &runtimeapi.StartContainerRequest{ContainerId: c.id})
			}
			if want := fmt.Sprintf("AllowUnsafeAnnotations = [%q]", name); err == nil ||
				!strings.Contains(err.Error(), want) {
				e.Errorf("%s: %v, want %q in it", name, err, want)
			}
		}
		p.remove()
	})
}
