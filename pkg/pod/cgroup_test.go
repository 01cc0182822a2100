// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups/systemd"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/internal/testx"
)

// parentOfTest is a cgroup that is there while the test runs, and a path below it that is not.
func parentOfTest(t *testing.T) (there, absent string) {
	t.Helper()
	there = fmt.Sprintf("/shim-test-%d-pod", os.Getpid())
	missing, err := cgroup.Missing(there)
	testx.Must(t, err)
	made, err := cgroup.Make(there, missing)
	testx.Must(t, err)
	t.Cleanup(func() {
		if left := cgroup.RemoveEmpty(made); len(left) > 0 {
			t.Errorf("cgroups %q are in use", left)
		}
	})
	return there, there + "/pods/p1"
}

// missing are the directories of the cgroup at path that are not there.
func missing(t *testing.T, path string) []string {
	t.Helper()
	list, err := cgroup.Missing(path)
	testx.Must(t, err)
	return list
}

// It is where the pause container would be: its use counts as the pod's, and the devices of the shim are not its own.
func TestCgroup_OfTheProcessIsBelowThePodsAndHasNoDevices(t *testing.T) {
	there, absent := parentOfTest(t)
	paths := map[string]string{there: there + "/p1", absent: absent + "/p1", absent[1:]: absent + "/p1"}
	if systemd.IsRunningSystemd() {
		slice := fmt.Sprintf("shimtest%d.slice", os.Getpid())
		paths[slice] = "/" + slice + "/cri-containerd-p1.scope"
		defer exec.CommandContext(t.Context(), "systemctl", "stop", slice).Run() //nolint:errcheck // it is empty
	}
	for parent, path := range paths {
		all := missing(t, absent)
		p := start(t, request(t, func(r *Request) { r.Config.CgroupParent, r.Config.PID = parent, ModePod }))
		group, err := cgroup.At(path)
		testx.Must(t, err)
		if pids, err := group.Procs(); err != nil || len(pids) != 1 || pids[0] != p.Pid() {
			t.Errorf("processes in %s = %v, %v, want %d", path, pids, err, p.Pid())
		}
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.Pid()))
		for line := range strings.Lines(string(data)) {
			if strings.HasPrefix(line, "0:") == group.Unified() && !strings.HasSuffix(line, ":"+path+"\n") {
				t.Errorf("it is in %s (%v), want %s", line, err, path)
			}
		}
		dir := group.Path("devices")
		if group.Unified() {
			dir = group.Path("")
		}
		release := testReaper.Suspend()
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "echo $$ >"+dir+"/cgroup.procs && : </dev/zero").CombinedOutput()
		release()
		if err == nil || !strings.Contains(string(out), "/dev/zero: Operation not permitted") {
			t.Errorf("opening a device there = %v, %q, want that it is forbidden", err, out)
		}
		container := &specs.Spec{Linux: &specs.Linux{CgroupsPath: parent + "/c1"}}
		if err := p.Adapt(container); err != nil || container.Linux.CgroupsPath != filepath.Join("/", parent, "c1") {
			t.Errorf("a container of a pod in %q is in %q (%v)", parent, container.Linux.CgroupsPath, err)
		}
		if err := p.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
		if left := missing(t, absent); !slices.Equal(left, all) {
			t.Errorf("not there after the pod: %q, want %q", left, all)
		}
		if gone := missing(t, path); !slices.ContainsFunc(gone, func(d string) bool { return filepath.Base(d) == filepath.Base(path) }) {
			t.Errorf("%s is left", path)
		}
	}
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
	r := request(t, func(r *Request) { r.Config.CgroupParent, r.Config.PID = absent, ModePod })
	p, err := Create(t.Context(), r, thread)
	if err == nil {
		err = p.Start(t.Context())
	}
	testx.Must(t, err)
	container := missing(t, absent+"/c1")
	if _, err := cgroup.Make(absent+"/c1", container); err != nil {
		t.Fatal(err)
	}
	if err := Remove(r.Bundle); err != nil {
		t.Errorf("Remove() = %v", err)
	}
	cgroup.RemoveEmpty(container)
	killed := make(chan error, 1)
	go func() { killed <- p.holder.Kill(t.Context()) }() // it dies with the shim, perhaps only now
	if err := Remove(r.Bundle); err != nil {
		t.Errorf("second Remove() = %v", err)
	}
	if left := missing(t, absent); !slices.Equal(left, all) {
		t.Errorf("not there after the pod: %q, want %q", left, all)
	}
	if err := <-killed; err != nil {
		t.Error(err)
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
			testx.Must(t, os.MkdirAll(filepath.Join(r.Bundle, madeFile, "x"), 0o700))
		},
		"no place for the files": func(r *Request) {
			r.Config.CgroupParent = absent
			testx.Must(t, os.MkdirAll(filepath.Join(r.Bundle, etcDir, "x"), 0o700))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(t, change)
			before, err := os.ReadDir(r.Bundle)
			testx.Must(t, err)
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
