// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/kernelversion"

	"sandbox.internal/shim/integration/tools"
)

// Ours is the runtime that this project makes.
const Ours = "io.containerd.sandbox.v1"

// Env is the programs that the tests run.
type Env struct {
	Runtime string   // the name that containerd gets
	Shim    string   // the binary of Runtime
	Tools   string   // directory with containerd, ctr, containerd-shim-runc-v2 and runc
	Daemon  string   // the containerd to start: that of Tools, or an older release
	Busybox string   // a static busybox
	Vars    []string // NAME=value: of containerd, and so of its shims
}

// Runtime returns the runtime under test.
func Runtime() string {
	if name := os.Getenv("SHIM_TEST_RUNTIME"); name != "" {
		return name
	}
	return Ours
}

// OursOnly skips a test of a promise that other shims do not make. It never skips when the shim of this project is
// tested.
func OursOnly(tb testing.TB, promise string) {
	tb.Helper()
	if Runtime() != Ours {
		tb.Skipf("%s does not promise: %s", Runtime(), promise)
	}
}

// Lacking skips the test and names what it needs, or fails it where SHIM_TEST_REQUIRE lists name.
func Lacking(tb testing.TB, name, what string) {
	tb.Helper()
	promised := os.Getenv("SHIM_TEST_REQUIRE")
	if slices.Contains(strings.Split(promised, ","), name) {
		tb.Fatalf("needs %s, which SHIM_TEST_REQUIRE=%s promises", what, promised)
	}
	tb.Skipf("SKIPPED: needs %s (add %q to SHIM_TEST_REQUIRE to make this a failure)", what, name)
}

// NeedsKernel skips the test on a kernel before major.minor, and names what that has.
func NeedsKernel(tb testing.TB, major, minor uint64, what string) {
	tb.Helper()
	newer, err := HasKernel(major, minor)
	if err != nil {
		tb.Fatal(err)
	}
	if !newer {
		tb.Skipf("SKIPPED: needs Linux %d.%d for %s", major, minor, what)
	}
}

// HasKernel reports whether the kernel is major.minor or later.
func HasKernel(major, minor uint64) (bool, error) {
	return kernelversion.GreaterEqualThan(kernelversion.KernelVersion{Kernel: major, Major: minor})
}

// Require returns the environment, or an error that says which command to run. What is missing is never skipped over.
func Require(ctx context.Context) (Env, error) {
	env := Env{Runtime: Runtime(), Busybox: "/bin/busybox"}
	if os.Geteuid() != 0 {
		return env, errors.New("these tests mount, and make namespaces and cgroups. Run as root: sudo make integration")
	}
	if path, err := exec.LookPath("busybox"); err == nil {
		env.Busybox = path
	}
	// A static program has no interpreter to look for; ldd is not everywhere, so the test image itself finds out the
	// rest.
	if _, err := os.Stat(env.Busybox); err != nil {
		return env, fmt.Errorf("no busybox: apt-get install busybox-static: %w", err)
	}
	dir, err := tools.Build(ctx)
	if err != nil {
		return env, fmt.Errorf("build the tools (cd integration && go run ./cmd/tools): %w", err)
	}
	env.Tools, env.Daemon = dir, filepath.Join(dir, "containerd")
	env.Shim, err = shimBinary(env)
	return env, err
}

// shimBinary finds the binary of the runtime: containerd makes its name of the last two parts of the runtime's.
func shimBinary(env Env) (string, error) {
	parts := strings.Split(env.Runtime, ".")
	if len(parts) < 2 {
		return "", fmt.Errorf("SHIM_TEST_RUNTIME %q: want a name like %q", env.Runtime, Ours)
	}
	name := "containerd-shim-" + strings.Join(parts[len(parts)-2:], "-")
	path := filepath.Join(env.Tools, name)
	if env.Runtime == Ours {
		path = os.Getenv("SHIM_BINARY")
		if path == "" {
			return "", errors.New("SHIM_BINARY is not set. Run: " +
				"make build && cd integration && SHIM_BINARY=$PWD/../bin/" + name + " go test ./...")
		}
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if filepath.Base(path) != name {
		return "", fmt.Errorf("SHIM_BINARY %q: containerd looks for a file named %q", path, name)
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("the shim (make build): %w", err)
	}
	return path, nil
}

// Path is a PATH with the shim and the tools first.
func (e Env) Path() string {
	return filepath.Dir(e.Shim) + ":" + e.Tools + ":" + os.Getenv("PATH")
}
