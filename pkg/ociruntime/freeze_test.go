// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/process"
)

// Each call is under way when the signal is sent, and goes on beside the rest of
// the Kill. The race detector tells what they share, in whichever order they
// come to it.
func TestKill_SharesNoMemoryWithWhatIsUnderWay(t *testing.T) {
	pids := int64(512)
	for _, tc := range []struct {
		name   string
		paused bool // before
		call   func(context.Context, *process.Container) error
	}{
		{"pause", false, func(ctx context.Context, c *process.Container) error { return c.Pause(ctx) }},
		{"resume", true, func(ctx context.Context, c *process.Container) error { return c.Resume(ctx) }},
		{"update", true, func(ctx context.Context, c *process.Container) error {
			return c.Update(ctx, &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &pids}})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			under, killing := make(chan struct{}), make(chan struct{})
			var hook func(string) // nil until the call that is looked at
			c := started(t, hooked{testRuntime, func(call string) {
				if hook != nil {
					hook(call)
				}
			}}, newConfig(t, "sleep", "1000"))
			if tc.paused {
				must(t, c.Pause(t.Context()))
			}
			enter, signal := sync.OnceFunc(func() { close(under); <-killing }), sync.OnceFunc(func() { close(killing) })
			hook = func(call string) {
				switch call {
				case tc.name:
					enter()
				case "signal":
					signal()
				}
			}
			done := make(chan error)
			go func() { done <- tc.call(t.Context(), c) }()
			<-under
			must(t, c.Init().Kill(syscall.SIGKILL))
			if err := <-done; err != nil { // what is being frozen was thawed, and the cgroup may be gone
				t.Logf("%s: %v", tc.name, err)
			}
			within(t, "init's exit", c.Init().Exited())
		})
	}
}

// A signal to all freezes and thaws them meanwhile, unless somebody else does.
func TestKillAll_LeavesFrozenWhatIsPausedMeanwhile(t *testing.T) {
	c := started(t, testRuntime, newConfig(t, "sleep", "1000"))
	over := make(chan struct{})
	var killing sync.WaitGroup
	killing.Go(func() { // ends when over is closed
		for {
			select {
			case <-over:
				return
			default:
				if err := c.KillAll(t.Context(), syscall.SIGCONT); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	defer killing.Wait()
	defer close(over)
	for range 200 {
		if err := c.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !frozen(t, c.Cgroup()) {
			t.Fatal("a container that is paused is not frozen")
		}
		must(t, c.Resume(t.Context()))
	}
}

// frozen tells what the cgroup was asked to be last.
func frozen(t *testing.T, c *cgroup.Cgroup) bool {
	t.Helper()
	file, want := "freezer.state", "FROZEN\n"
	if c.Unified() {
		file, want = "cgroup.freeze", "1\n"
	}
	state, err := os.ReadFile(filepath.Join(c.Path("freezer"), file))
	must(t, err)
	return string(state) == want
}
