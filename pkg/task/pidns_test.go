// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

// It is killed with the process whose namespace it is in.
func TestStopContainersEndsFirstWhatIsInThePIDNamespaceOfAnother(t *testing.T) {
	in := func(path string, pairs ...string) *specs.Spec {
		spec := annotated(pairs...)
		spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.PIDNamespace, Path: path}}
		return spec
	}
	pause := newBundle(t, in("", "stop-signal", "QUIT"))
	member := newBundle(t, in("/proc/4321/ns/pid", "stop-timeout", "5s"))
	synctest.Test(t, func(t *testing.T) {
		s := newManager(t, &fakeEngine{deaf: func(sig syscall.Signal) bool { return sig == unix.SIGTERM }})
		began := time.Now()
		var inits []*process.Process
		for id, bundle := range map[string]string{"pause": pause, "member": member} {
			c, err := s.Create(t.Context(), CreateRequest{ID: id, Bundle: bundle})
			must(t, err)
			must(t, c.Init().Start(t.Context()))
			inits = append(inits, c.Init())
		}
		must(t, s.StopContainers(t.Context()))
		for _, init := range inits {
			if took := init.Status().Exit.At.Sub(began); took != 5*time.Second {
				t.Errorf("an init of the two ended after %v, want both after the 5 s of the member", took)
			}
		}
	})
}

// Such as a pause container whose PID namespace is the pod's: with it the kernel kills them, in the middle of their grace.
func TestRemovalEndsFirstWhatIsInThePIDNamespaceOfAnother(t *testing.T) {
	for _, of := range []string{"s", "a"} {
		h := &household{t: t, bundles: map[string]string{}}
		s := newManager(t, &fakeEngine{})
		spec := goodSpec()
		spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.PIDNamespace, Path: "/proc/4321/ns/pid"}}
		h.bundles["s"], h.bundles["a"], h.bundles["b"] = newBundle(t, goodSpec()), newBundle(t, spec), newBundle(t, goodSpec())
		s.KeepMembers(h.bundles["s"], "/the/socket")
		for _, id := range []string{"s", "a", "b"} {
			h.create(s, id)
		}
		var ended atomic.Bool
		_, _, err := Removal{
			Namespace: "ns", ID: of, Bundle: h.bundles[of],
			Container: func(_ context.Context, c process.Config) error {
				if c.ID == "a" {
					for range 100 {
						runtime.Gosched() // lets the others begin, if they do not wait
					}
					ended.Store(true)
				} else if !ended.Load() {
					return fmt.Errorf("%s is ended before a", c.ID)
				}
				return nil
			},
			Serves: func(string) (bool, error) { return false, nil },
		}.Run(t.Context())
		if err != nil {
			t.Errorf("delete of %s: %v", of, err)
		}
	}
}

// A process in uninterruptible sleep, say.
func TestRemovalDoesNotWaitForOneThatCannotDie(t *testing.T) {
	h := &household{t: t, bundles: map[string]string{}}
	s := newManager(t, &fakeEngine{})
	spec := goodSpec()
	spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.PIDNamespace, Path: "/proc/4321/ns/pid"}}
	h.bundles["s"], h.bundles["a"] = newBundle(t, goodSpec()), newBundle(t, spec)
	s.KeepMembers(h.bundles["s"], "/the/socket")
	for _, id := range []string{"s", "a"} {
		h.create(s, id)
	}
	var inTime atomic.Bool
	ctx, cancel := context.WithTimeout(t.Context(), removalTime+100*time.Millisecond)
	defer cancel()
	_, _, err := Removal{
		Namespace: "ns", ID: "s", Bundle: h.bundles["s"],
		Container: func(ctx context.Context, c process.Config) error {
			if c.ID == "a" {
				<-ctx.Done()
				return ctx.Err()
			}
			inTime.Store(ctx.Err() == nil)
			return nil
		},
		Serves: func(string) (bool, error) { return false, nil },
	}.Run(ctx)
	wantText(t, err, `"a"`)
	if !inTime.Load() {
		t.Error("the other one was removed when the time was over")
	}
}
