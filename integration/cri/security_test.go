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

func security(set func(*runtimeapi.LinuxContainerSecurityContext)) change {
	return func(c *runtimeapi.ContainerConfig) { set(c.GetLinux().GetSecurityContext()) }
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

func (e *env) label(path, label string) {
	e.Helper()
	e.must(unix.Setxattr(path, labelXattr, []byte(label), 0), "label "+path)
}

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
