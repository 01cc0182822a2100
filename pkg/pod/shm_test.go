// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
)

func TestShmSize_IsAtMostTheOptionAndTheMemoryOfThePod(t *testing.T) {
	var machine unix.Sysinfo_t
	testx.Must(t, unix.Sysinfo(&machine))
	half := machine.Totalram * uint64(machine.Unit) / 2
	limited := func(bytes int64) *Resources { return &Resources{MemoryLimit: bytes} }
	for name, test := range map[string]struct {
		asked     string
		max       int64
		resources *Resources
		want      []string // in the error; nil for none
	}{
		"more than the machine has":           {asked: "8Ti", want: []string{`"8Ti"`, fmt.Sprint(half), "half of the machine's memory", "MaxShmSize"}},
		"more than the option":                {asked: "129Mi", max: 128 << 20, want: []string{`"129Mi"`, "134217728", "the runtime option MaxShmSize"}},
		"as much as the option":               {asked: "128Mi", max: 128 << 20},
		"more than half, by the option":       {asked: fmt.Sprint(half + 1), max: 1 << 40},
		"more than the pod's limit":           {asked: "256Mi", resources: limited(128 << 20), want: []string{`"256Mi"`, "134217728", "the memory limit of the pod's containers"}},
		"as much as the pod's limit":          {asked: "128Mi", resources: limited(128 << 20)},
		"a pod without a limit":               {asked: "128Mi", resources: limited(0)},
		"the default, more than the limit":    {resources: limited(16 << 20)},
		"like the default, more than allowed": {asked: "64Mi", max: 1 << 20, resources: limited(16 << 20)},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(t, func(r *Request) {
				r.MaxShmSize, r.Config.CRI = test.max, &CRIConfig{}
				r.Config.CRI.Linux.Resources = test.resources
				if test.asked != "" {
					r.Config.Annotations = map[string]string{ShmSizeAnnotation: test.asked}
				}
			})
			if test.want == nil {
				create(t, r)
				return
			}
			wantRefused(t, r, test.want...)
		})
	}
}

func TestShmSize_IsAtMostTheMemoryOfTheCgroupParent(t *testing.T) {
	root, file := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if cgroups.Mode() == cgroups.Unified {
		root, file = "/sys/fs/cgroup", "memory.max"
	}
	parent := fmt.Sprintf("/pod-test-shm-%d", os.Getpid())
	dir := filepath.Join(root, parent)
	testx.Must(t, os.Mkdir(dir, 0o755))
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	testx.Must(t, os.WriteFile(filepath.Join(dir, file), []byte("134217728"), 0))
	for _, parent := range []string{parent, parent + "/of/the/pod"} { // the second is made with the pod
		asking := func(size string) Request {
			return request(t, func(r *Request) {
				r.Config.CgroupParent, r.Config.Annotations = parent, map[string]string{ShmSizeAnnotation: size}
			})
		}
		wantRefused(t, asking("129Mi"), `"129Mi"`, "134217728", "cgroup_parent", parent)
		create(t, asking("128Mi"))
	}
}

// wantRefused wants Create to refuse r, with these words, and to leave nothing.
func wantRefused(t *testing.T, r Request, words ...string) {
	t.Helper()
	p, err := Create(t.Context(), r, thread)
	if err == nil {
		_ = p.Close() // the test fails anyway
		t.Fatal("Create() did not fail")
	}
	if !errdefs.IsInvalidArgument(err) {
		t.Errorf("Create() = %v, want an invalid argument", err)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("Create() = %v, which does not say %q", err, word)
		}
	}
	nothingLeft(t, r.Bundle)
}
