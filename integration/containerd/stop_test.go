// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

const (
	annotationStopSignal  = "io.containerd.sandbox.v1/stop-signal"
	annotationStopTimeout = "io.containerd.sandbox.v1/stop-timeout"
)

func annotations(pairs ...string) oci.SpecOpts {
	all := map[string]string{}
	for pair := range slices.Chunk(pairs, 2) {
		all[pair[0]] = pair[1]
	}
	return oci.WithAnnotations(all)
}

// hearing is a program that says when it hears a signal, in a file too, and then does more.
func hearing(signal, then string) []string {
	return []string{
		"sh", "-c",
		fmt.Sprintf("trap 'echo heard; echo >/said/heard; %s' %s; echo ready; while :; do sleep 0.01; done", then,
			signal),
	}
}

// wantForgotten waits until containerd knows nothing of a task any more, since its shim is dead.
func wantForgotten(t *testing.T, e *env, c *task) {
	t.Helper()
	harness.Eventually(t, "end of the task", func() error {
		if _, err := c.container.Task(e.ctx, nil); !errdefs.IsNotFound(err) {
			return fmt.Errorf("containerd knows it still (%w)", err)
		}
		return nil
	})
	c.closeIO()
}

func wantHeard(t *testing.T, dir string, want bool) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(dir, "heard")); (err == nil) != want {
		t.Errorf("the container heard the signal: %t, want %t", err == nil, want)
	}
}

func TestStop_OfTheShimStopsItsContainers(t *testing.T) {
	harness.OursOnly(t, "stop-signal and stop-timeout")
	for name, tt := range map[string]struct {
		signal, grace, then string
		status              uint32
		heard               bool
		least               time.Duration
	}{
		"that end by themselves": {signal: "USR1", grace: "1m", then: "exit 9", status: 9, heard: true},
		"that do not end":        {signal: "USR1", grace: "1s", then: "", status: 137, heard: true, least: time.Second},
		"that have no grace":     {signal: "USR1", grace: "0", then: "exit 9", status: 137},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			dir := publicDir(t)
			c := e.run("c1", config{opts: with(bind(dir, "/said", "rw"), annotations(annotationStopSignal, tt.signal,
				annotationStopTimeout, tt.grace))}, hearing(tt.signal, tt.then)...)
			c.out.WaitFor(t, "ready")
			began := time.Now()
			e.must(unix.Kill(e.shim("c1"), unix.SIGTERM), "SIGTERM to the shim")
			if got := c.exit(); got != tt.status {
				t.Errorf("exit status = %d, want %d", got, tt.status)
			}
			if took := time.Since(began); took < tt.least {
				t.Errorf("it was dead after %v, want %v of grace", took, tt.least)
			}
			wantForgotten(t, e, c)
			wantHeard(t, dir, tt.heard)
			if got := strings.Contains(c.out.String(), "heard"); got != tt.heard {
				t.Errorf("output = %q, want what it said after the signal: %t", c.out, tt.heard)
			}
			e.waitEvents("c1", fmt.Sprintf("create c1 | start c1 | exit c1 %d", tt.status))
		})
	}
}

// The shim died, so containerd calls the delete command, which gets nothing but the bundle.
func TestStop_ContainerOfADeadShimIsStoppedAsTold(t *testing.T) {
	harness.OursOnly(t, "stop-signal and stop-timeout")
	for name, tt := range map[string]struct {
		opts  []oci.SpecOpts
		then  string
		heard bool
	}{
		"gracefully":                {with(annotations(annotationStopSignal, "QUIT")), "exit 0", true},
		"within the time of delete": {with(annotations(annotationStopSignal, "QUIT", annotationStopTimeout, "1h")), "", true},
		"at once":                   {with(annotations(annotationStopSignal, "QUIT", annotationStopTimeout, "0")), "exit 0", false},
		"at once, by default":       {nil, "exit 0", false},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			dir := publicDir(t)
			c := e.run("c1", config{opts: append(with(bind(dir, "/said", "rw")), tt.opts...)},
				hearing("QUIT", tt.then)...)
			c.out.WaitFor(t, "ready")
			began := time.Now()
			e.must(unix.Kill(e.shim("c1"), unix.SIGKILL), "SIGKILL to the shim")
			wantForgotten(t, e, c)
			e.waitEvents("c1", "exit c1 137 | delete c1")
			if took := time.Since(began); took > harness.Slow(6*time.Second) {
				t.Errorf("it was removed after %v, want within the 5s of delete", took)
			}
			wantHeard(t, dir, tt.heard)
		})
	}
}
