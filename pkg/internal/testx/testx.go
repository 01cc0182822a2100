// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package testx has the checks and fixtures that tests of several packages need. No program links it.
package testx

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Must ends the test at an error.
func Must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// WantText fails the test unless the error says all words.
func WantText(tb testing.TB, err error, words ...string) {
	tb.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			tb.Errorf("error = %v, which does not say %q", err, w)
		}
	}
}

// WantError fails the test unless the error is of the class, nil for no error, and says all words.
func WantError(tb testing.TB, err, class error, words ...string) {
	tb.Helper()
	if !errors.Is(err, class) {
		tb.Errorf("error = %v, want one of class %v", err, class)
	}
	WantText(tb, err, words...)
}

// WantInvalid is WantError for an invalid argument.
func WantInvalid(tb testing.TB, err error, words ...string) {
	tb.Helper()
	WantError(tb, err, errdefs.ErrInvalidArgument, words...)
}

// Requires reports whether SHIM_TEST_REQUIRE lists name.
func Requires(name string) bool {
	return slices.Contains(strings.Split(os.Getenv("SHIM_TEST_REQUIRE"), ","), name)
}

// Lacking skips the test and names what it needs, or fails it where SHIM_TEST_REQUIRE lists name.
func Lacking(tb testing.TB, name, what string) {
	tb.Helper()
	if Requires(name) {
		tb.Fatalf("needs %s, which SHIM_TEST_REQUIRE=%s promises", what, os.Getenv("SHIM_TEST_REQUIRE"))
	}
	tb.Skipf("SKIPPED: needs %s (add %q to SHIM_TEST_REQUIRE to make this a failure)", what, name)
}

// NeedRoot is Lacking for a test that does not run as root, which CI does.
func NeedRoot(tb testing.TB) {
	tb.Helper()
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("CI") == "true":
		tb.Fatal("needs root")
	default:
		Lacking(tb, "root", "root")
	}
}

// OpenFiles returns the number of descriptors that the test has open.
func OpenFiles(tb testing.TB) int {
	tb.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	Must(tb, err)
	return len(entries)
}

// Within ends the test unless the channel is closed in time.
func Within(tb testing.TB, what string, done <-chan struct{}) {
	tb.Helper()
	Eventually(tb, what, func() bool { return Closed(done) })
}

// Eventually ends the test unless the condition holds in time.
func Eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	const timeout = time.Minute
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(timeout); !holds(); {
		select {
		case <-tick.C:
		case <-end:
			tb.Fatalf("%s did not come within %v", what, timeout)
		}
	}
}

// Closed reports whether the channel is closed.
func Closed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// Exists reports whether there is a file at path, which may be a link to nothing.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Read returns the content of a file.
func Read(tb testing.TB, path string) string {
	tb.Helper()
	data, err := os.ReadFile(path)
	Must(tb, err)
	return string(data)
}

// Write makes a file that root alone may read, and the directories above it.
func Write(tb testing.TB, path, content string) {
	tb.Helper()
	Must(tb, os.MkdirAll(filepath.Dir(path), 0o755))
	Must(tb, os.WriteFile(path, []byte(content), 0o600))
}

// Files lists the names in a directory, with spaces between them. A directory that is absent has none.
func Files(tb testing.TB, dir string) string {
	tb.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		tb.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// MountsBelow lists the mount points below a directory.
func MountsBelow(tb testing.TB, dir string) (found []string) {
	tb.Helper()
	for line := range strings.Lines(Read(tb, "/proc/self/mountinfo")) {
		if point := strings.Fields(line)[4]; strings.HasPrefix(point, dir+"/") {
			found = append(found, point)
		}
	}
	return found
}

// NewBundle makes a bundle as containerd does, with the specification unless it is nil. A mount that is left in the
// bundle fails the test.
func NewBundle(tb testing.TB, spec *specs.Spec) string {
	tb.Helper()
	bundle := filepath.Join(tb.TempDir(), "bundle")
	Must(tb, os.MkdirAll(filepath.Join(bundle, "rootfs"), 0o700))
	if spec != nil {
		data, err := json.Marshal(spec)
		Must(tb, err)
		Write(tb, filepath.Join(bundle, "config.json"), string(data))
	}
	tb.Cleanup(func() {
		for _, m := range MountsBelow(tb, bundle) {
			tb.Errorf("mount %s is left", m)
			_ = unix.Unmount(m, unix.MNT_DETACH) // reported above
		}
	})
	return bundle
}
