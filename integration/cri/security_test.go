// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/remotecommand"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/harness"
)

// security changes a container's security context.
func security(set func(*runtimeapi.LinuxContainerSecurityContext)) change {
	return func(c *runtimeapi.ContainerConfig) { set(c.GetLinux().GetSecurityContext()) }
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

// confines reports whether containerd finds AppArmor here (containerd pkg/apparmor): then it gives each container its
// profile.
func confines() bool {
	for _, path := range []string{"/sys/kernel/security/apparmor", "/sbin/apparmor_parser"} {
		if _, err := os.Stat(path); err != nil {
			return false
		}
	}
	enabled, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	return err == nil && strings.HasPrefix(string(enabled), "Y")
}

// wantProfile compares the profile of a container's first process, of an exec, and of one with a terminal.
func (c *container) wantProfile(want string) {
	e := c.pod.e
	e.Helper()
	const show = "cat /proc/%/attr/apparmor/current"
	own := strings.ReplaceAll(show, "%", "self")
	c.wantExec(want, "sh", "-c", strings.ReplaceAll(show, "%", "1"))
	c.wantExec(want, "sh", "-c", own)
	keyboard, stdin := io.Pipe() // stays open: at the end of the input containerd closes the output
	defer func() { _ = stdin.Close() }()
	var out harness.Buffer
	e.must(e.stream(c.openExec(true, "sh", "-c", own+"; echo oops >&2"),
		remotecommand.StreamOptions{Stdin: keyboard, Stdout: &out, Tty: true}), "exec with a terminal")
	if got := out.String(); got != want+"\r\noops\r\n" {
		e.Errorf("an exec with a terminal wrote %q, want %q and oops", got, want)
	}
}

func TestAppArmor_ContainersAndTheirExecsAreConfined(t *testing.T) {
	if !confines() {
		harness.Lacking(t, "apparmor", "a kernel with AppArmor, and /sbin/apparmor_parser")
	}
	eachWay(t, func(e *env) {
		p := e.pod("p")
		p.run("default", forever).wantProfile("cri-containerd.apparmor.d (enforce)")
		p.run("none", forever, security(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.Apparmor = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
		})).wantProfile("unconfined")
	})
}

const labelXattr = "security.selinux"

// label gives a file a label.
func (e *env) label(path, label string) {
	e.Helper()
	e.must(unix.Setxattr(path, labelXattr, []byte(label), 0), "label "+path)
}

// wantLabel compares the label of a file.
func (e *env) wantLabel(path, want string) {
	e.Helper()
	buf := make([]byte, 256)
	n, err := unix.Getxattr(path, labelXattr, buf)
	e.must(err, "label of "+path)
	if got := strings.TrimRight(string(buf[:n]), "\x00"); got != want {
		e.Errorf("label of %s = %s, want %s", path, got, want)
	}
}

// The policy is that of integration/vm/guest.
func TestSELinux_ContainersAndTheirExecsAreConfined(t *testing.T) {
	if enforcing, err := os.ReadFile("/sys/fs/selinux/enforce"); err != nil || string(enforcing) != "1" {
		harness.Lacking(t, "selinux", "SELinux that enforces the policy of make test-selinux")
	}
	options := &runtimeapi.SELinuxOption{Level: "s0:c1,c2"}
	const process, files = "system_u:system_r:container_t:s0:c1,c2", "system_u:object_r:container_file_t:s0:c1,c2"
	eachWay(t, func(e *env) {
		volume := e.volume()
		e.label(e.file("volume/own", "own"), files)
		e.label(e.file("volume/other", "other"), "system_u:object_r:container_file_t:s0:c3,c4")
		e.label(e.file("volume/forbidden", "forbidden"), "system_u:object_r:forbidden_t:s0")
		p := e.pod("p", linuxPod(func(l *runtimeapi.LinuxPodSandboxConfig) { l.SecurityContext.SelinuxOptions = options }))
		c := p.run("c", forever, mounted(volume, "/volume"),
			security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.SelinuxOptions = options }))
		const own = `tr -d '\0' </proc/self/attr/current`
		c.wantExec(process, "sh", "-c", `tr -d '\0' </proc/1/attr/current`)
		c.wantExec(process, "sh", "-c", own)
		c.wantExec("own", "cat", "/volume/own")
		for _, name := range []string{"other", "forbidden"} {
			denied := fmt.Sprintf("cat: can't open '/volume/%s': Permission denied", name)
			c.wantExec(denied, "sh", "-c", "cat /volume/"+name+" 2>&1; true")
			c.wantExec("refused", "sh", "-c", "true 2>/dev/null >>/volume/"+name+" || echo refused")
		}
		keyboard, stdin := io.Pipe() // stays open: at the end of the input containerd closes the output
		defer func() { _ = stdin.Close() }()
		var out harness.Buffer
		e.must(e.stream(c.openExec(true, "sh", "-c", own+"; cat /volume/forbidden; true"),
			remotecommand.StreamOptions{Stdin: keyboard, Stdout: &out, Tty: true}), "exec with a terminal")
		if want := process + "cat: can't open '/volume/forbidden': Permission denied\r\n"; out.String() != want {
			e.Errorf("an exec with a terminal wrote %q, want %q", out.String(), want)
		}
		// What containers of a pod share.
		c.exec("sh", "-c", "cat /etc/hosts /etc/hostname /etc/resolv.conf && echo >/dev/shm/file")
		root := fmt.Sprintf("/proc/%d/root", c.pid())
		for _, name := range []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/dev/shm", "/dev/shm/file"} {
			e.wantLabel(root+name, files)
		}
		for _, name := range []string{"/", "/bin/busybox", "/dev", "/dev/pts"} {
			e.wantLabel(root+name, files)
		}
	})
}

// What a pod's security says of its containers: seccomp, users and groups, capabilities, privileges.
func TestSecurity_OfContainers(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		profile := e.file("profile.json", `{
			"defaultAction": "SCMP_ACT_ALLOW",
			"syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]
		}`)
		filtered := func(kind runtimeapi.SecurityProfile_ProfileType, ref string) change {
			return security(func(s *runtimeapi.LinuxContainerSecurityContext) {
				s.Seccomp = &runtimeapi.SecurityProfile{ProfileType: kind, LocalhostRef: ref}
			})
		}
		const mode = "awk '/^Seccomp:/ {print $2}' /proc/self/status"
		p.run("default", forever).
			wantExec("2 refused", "sh", "-c", "echo $("+mode+") $(unshare -m true 2>/dev/null || echo refused)")
		p.run("own", forever, filtered(runtimeapi.SecurityProfile_Localhost, profile)).
			wantExec("refused", "sh", "-c", "touch /tmp/file; mkdir /tmp/x 2>/dev/null || echo refused")
		p.run("none", forever, filtered(runtimeapi.SecurityProfile_Unconfined, "")).wantExec("0", "sh", "-c", mode)
		_, err := p.tryCreate("absent", forever, filtered(runtimeapi.SecurityProfile_Localhost, "/absent.json"))
		if err == nil || !strings.Contains(err.Error(), "/absent.json") {
			e.Errorf("container with a profile that is absent = %v, want an error that names it", err)
		}

		for policy, groups := range map[runtimeapi.SupplementalGroupsPolicy]string{
			runtimeapi.SupplementalGroupsPolicy_Merge:  "77 3000 4444", // the last is the image's
			runtimeapi.SupplementalGroupsPolicy_Strict: "77 3000",
		} {
			c := p.run(policy.String(), forever, security(func(s *runtimeapi.LinuxContainerSecurityContext) {
				s.RunAsUser, s.RunAsGroup = &runtimeapi.Int64Value{Value: 1000}, &runtimeapi.Int64Value{Value: 3000}
				s.SupplementalGroups, s.SupplementalGroupsPolicy = []int64{77}, policy
				s.NoNewPrivs = true
			}))
			c.wantExec("1000 3000 "+groups+" 1", "sh", "-c",
				"echo $(id -u) $(id -g) $(awk '/^Groups:/ {$1=\"\"; print} /^NoNewPrivs:/ {print $2}' /proc/self/status)")
			if user := c.status().GetUser().GetLinux(); user.GetUid() != 1000 || user.GetGid() != 3000 {
				e.Errorf("user in the status = %v, want 1000 and 3000", user)
			}
		}
		p.run("readonly", forever, security(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.ReadonlyRootfs = true
			s.Capabilities = &runtimeapi.Capability{
				DropCapabilities: []string{"ALL"},
				AddCapabilities:  []string{"NET_BIND_SERVICE"},
			}
			s.MaskedPaths, s.ReadonlyPaths = []string{"/proc/kcore"}, []string{"/proc/sys"}
		})).wantExec("0000000000000400 0 refused", "sh", "-c",
			"echo $(awk '/^CapEff:/ {print $2}' /proc/self/status) $(head -c 1 /proc/kcore | wc -c) "+
				"$(touch /file 2>/dev/null || echo refused)")
		p.remove()

		p = e.pod("privileged", func(c *runtimeapi.PodSandboxConfig) { c.GetLinux().GetSecurityContext().Privileged = true })
		c := p.run("c", forever,
			security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.Privileged, s.Seccomp = true, nil }))
		c.exec("sh", "-c", "mkdir /tmp/x && mount -t tmpfs tmpfs /tmp/x && touch /tmp/x/file")
		c.exec("sh", "-c", "test -e /dev/kmsg -o -e /dev/mem -o -e /dev/vda -o -e /dev/fuse")
	})
}
