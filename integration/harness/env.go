// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package harness is what all integration tests stand on: the programs under test, a private containerd, an image that
// needs no registry, waiting without sleeping, and the check that a test left nothing behind.
//
// The runtime under test is io.containerd.sandbox.v1 with the binary that SHIM_BINARY names. SHIM_TEST_RUNTIME names
// another, io.containerd.runc.v2 say: the same tests then run against that shim. A test that fails on both is wrong
// itself; one that fails on one of them shows a difference. Tests of what only this project promises call [OursOnly].
//
// A Containerd owns the containerd process it started and one goroutine that waits for it; Stop and Kill join both.
package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/kernelversion"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"

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

// Must ends the test when err is not nil.
func Must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// AtEnd calls f at the end of the test, which an error of f fails.
func AtEnd(tb testing.TB, f func() error) {
	tb.Helper()
	tb.Cleanup(func() {
		if err := f(); err != nil {
			tb.Error(err)
		}
	})
}

// WantClassOnce checks that a text for people names the class of an error at most once.
func WantClassOnce(tb testing.TB, what, text string, class error) {
	tb.Helper()
	if n := strings.Count(text, class.Error()); n > 1 {
		tb.Errorf("%s: %q tells %q %d times, want once at most", what, text, class, n)
	}
}

// pollInterval is short compared with the waits of tests: a container takes some tens of milliseconds to start.
const pollInterval = 5 * time.Millisecond

// patience bounds every wait of the tests. It is long for slow machines. A test that passes never waits that long.
var patience = Slow(time.Minute)

// Slowness is how many times slower than usual the machine is. SHIM_TEST_SLOWNESS sets it for an emulated one.
func Slowness() int {
	n, err := strconv.Atoi(os.Getenv("SHIM_TEST_SLOWNESS"))
	if err != nil {
		return 1
	}
	return max(n, 1)
}

// Slow returns how long this machine may take for what a usual machine does within d.
func Slow(d time.Duration) time.Duration { return d * time.Duration(Slowness()) }

// Fewer returns how many of n repetitions this machine does.
func Fewer(n int) int { return max(n/Slowness(), 1) }

// Eventually polls until cond returns nil. If that takes longer than the patience of the tests, the test ends with
// what was waited for and cond's last error.
func Eventually(tb testing.TB, what string, cond func() error) {
	tb.Helper()
	if err := poll(patience, cond); err != nil {
		tb.Fatalf("%s: not within %v: %v", what, patience, err)
	}
}

// Poll is Eventually outside of a test: it returns cond's last error.
func Poll(cond func() error) error { return poll(patience, cond) }

// PollFor is Poll with a limit of the caller's.
func PollFor(limit time.Duration, cond func() error) error { return poll(limit, cond) }

// poll calls cond until it returns nil or limit has passed, and returns its last error.
func poll(limit time.Duration, cond func() error) error {
	deadline := time.After(limit)
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := cond()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-deadline:
			return err
		}
	}
}

// Sandboxctl returns the operator's tool: the binary that SANDBOXCTL_BINARY names, or one that is built from the tree
// into dir. It is for tests of packages that are two directories below the root.
func Sandboxctl(dir string) (string, error) {
	if binary := os.Getenv("SANDBOXCTL_BINARY"); binary != "" {
		return binary, nil
	}
	binary := filepath.Join(dir, "sandboxctl")
	build := exec.Command("go", "build", "-o", binary, ".")
	build.Dir = "../../cmd/sandboxctl"
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", build, err, out)
	}
	return binary, nil
}

// The shim's own launcher of execs does not support some containers, such as those with a personality. Libcontainer
// starts their execs. What follows makes any container one of these, and changes nothing else of it.

// AllExecsByLibcontainer reports whether all containers of the tests are to be such: SHIM_TEST_EXEC=libcontainer.
func AllExecsByLibcontainer() bool { return os.Getenv("SHIM_TEST_EXEC") == "libcontainer" }

// ExecByLibcontainer gives a container the personality that it has anyway.
func ExecByLibcontainer(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	s.Linux.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux}
	return nil
}

// ExecByLibcontainerProfile is a seccomp profile, for CRI, which cannot ask for a personality: it allows everything,
// and names an agent that never gets a request.
const ExecByLibcontainerProfile = `{"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/no/agent"}`

// PodsPerShim is the option that says how many pods of the tests may share a shim, by SHIM_TEST_PODS_PER_SHIM, or "".
func PodsPerShim() string {
	if n := os.Getenv("SHIM_TEST_PODS_PER_SHIM"); n != "" && Runtime() == Ours {
		return "PodsPerShim = " + n
	}
	return ""
}

// NotWithOptions skips what containerd 2.x refuses if the options are not the runc shim's: a user namespace, and a
// checkpoint.
func NotWithOptions(tb testing.TB) {
	tb.Helper()
	if PodsPerShim() != "" {
		tb.Skip("NOT TESTED: containerd refuses the option PodsPerShim here")
	}
}
