// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/cgroup/hierarchy"
)

// parentOfTest is a cgroup that is there while the test runs, and a path below it that is not.
func parentOfTest(t *testing.T) (there, absent string) {
	t.Helper()
	there = fmt.Sprintf("/shim-test-%d-pod", os.Getpid())
	missing, err := hierarchy.Missing(there)
	if err != nil {
		t.Fatal(err)
	}
	made, err := hierarchy.Make(there, missing)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if left := hierarchy.RemoveEmpty(made); len(left) > 0 {
			t.Errorf("cgroups %q are in use", left)
		}
	})
	return there, there + "/pods/p1"
}

// missing are the directories of the cgroup at path that are not there.
func missing(t *testing.T, path string) []string {
	t.Helper()
	list, err := hierarchy.Missing(path)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestCgroupParent_IsMadeAndGoesWithThePod(t *testing.T) {
	there, absent := parentOfTest(t)
	all := missing(t, absent)
	p := create(t, request(t, func(r *Request) { r.Config.CgroupParent = absent }))
	if left := missing(t, absent); len(left) > 0 {
		t.Fatalf("not there: %q", left)
	}
	// A container of the pod, whose cgroup goes after the pod was stopped.
	container := missing(t, absent+"/c1")
	if _, err := hierarchy.Make(absent+"/c1", container); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Errorf("Close() = %v", err)
	}
	if left := missing(t, absent+"/c1"); len(left) > 0 {
		t.Errorf("gone with a container in it: %q", left)
	}
	hierarchy.RemoveEmpty(container)
	if err := p.Close(); err != nil {
		t.Errorf("second Close() = %v", err)
	}
	if left := missing(t, absent); !slices.Equal(left, all) {
		t.Errorf("not there after the pod: %q, want %q", left, all)
	}
	if left := missing(t, there); len(left) > 0 {
		t.Errorf("gone, although it was there before the pod: %q", left)
	}
}

// Each removes what it made of the parent that they have in common, if it is empty.
func TestCgroupParent_OfPodsThatBeginAndEndAtTheSameTime(t *testing.T) {
	there, _ := parentOfTest(t)
	common := there + "/pods"
	dirs := missing(t, common)
	var pods sync.WaitGroup
	for i := range 4 {
		bundle, parent := t.TempDir(), fmt.Sprintf("%s/p%d", common, i)
		pods.Go(func() {
			for range 100 {
				made, err := makeParent(bundle, parent, parent)
				if err == nil {
					_, err = removeMade(bundle, made)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	pods.Wait()
	hierarchy.RemoveEmpty(dirs) // one that others were in is left
}

func TestCgroupParent_ThatIsThereStays(t *testing.T) {
	there, _ := parentOfTest(t)
	p := create(t, request(t, func(r *Request) { r.Config.CgroupParent = there }))
	if err := p.Close(); err != nil {
		t.Errorf("Close() = %v", err)
	}
	if left := missing(t, there); len(left) > 0 {
		t.Errorf("gone: %q", left)
	}
}

// Who removes the pod of a dead shim has its bundle alone, and may come before the containers are removed.
func TestCgroupParent_GoesWithThePodOfADeadShim(t *testing.T) {
	_, absent := parentOfTest(t)
	all := missing(t, absent)
	r := request(t, func(r *Request) { r.Config.CgroupParent = absent })
	if _, err := Create(t.Context(), r, thread); err != nil {
		t.Fatal(err)
	}
	container := missing(t, absent+"/c1")
	if _, err := hierarchy.Make(absent+"/c1", container); err != nil {
		t.Fatal(err)
	}
	if err := Remove(r.Bundle); err != nil {
		t.Errorf("Remove() = %v", err)
	}
	hierarchy.RemoveEmpty(container)
	if err := Remove(r.Bundle); err != nil {
		t.Errorf("second Remove() = %v", err)
	}
	if left := missing(t, absent); !slices.Equal(left, all) {
		t.Errorf("not there after the pod: %q, want %q", left, all)
	}
	nothingLeft(t, r.Bundle)
}

func TestCgroupParent_OfAPodThatFailsLeavesNothing(t *testing.T) {
	there, absent := parentOfTest(t)
	all := missing(t, absent)
	for name, change := range map[string]func(*Request){
		"a file in the place of one": func(r *Request) { r.Config.CgroupParent = there + "/cgroup.procs/p1" },
		"a name that none can have":  func(r *Request) { r.Config.CgroupParent = absent + "/a\nb" },
		"no place for the list": func(r *Request) {
			r.Config.CgroupParent = absent
			if err := os.Mkdir(filepath.Join(r.Bundle, madeFile), 0o700); err != nil {
				t.Fatal(err)
			}
		},
		"no place for the files": func(r *Request) {
			r.Config.CgroupParent = absent
			if err := os.MkdirAll(filepath.Join(r.Bundle, etcDir, "x"), 0o700); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(t, change)
			before, err := os.ReadDir(r.Bundle)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Create(t.Context(), r, thread); err == nil || len(before) == 0 && !errdefs.IsInvalidArgument(err) {
				t.Errorf("Create() = %v, want an error, of the class of an invalid argument if the request is wrong", err)
			}
			if left := missing(t, absent); !slices.Equal(left, all) {
				t.Errorf("not there: %q, want %q", left, all)
			}
			if after, err := os.ReadDir(r.Bundle); err != nil || len(after) != len(before) {
				t.Errorf("in the bundle: %v (%v), want %v", after, err, before)
			}
		})
	}
}
