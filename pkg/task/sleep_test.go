// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	cgroup2 "github.com/containerd/cgroups/v3/cgroup2/stats"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/extension"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
)

// sleeper is the hook of a container that sleeps since a time.
type sleeper struct {
	process.Sleeper
	since time.Time
}

func (*sleeper) Prepare(context.Context, *process.Config) error { return nil }
func (*sleeper) Removed() error                                 { return nil }
func (*sleeper) Created(context.Context, process.RuntimeContainer, process.Handle) error {
	return nil
}

func (*sleeper) Use(string) func()        { return func() {} }
func (s *sleeper) AsleepSince() time.Time { return s.since }

// The metrics of a container that sleeps are read once, and those of one that is awake, or about to be, each time.
func TestMetrics_OfASleeperAreToldAgain(t *testing.T) {
	dir := t.TempDir()
	testx.Write(t, filepath.Join(dir, "memory.events"), "oom_kill 0\n")
	engine := newRuntime()
	engine.Group = cgroup.New(map[string]string{"": dir})
	m, s := newManager(t, engine), &sleeper{}
	m.extensions = extension.List{{Name: "idle", New: func(settings.Values) (*extension.Part, error) {
		return &extension.Part{Hook: s, Sleeper: s}, nil
	}}}
	c := create(t, m, "c1", goodSpec())
	wantUsage := func(when string, now, want uint64) {
		t.Helper()
		testx.Write(t, filepath.Join(dir, "memory.current"), fmt.Sprintln(now))
		metrics, err := c.Metrics()
		testx.Must(t, err)
		if v2, ok := metrics.(*cgroup2.Metrics); !ok || v2.GetMemory().GetUsage() != want {
			t.Errorf("%s: metrics %v, want a usage of %d", when, metrics, want)
		}
	}
	wantUsage("awake", 1, 1)
	wantUsage("awake", 2, 2)
	s.since = time.Now()
	wantUsage("asleep", 3, 3)
	wantUsage("asleep", 4, 3)
	asleep := s.since
	s.since = time.Time{} // as while that is being looked up by another call
	wantUsage("perhaps awake", 5, 5)
	s.since = asleep
	wantUsage("asleep, after that", 6, 6)
	s.since = time.Now()
	wantUsage("asleep again", 7, 7)
	end(t, m, c)
}
