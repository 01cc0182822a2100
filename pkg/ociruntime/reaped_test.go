// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
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
			if err == nil || errdefs.IsFailedPrecondition(err) || !strings.HasPrefix(err.Error(), processFailed) ||
				!strings.Contains(err.Error(), tt.words) {
				t.Errorf("Create = %v, want an error without a class that says %q and %q", err, processFailed, tt.words)
			}
		})
	}
}
