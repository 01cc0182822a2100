// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"io"
	"os"
	"strings"
	"testing"

	"k8s.io/client-go/tools/remotecommand"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/harness"
)

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
		p.remove()
	})
}
