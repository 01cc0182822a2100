// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sandbox.internal/shim/integration/harness"
)

// unified reports whether this machine has cgroup v2 alone.
func unified() bool { return harness.CgroupMode() == "v2" }

// booted reports whether systemd is pid 1 (sd_booted(3)).
func booted() bool {
	_, err := os.Stat("/run/systemd/system")
	return err == nil
}

// environment is what the tests need to know beside what each environment has.
func environment(s suite, native bool, programs, out string) ([]string, error) {
	env := []string{"SHIM_TOOLS=" + programs, "SHIM_TEST_RESULTS=" + filepath.Join(out, "log")}
	for _, name := range []string{"SHIM_BINARY", "SANDBOXCTL_BINARY"} {
		if binary := os.Getenv(name); binary != "" {
			binary, err := keep(binary, out)
			if err != nil {
				return nil, err
			}
			env = append(env, name+"="+binary)
		}
	}
	if !native {
		env = append(env, "SHIM_TEST_PODS=10") // the last of a name counts, so the caller has the last word
	}
	for _, name := range []string{
		"SHIM_TEST_RUNTIME", "SHIM_TEST_SANDBOXER", "SHIM_TEST_PODS", "SHIM_TEST_CPUSET_SECONDS",
		"SHIM_TEST_CPUSET_CONTAINERS", "SHIM_TEST_CLIENTS", "SHIM_TEST_KUBERNETES", "SHIM_TEST_ALL_INITS",
		"SHIM_TEST_INIT_MIXTURES", "SHIM_TEST_INIT_SEED",
	} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	require := []string{"root"}
	if s.v1 {
		require = append(require, "cgroup1")
	} else {
		require = append(require, "cgroup2")
	}
	if s.systemd {
		require = append(require, "systemd")
	}
	if !native {
		require = append(require, "cpus", "disk", "guest", "hotplug", "loop")
		if !s.v1 {
			require = append(require, "cpuset2")
		}
		if s.root == "" && !s.v1 {
			require = append(require, "criu")
		}
		module := "apparmor" // of Debian's kernel, unless its parameters say otherwise
		if slices.Contains(strings.Fields(s.extra), "security=selinux") {
			module = "selinux"
		}
		require = append(require, module)
		// A tmpfs of the guest's kernel cannot be mounted with a mapping of users, and what is on its disk can.
		env = append(env, "TMPDIR=/disk/tmp", "SHIM_TEST_SLOWNESS=5")
	}
	if s.require != "" {
		require = append(require, s.require)
	}
	return append(env, "SHIM_TEST_REQUIRE="+strings.Join(require, ",")), nil
}

// keep copies a program to the directory of the tests, so that another build does not change it while they run.
func keep(program, out string) (string, error) {
	text, err := os.ReadFile(program)
	if err != nil {
		return "", err
	}
	name := filepath.Join(out, filepath.Base(program))
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) { // it may run
		return "", err
	}
	return name, os.WriteFile(name, text, 0o755)
}
