// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/cgroups/v3"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
)

// nestTo makes cgroups in dir, each in the one before, and says how many the kernel let it make up to limit.
func nestTo(t *testing.T, dir string, limit int) int {
	t.Helper()
	for depth := range limit {
		dir = filepath.Join(dir, "d")
		if err := os.Mkdir(dir, 0o755); errors.Is(err, unix.EAGAIN) {
			return depth
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return limit
}

func depthOf(t *testing.T, b *box) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(b.Cgroup().Path(""), cgroup.DepthFile))
	must(t, err)
	return strings.TrimSpace(string(text))
}

func needUnified(t *testing.T) {
	t.Helper()
	if cgroups.Mode() == cgroups.Legacy {
		lacking(t, "cgroup2", "a cgroup v2 hierarchy")
	}
}

func TestDepth_OfNestedCgroupsIsLimited(t *testing.T) {
	needUnified(t)
	b := create(t, newConfig(t, "sleep", "1000")).start()
	if got, want := depthOf(t, b), strconv.Itoa(cgroup.MaxDepth); got != want {
		t.Errorf("%s = %s, want %s", cgroup.DepthFile, got, want)
	}
	shares := uint64(512)
	must(t, b.Update(&specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}}))
	if got := nestTo(t, b.Cgroup().Path(""), cgroup.MaxDepth+1); got != cgroup.MaxDepth {
		t.Errorf("after an update cgroups can be nested %d deep, want %d", got, cgroup.MaxDepth)
	}
	must(t, b.Init().Signal(syscall.SIGKILL))
	b.wait()
	must(t, b.Destroy())
	wantNothingLeft(t, b.config)
}

func TestDepth_OfTheConfigurationOrACgroupAboveHolds(t *testing.T) {
	needUnified(t)
	t.Run("above", func(t *testing.T) {
		root := map[bool]string{true: "/sys/fs/cgroup", false: "/sys/fs/cgroup/unified"}[cgroups.Mode() == cgroups.Unified]
		config := newConfig(t, "sleep", "1000")
		above := filepath.Join(root, parent(), "above")
		must(t, os.MkdirAll(above, 0o755))
		t.Cleanup(func() {
			for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
				dirs, err := filepath.Glob(filepath.Join(pattern, parent(), "above"))
				must(t, err)
				for _, dir := range dirs {
					must(t, os.Remove(dir))
				}
			}
		})
		must(t, os.WriteFile(filepath.Join(above, cgroup.DepthFile), []byte("3"), 0))
		config.Spec.Linux.CgroupsPath = "/" + parent() + "/above/" + config.ID
		b := create(t, config).start()
		if got, want := nestTo(t, b.Cgroup().Path(""), cgroup.MaxDepth), 2; got != want {
			t.Errorf("cgroups can be nested %d deep below one that has 3 with the container's, want %d", got, want)
		}
	})
	t.Run("the container", func(t *testing.T) {
		if cgroups.Mode() != cgroups.Unified {
			lacking(t, "unified", "cgroup v2 alone, for linux.resources.unified")
		}
		for _, asked := range []string{"max", "2"} {
			config := newConfig(t, "sleep", "1000")
			config.Spec.Linux.Resources = &specs.LinuxResources{Unified: map[string]string{cgroup.DepthFile: asked}}
			b := create(t, config).start()
			if got := depthOf(t, b); got != asked {
				t.Errorf("%s = %s, want %s as asked", cgroup.DepthFile, got, asked)
			}
		}
	})
}
