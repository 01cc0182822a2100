// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cleanup

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/process"
)

// Such as a pause container whose PID namespace is the pod's: with it the kernel kills them, in the middle of their
// grace.
func TestRun_EndsFirstWhatIsInThePIDNamespaceOfAnother(t *testing.T) {
	for _, of := range []string{"s", "a"} {
		h := &household{t: t, bundles: map[string]string{}}
		var s Index
		spec := goodSpec()
		spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.PIDNamespace, Path: "/proc/4321/ns/pid"}}
		h.bundles["s"], h.bundles["a"], h.bundles["b"] = newBundle(t, goodSpec()), newBundle(t, spec), newBundle(t, goodSpec())
		s.SetShim(h.bundles["s"], "/the/socket", nil)
		for _, id := range []string{"s", "a", "b"} {
			h.create(&s, id)
		}
		var ended atomic.Bool
		_, _, err := Request{
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
			Serves: func(context.Context, string, string) (bool, error) { return false, nil },
		}.Run(t.Context())
		if err != nil {
			t.Errorf("delete of %s: %v", of, err)
		}
	}
}

// A process in uninterruptible sleep, say.
func TestRun_DoesNotWaitForOneThatCannotDie(t *testing.T) {
	h := &household{t: t, bundles: map[string]string{}}
	var s Index
	spec := goodSpec()
	spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.PIDNamespace, Path: "/proc/4321/ns/pid"}}
	h.bundles["s"], h.bundles["a"] = newBundle(t, goodSpec()), newBundle(t, spec)
	s.SetShim(h.bundles["s"], "/the/socket", nil)
	for _, id := range []string{"s", "a"} {
		h.create(&s, id)
	}
	var inTime atomic.Bool
	ctx, cancel := context.WithTimeout(t.Context(), removalReserve+100*time.Millisecond)
	defer cancel()
	_, _, err := Request{
		Namespace: "ns", ID: "s", Bundle: h.bundles["s"],
		Container: func(ctx context.Context, c process.Config) error {
			if c.ID == "a" {
				<-ctx.Done()
				return ctx.Err()
			}
			inTime.Store(ctx.Err() == nil)
			return nil
		},
		Serves: func(context.Context, string, string) (bool, error) { return false, nil },
	}.Run(ctx)
	wantText(t, err, `"a"`)
	if !inTime.Load() {
		t.Error("the other one was removed when the time was over")
	}
}
