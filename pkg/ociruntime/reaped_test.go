// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/process"
)

// reapedConfig is a container with a small init.
func reapedConfig(tb testing.TB, args ...string) process.Config {
	tb.Helper()
	c := newConfig(tb, args...)
	asContainerd(tb, &c)
	c.Options.Init = true
	return c
}

// Errors are those of the container, whose class is not that of a process with which no init is possible.
func TestReaped_ErrorsOfTheStart(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*process.Config)
		words  string
	}{
		"a volume": {mount(specs.Mount{
			Destination: "/data", Type: "bind", Source: "/no/such", Options: []string{"bind"},
		}), "/no/such: no such file"},
		"the working directory": {func(c *process.Config) { c.Spec.Process.Cwd = "/bin/busybox" }, `chdir to cwd ("/bin/busybox")`},
		"a limit": {func(c *process.Config) {
			c.Spec.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1 << 40, Hard: 1 << 40}}
		}, "error setting rlimit type 7"},
		"the environment": {func(c *process.Config) { c.Spec.Process.Env = []string{"nope"} }, "invalid environment variable"},
	} {
		t.Run(name, func(t *testing.T) {
			c := reapedConfig(t, "true")
			tt.change(&c)
			_, err := tryCreate(t, t.Context(), c)
			if err == nil || errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), tt.words) {
				t.Errorf("Create = %v, want an error without a class that says %q", err, tt.words)
			}
		})
	}
}

// The init is a process of the container as others are.
func TestReaped_AtTheLimitOfProcesses(t *testing.T) {
	for limit, want := range map[int64]struct {
		status int
		text   string
	}{1: {255, "init: fork: errno 011\n"}, 2: {7, ""}} {
		c := reapedConfig(t, "sh", "-c", "exit 7")
		c.Spec.Linux.Resources = &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &limit}}
		stderr := filepath.Join(t.TempDir(), "stderr")
		c.IO.Stderr = "file://" + stderr
		if status := create(t, c).start().wait().Status; status != want.status {
			t.Errorf("a limit of %d: status %d, want %d", limit, status, want.status)
		}
		eventually(t, fmt.Sprintf("the text %q", want.text), func() bool {
			text, err := os.ReadFile(stderr)
			must(t, err)
			return string(text) == want.text
		})
	}
}

// The init has no capability left to execute it, unlike the launcher.
func TestReaped_ProgramThatOnlyRootMayExecute(t *testing.T) {
	const overrides = "CAP_DAC_OVERRIDE"
	for _, uid := range []uint32{0, 1000} {
		for _, ambient := range [][]string{nil, {overrides}} {
			t.Run(fmt.Sprintf("user %d, ambient %v", uid, ambient), func(t *testing.T) {
				c := reapedConfig(t, "/private/sh", "-c", "exit 7")
				code, err := os.ReadFile(filepath.Join(c.Rootfs, "bin/busybox"))
				must(t, err)
				must(t, os.Mkdir(filepath.Join(c.Rootfs, "private"), 0o755))
				must(t, os.WriteFile(filepath.Join(c.Rootfs, "private/sh"), code, 0o700)) //nolint:gosec // executable
				c.Spec.Process.User = specs.User{UID: uid, GID: uid}
				caps := []string{overrides}
				c.Spec.Process.Capabilities = &specs.LinuxCapabilities{
					Bounding: caps, Effective: caps, Permitted: caps, Inheritable: ambient, Ambient: ambient,
				}
				b, err := tryCreate(t, t.Context(), c)
				if uid != 0 && ambient == nil {
					if want := `exec: "/private/sh": permission denied`; err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("Create = %v, want %s", err, want)
					}
					return
				}
				must(t, err)
				if got := b.start().wait().Status; got != 7 {
					t.Errorf("status %d, want 7", got)
				}
			})
		}
	}
}
