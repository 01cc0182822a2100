// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cleanup

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func goodSpec() *specs.Spec {
	return &specs.Spec{
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{Args: []string{"true"}, Cwd: "/"},
		Linux:   &specs.Linux{CgroupsPath: "/c"},
	}
}

// newBundle is a bundle as containerd makes it.
func newBundle(t *testing.T, spec *specs.Spec) string {
	t.Helper()
	bundle := filepath.Join(t.TempDir(), "bundle")
	must(t, os.MkdirAll(filepath.Join(bundle, "rootfs"), 0o700))
	if spec != nil {
		data, err := json.Marshal(spec)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(bundle, "config.json"), data, 0o600))
	}
	t.Cleanup(func() {
		for _, m := range mountsBelow(t, bundle) {
			t.Errorf("mount %s is left", m)
			_ = unix.Unmount(m, unix.MNT_DETACH) // reported above
		}
	})
	return bundle
}

// files lists what is in a bundle.
func files(t *testing.T, bundle string) string {
	t.Helper()
	entries, err := os.ReadDir(bundle)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func mountsBelow(t *testing.T, dir string) []string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	var found []string
	for line := range strings.Lines(string(data)) {
		if point := strings.Fields(line)[4]; strings.HasPrefix(point, dir+"/") {
			found = append(found, point)
		}
	}
	return found
}

func tmpfs() []mount.Mount { return []mount.Mount{{Type: "tmpfs", Source: "tmpfs"}} }

func within(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s did not come within 10 s", what)
	}
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantText(t *testing.T, err error, want ...string) {
	t.Helper()
	for _, w := range want {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("error = %v, which does not say %q", err, w)
		}
	}
}

func wantInvalid(t *testing.T, err error, text ...string) {
	t.Helper()
	if !errdefs.IsInvalidArgument(err) {
		t.Errorf("error = %v, want an invalid argument", err)
	}
	wantText(t, err, text...)
}
