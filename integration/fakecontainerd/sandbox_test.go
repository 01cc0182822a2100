// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	sandbox "github.com/containerd/containerd/api/runtime/sandbox/v1"
	task "github.com/containerd/containerd/api/runtime/task/v3"
	runc "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/fakecontainerd"
	"sandbox.internal/shim/integration/harness"
)

// podOnly skips a test of the Sandbox API on the runc shim.
func podOnly(t *testing.T) {
	t.Helper()
	harness.OursOnly(t, "the Sandbox API")
}

// joining is a change of a container's specification as CRI makes it for a pod whose sandbox has this pid (containerd
// internal/cri/opts, WithPodNamespaces).
func joining(pid int) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Annotations = map[string]string{sandboxAnnotation: "pod"}
		for i, ns := range s.Linux.Namespaces {
			file := map[specs.LinuxNamespaceType]string{
				specs.NetworkNamespace: "net", specs.IPCNamespace: "ipc",
				specs.UTSNamespace: "uts",
			}[ns.Type]
			if file != "" {
				s.Linux.Namespaces[i].Path = fmt.Sprintf("/proc/%d/ns/%s", pid, file)
			}
		}
	}
}

func TestSandbox_WholeLife(t *testing.T) {
	podOnly(t)
	f := newFake(t)
	b := f.SandboxBundle("pod")
	s := f.Shim(b)
	box := s.Sandbox()
	f.Must(s.CreateSandbox(b, nil), "create sandbox")
	started, err := box.Start(f.Ctx, "pod")
	f.Must(err, "start sandbox")
	if int(started.GetPid()) != s.Pid {
		t.Errorf("pid = %d, want that of the shim, %d", started.GetPid(), s.Pid)
	}
	var spec specs.Spec
	f.Must(json.Unmarshal(started.GetSpec().GetValue(), &spec), "spec")
	if got := spec.Annotations["io.kubernetes.cri.container-type"]; got != "sandbox" {
		t.Errorf("annotations of the spec = %v, want that of a sandbox", spec.Annotations)
	}
	platform, err := box.Platform(f.Ctx, "pod")
	f.Must(err, "platform")
	if platform.GetPlatform().GetOS() != "linux" {
		t.Errorf("platform = %v", platform)
	}
	f.Must(box.Ping(f.Ctx, "pod"), "ping")
	f.Must(box.Update(f.Ctx, "pod"), "update")

	// A pod lives with no container, and these come and go.
	for i := range 2 {
		c := f.Bundle(fmt.Sprintf("app%d", i), joining(s.Pid), "sleep", "1000")
		s.Run(c)
		s.KillAndDelete(c)
		s.End() // as containerd asks after each
	}
	status, err := box.Status(f.Ctx, "pod", true)
	f.Must(err, "status")
	if status.GetState() != "SANDBOX_READY" || int(status.GetPid()) != s.Pid {
		t.Errorf("status = %v, want one that is ready", status)
	}

	waited := make(chan error, 1)
	go func() {
		exit, err := box.Wait(f.Ctx, "pod")
		if err == nil && exit.GetExitedAt() == nil {
			err = errors.New("no time of exit")
		}
		waited <- err
	}()
	c := f.Bundle("app", joining(s.Pid), "sleep", "1000")
	pid := s.Run(c)
	f.Must(box.Stop(f.Ctx, "pod", 0), "stop")
	f.Must(<-waited, "wait")
	if harness.Alive(pid) {
		t.Error("a container of a pod that was stopped lives")
	}
	status, err = box.Status(f.Ctx, "pod", false)
	f.Must(err, "status")
	if status.GetState() != "SANDBOX_NOTREADY" || status.GetExitedAt() == nil {
		t.Errorf("status = %v, want one that is not ready, with a time", status)
	}
	f.Must(box.Shutdown(f.Ctx, "pod"), "shut down") // deletes the container as well
	f.Remove(c)
	f.Remove(b)
	// The shim ends although this test is still connected; the leak check waits for that.
}

func TestSandbox_EveryWrongOrder(t *testing.T) {
	podOnly(t)
	f := newFake(t)
	b := f.SandboxBundle("pod")
	s := f.Shim(b)
	box := s.Sandbox()
	create := func(id string) error {
		return box.Create(f.Ctx,
			&sandbox.CreateSandboxRequest{SandboxID: id, BundlePath: b.Path, Options: f.PodConfig(nil)})
	}
	start := func(id string) error { _, err := box.Start(f.Ctx, id); return err }
	member := func() error {
		_, err := s.Create(f.Ctx, f.Bundle("app", joining(s.Pid), "true").CreateRequest())
		return err
	}
	for what, err := range map[string]error{
		"start": start("pod"), "stop": box.Stop(f.Ctx, "pod", 0), "ping": box.Ping(f.Ctx, "pod"),
		"update":   box.Update(f.Ctx, "pod"),
		"wait":     func() error { _, err := box.Wait(f.Ctx, "pod"); return err }(),
		"status":   func() error { _, err := box.Status(f.Ctx, "pod", false); return err }(),
		"metrics":  func() error { _, err := box.Metrics(f.Ctx, "pod"); return err }(),
		"platform": func() error { _, err := box.Platform(f.Ctx, "pod"); return err }(),
	} {
		t.Run(what+" before create", func(*testing.T) { f.WantError(err, errdefs.ErrNotFound, `"pod"`) })
	}
	f.Must(create("pod"), "create")
	f.WantError(create("pod"), errdefs.ErrAlreadyExists, `"pod"`)
	f.WantError(create("other"), errdefs.ErrAlreadyExists, `"other"`, `"pod"`)
	f.WantError(member(), errdefs.ErrFailedPrecondition, `"pod"`)
	f.WantError(start("other"), errdefs.ErrNotFound, `"other"`)
	f.Must(start("pod"), "start")
	f.WantError(start("pod"), errdefs.ErrFailedPrecondition, "cannot start")
	f.Must(box.Stop(f.Ctx, "pod", 0), "stop")
	f.Must(box.Stop(f.Ctx, "pod", 0), "stop again")
	f.WantError(start("pod"), errdefs.ErrFailedPrecondition, "cannot start")
	f.WantError(member(), errdefs.ErrFailedPrecondition, `"pod"`)
	f.WantError(box.Shutdown(f.Ctx, "other"), errdefs.ErrNotFound, `"other"`)
	f.Must(box.Shutdown(f.Ctx, "pod"), "shut down")
}

// As containerd does after a CreateSandbox that failed.
func TestSandbox_ShimWithoutOneIsShutDown(t *testing.T) {
	podOnly(t)
	f := newFake(t)
	b := f.SandboxBundle("pod")
	f.Must(f.Shim(b).Sandbox().Shutdown(f.Ctx, "pod"), "shut down")
}

func TestSandbox_OfGarbageIsRefusedAndLeavesNothing(t *testing.T) {
	podOnly(t)
	f := newFake(t)
	b := f.SandboxBundle("pod")
	s := f.Shim(b)
	entries := func() []string {
		list, err := os.ReadDir(b.Path)
		f.Must(err, "bundle")
		var names []string
		for _, e := range list {
			names = append(names, e.Name())
		}
		return names
	}
	before := fmt.Sprint(entries())
	for _, tt := range []struct {
		name  string
		r     *sandbox.CreateSandboxRequest
		words []string
	}{
		{"another message", &sandbox.CreateSandboxRequest{Options: &anypb.Any{TypeUrl: "x.Y"}}, []string{"options", "x.Y"}},
		{"no message", &sandbox.CreateSandboxRequest{}, []string{"config.json"}},
		{"bytes that are none", &sandbox.CreateSandboxRequest{Options: &anypb.Any{TypeUrl: "runtime.v1.PodSandboxConfig", Value: []byte{255}}}, []string{"PodSandboxConfig"}},
		{"a network namespace that is none", &sandbox.CreateSandboxRequest{
			Options: f.PodConfig(func(c *cri.PodSandboxConfig) {
				c.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_POD
			}),
			NetnsPath: "/proc/self/ns/mnt",
		}, []string{"/proc/self/ns/mnt"}},
		{"a sysctl of the host", &sandbox.CreateSandboxRequest{
			Options: f.PodConfig(func(c *cri.PodSandboxConfig) { c.Linux.Sysctls = map[string]string{"vm.swappiness": "1"} }),
		}, []string{"vm.swappiness"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.r.SandboxID, tt.r.BundlePath = "pod", b.Path
			f.WantError(s.Sandbox().Create(f.Ctx, tt.r), errdefs.ErrInvalidArgument, tt.words...)
			if got := fmt.Sprint(entries()); got != before {
				t.Errorf("in the bundle = %s, want %s", got, before)
			}
		})
	}
	f.Must(s.CreateSandbox(b, nil), "create after that")
	f.Must(s.Sandbox().Shutdown(f.Ctx, "pod"), "shut down")
}

// The shim learns the cgroup driver when it starts, and never again.
func TestSandbox_CgroupParentOfTheOtherDriverIsRefused(t *testing.T) {
	podOnly(t)
	f := newFake(t)
	b := f.SandboxBundle("pod")
	options, err := typeurl.MarshalAnyToProto(&runc.Options{SystemdCgroup: true})
	f.Must(err, "options")
	a, err := f.Start(b, fakecontainerd.Params, options)
	f.Must(err, "start")
	s := f.Connect(b, a)
	err = s.CreateSandbox(b, func(c *cri.PodSandboxConfig) { c.Linux.CgroupParent = "/" })
	f.WantError(err, errdefs.ErrInvalidArgument, `cgroup_parent "/"`, "slice")
	f.Must(s.Sandbox().Shutdown(f.Ctx, "pod"), "shut down")
}

// The kubelet makes the pod's cgroup.
func TestSandbox_MetricsAreThoseOfItsCgroup(t *testing.T) {
	podOnly(t)
	f := newFake(t)
	parent := "/" + f.Namespace
	roots, err := harness.CgroupRoots()
	f.Must(err, "cgroups")
	for _, root := range roots {
		f.Must(os.MkdirAll(root+parent, 0o755), "cgroup")
	}
	s, b := f.Pod("pod", func(c *cri.PodSandboxConfig) { c.Linux.CgroupParent = parent })
	m, err := s.Sandbox().Metrics(f.Ctx, "pod")
	f.Must(err, "metrics")
	if m.GetMetrics().GetID() != "pod" || len(m.GetMetrics().GetData().GetValue()) == 0 {
		t.Errorf("metrics = %v", m)
	}
	f.Must(s.Sandbox().Shutdown(f.Ctx, "pod"), "shut down")
	f.Remove(b)
	for _, root := range roots {
		// It is its owner's, so it is still there.
		f.Must(os.Remove(root+parent), "cgroup")
	}
}

func TestSandbox_StopGivesItsContainersTime(t *testing.T) {
	podOnly(t)
	f := newFake(t)
	s, b := f.Pod("pod", nil)
	obeys := f.Bundle("obeys", joining(s.Pid), "sh", "-c", "trap 'exit 7' TERM; sleep 1000 & wait")
	deaf := f.Bundle("deaf", joining(s.Pid), "sh", "-c", "trap '' TERM; touch /tmp/deaf; while :; do sleep 1; done")
	for _, c := range []*fakecontainerd.Bundle{obeys, deaf} {
		s.Run(c)
	}
	harness.Eventually(t, "the traps are set", func() error {
		for _, id := range []string{"obeys", "deaf"} {
			if err := traps(f, s, id); err != nil {
				return err
			}
		}
		return nil
	})
	began := time.Now()
	f.Must(s.Sandbox().Stop(f.Ctx, "pod", 1), "stop")
	if took := time.Since(began); took < time.Second || took > harness.Slow(5*time.Second) {
		t.Errorf("stop with a second of grace took %v", took)
	}
	for id, want := range map[string]uint32{"obeys": 7, "deaf": 137} {
		exit, err := s.Wait(f.Ctx, &task.WaitRequest{ID: id})
		f.Must(err, "wait for "+id)
		if exit.GetExitStatus() != want {
			t.Errorf("%s exited with %d, want %d", id, exit.GetExitStatus(), want)
		}
	}
	f.Must(s.Sandbox().Shutdown(f.Ctx, "pod"), "shut down")
	for _, c := range []*fakecontainerd.Bundle{obeys, deaf, b} {
		f.Remove(c)
	}
}

// traps reports whether the shell that is init handles or ignores SIGTERM, by /proc/PID/status (proc_pid_status(5)).
// What was init before it executed the shell handles all signals.
func traps(f *fakecontainerd.Fake, s *fakecontainerd.Shim, id string) error {
	state, err := s.State(f.Ctx, &task.StateRequest{ID: id})
	if err != nil {
		return err
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", state.GetPid()))
	if err != nil {
		return err
	}
	var name string
	var ignored, caught uint64
	for line := range strings.Lines(string(data)) {
		_, _ = fmt.Sscanf(line, "Name: %s", &name) // other lines do not match, here and below
		_, _ = fmt.Sscanf(line, "SigIgn: %x", &ignored)
		_, _ = fmt.Sscanf(line, "SigCgt: %x", &caught)
	}
	if name != "sh" || (ignored|caught)&(1<<(uint(unix.SIGTERM)-1)) == 0 {
		return fmt.Errorf("%s is %s, and catches %#x, ignores %#x", id, name, caught, ignored)
	}
	return nil
}

func TestSandbox_EndsWithItsKilledShim(t *testing.T) {
	podOnly(t)
	for _, asked := range []string{"pod", "app1"} {
		t.Run("delete of "+asked, func(t *testing.T) {
			f := newFake(t)
			s, b := f.Pod("pod", nil)
			bundles := map[string]*fakecontainerd.Bundle{"pod": b}
			for i := range 3 {
				c := f.Bundle(fmt.Sprintf("app%d", i), joining(s.Pid), "sleep", "1000")
				s.Run(c)
				bundles[c.ID] = c
			}
			kill(f, s)
			r, err := f.DeleteCommand(bundles[asked])
			f.Must(err, "delete")
			if r.GetExitStatus() != 137 || r.GetPid() == 0 {
				t.Errorf("delete = %v, want a pid and 137", r)
			}
			wantAllEnded(f, slices.Collect(maps.Values(bundles))...)
		})
	}
}

func TestDelete_OfAPodWhoseShimLivesLeavesItsContainers(t *testing.T) {
	podOnly(t)
	f := newFake(t)
	s, b := f.Pod("pod", nil)
	c := f.Bundle("app", joining(s.Pid), "sleep", "1000")
	pid := s.Run(c)
	_, err := f.DeleteCommand(b)
	f.Must(err, "delete")
	if !harness.Alive(pid) {
		t.Error("the container died with its sandbox's bundle, although the shim lives")
	}
	f.Remove(b) // as containerd does then
	s.KillAndDelete(c)
	f.Must(s.Sandbox().Shutdown(f.Ctx, "pod"), "shut down")
}

// A containerd that dies, or gives up, between its calls leaves no shim for ever. One that gives up before Create, since
// it cannot write the address down, does not hang up.
func TestShim_EndsByItselfWhenIdle(t *testing.T) {
	podOnly(t)
	for _, tt := range []struct {
		name  string
		stays bool // the client
		reach func(f *fakecontainerd.Fake, s *fakecontainerd.Shim, b *fakecontainerd.Bundle)
	}{
		{name: "before create", reach: func(*fakecontainerd.Fake, *fakecontainerd.Shim, *fakecontainerd.Bundle) {}},
		{
			name: "before create, when its bundle is gone", stays: true,
			reach: func(f *fakecontainerd.Fake, _ *fakecontainerd.Shim, b *fakecontainerd.Bundle) { f.Remove(b) },
		},
		{name: "before start", reach: func(f *fakecontainerd.Fake, s *fakecontainerd.Shim, b *fakecontainerd.Bundle) {
			f.Must(s.CreateSandbox(b, nil), "create")
		}},
		{name: "when its bundle is gone", reach: func(f *fakecontainerd.Fake, s *fakecontainerd.Shim, b *fakecontainerd.Bundle) {
			f.Must(s.CreateSandbox(b, nil), "create")
			_, err := s.Sandbox().Start(f.Ctx, "pod")
			f.Must(err, "start")
			_, err = f.DeleteCommand(b)
			f.Must(err, "delete")
			f.Remove(b)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // most wait for 15 s
			f := newFake(t)
			b := f.SandboxBundle("pod")
			s := f.Shim(b)
			tt.reach(f, s, b)
			if !tt.stays {
				f.Must(s.Close(), "hang up")
			}
			limit, cancel := context.WithTimeout(f.Ctx, harness.Slow(25*time.Second))
			defer cancel()
			for harness.Alive(s.Pid) {
				select {
				case <-limit.Done():
					t.Fatal("the shim lives 25 s after nobody needs it any more")
				case <-time.After(100 * time.Millisecond):
				}
			}
			if left := (harness.Scope{Namespace: f.Namespace, MountsIn: filepath.Dir(b.Path)}).Mounts(); len(left) > 0 {
				t.Errorf("mounts left: %v", left)
			}
		})
	}
}
