// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types/runc/options"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/integration/fakecontainerd"
	"sandbox.internal/shim/integration/harness"
)

func TestShim_IsAProcessOfItsOwn(t *testing.T) {
	f := newFake(t)
	b := f.Bundle("c1", nil, "sleep", "1000")
	s := f.Shim(b)
	proc := fmt.Sprintf("/proc/%d/", s.Pid)

	for fd := range 3 {
		target, err := os.Readlink(proc + "fd/" + strconv.Itoa(fd))
		f.Must(err, "descriptor")
		if target != "/dev/null" && target != filepath.Join(b.Path, "log") {
			t.Errorf("descriptor %d of the shim is %s, want /dev/null or its log: containerd waits for its end",
				fd, target)
		}
	}
	if got, want := readInt(f, proc+"oom_score_adj"), min(readInt(f, "/proc/self/oom_score_adj")+1, 1000); got != want {
		t.Errorf("oom_score_adj of the shim = %d, want %d, one more than containerd's", got, want)
	}
	info, err := os.Stat(f.Sockets)
	f.Must(err, "directory of the sockets")
	if got := info.Mode().Perm(); got != 0o700 {
		t.Errorf("mode of %s is %v, want 0700", f.Sockets, got)
	}
	s.Run(b)
	s.KillAndDelete(b)
	s.End()
}

func readInt(f *fakecontainerd.Fake, name string) int {
	f.Helper()
	text, err := os.ReadFile(name)
	f.Must(err, "read")
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	f.Must(err, name)
	return n
}

// The kernel sends SIGHUP if the shim is stopped when start ends, since nobody else is in its process group.
func TestShim_OutlivesAHangUp(t *testing.T) {
	f := newFake(t)
	b := f.Bundle("c1", nil, "sleep", "1000")
	s := f.Shim(b)
	f.Must(unix.Kill(s.Pid, unix.SIGHUP), "hang up")
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.Run(b)))
	f.Must(err, "status of the container's process")
	var ignored uint64
	_, mask, _ := strings.Cut(string(status), "SigIgn:")
	_, err = fmt.Sscanf(mask, "%x", &ignored)
	f.Must(err, "SigIgn in "+string(status))
	if ignored&(1<<(uint(unix.SIGHUP)-1)) != 0 { // what the shim ignores is inherited
		t.Errorf("the container's process ignores SIGHUP:\n%s", status)
	}
	s.KillAndDelete(b)
	s.End()
}

func TestShim_RunsInTheCgroupThatTheOptionsName(t *testing.T) {
	f := newFake(t)
	path := "/" + f.Namespace + "/shims"
	roots, err := harness.CgroupRoots()
	f.Must(err, "cgroups")
	for _, root := range roots {
		if strings.HasSuffix(root, "/cpuset") {
			continue // a new cpuset takes no process before it has CPUs
		}
		f.Must(os.MkdirAll(filepath.Join(root, path), 0o755), "cgroup")
	}
	opts, err := anypb.New(&options.Options{ShimCgroup: path})
	f.Must(err, "options")
	b := f.Bundle("c1", nil, "sleep", "1000")
	a, err := f.Start(b, fakecontainerd.Params, opts)
	f.Must(err, "start")
	s := f.Connect(b, a)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", s.Pid))
	f.Must(err, "cgroups of the shim")
	if !strings.Contains(string(text), ":"+path+"\n") {
		t.Errorf("cgroups of the shim are\n%swant %s among them", text, path)
	}
	s.Run(b)
	s.KillAndDelete(b)
	s.End()
	harness.Eventually(t, "the shim leaves its cgroup", func() error {
		for _, root := range roots {
			if err := os.Remove(filepath.Join(root, path)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		return nil
	})
}

func TestBootstrap_FailureSaysWhyAndLeavesNoShim(t *testing.T) {
	for _, tt := range []struct {
		name    string
		prepare func(f *fakecontainerd.Fake, b *fakecontainerd.Bundle)
		word    string
	}{
		{"config.json is no JSON", func(f *fakecontainerd.Fake, b *fakecontainerd.Bundle) {
			f.Must(os.WriteFile(filepath.Join(b.Path, "config.json"), []byte("{"), 0o600), "config.json")
		}, ""},
		{"the directory of the sockets cannot be made", func(f *fakecontainerd.Fake, _ *fakecontainerd.Bundle) {
			f.Must(os.WriteFile(f.Sockets, nil, 0o600), "a file in the way")
			f.Cleanup(func() { _ = os.Remove(f.Sockets) })
		}, "/s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(t)
			b := f.Bundle("c1", nil, "sleep", "1000")
			tt.prepare(f, b)
			_, err := f.Start(b, fakecontainerd.Params, nil)
			f.WantError(err, nil, tt.word)
		})
	}
}

func TestBootstrap_TwoAtOnceForOneGroupMakeOneShim(t *testing.T) {
	harness.OursOnly(t, "two starts of a group that race share a shim")
	f := newFake(t)
	const n = 6
	answers := make(chan string, n)
	var bundles []*fakecontainerd.Bundle
	for i := range n {
		bundles = append(bundles, f.Bundle(fmt.Sprintf("c%d", i), annotate(groupKey, "group"), "sleep", "1000"))
	}
	for _, b := range bundles {
		go func() {
			a, err := f.Start(b, fakecontainerd.Params, nil)
			if err != nil {
				t.Errorf("start for %s: %v", b.ID, err)
			}
			answers <- a.Address
		}()
	}
	addresses := map[string]int{}
	for range n {
		addresses[<-answers]++
	}
	if len(addresses) != 1 {
		t.Fatalf("addresses = %v, want one", addresses)
	}
	if shims := harness.Shims(f.Namespace, ""); len(shims) != 1 {
		t.Errorf("shims = %v, want one", shims)
	}
	for address := range addresses {
		s := f.Connect(bundles[0], fakecontainerd.Answer{Address: address})
		for _, b := range bundles {
			s.Run(b)
		}
		for _, b := range bundles {
			s.KillAndDelete(b)
		}
		s.End()
	}
}
