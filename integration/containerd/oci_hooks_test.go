// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
)

// hookKinds are those of the OCI runtime specification, config.md, "POSIX-platform Hooks", in the order of a life.
var hookKinds = []string{"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}

// hooks gives a container one hook of each kind that make has one for.
func hooks(make func(kind string) *specs.Hook) oci.SpecOpts {
	return spec(func(s *oci.Spec) {
		s.Hooks = &specs.Hooks{}
		for i, list := range []*[]specs.Hook{
			&s.Hooks.Prestart, //nolint:staticcheck // deprecated, and still what many a configuration has
			&s.Hooks.CreateRuntime, &s.Hooks.CreateContainer, &s.Hooks.StartContainer, &s.Hooks.Poststart,
			&s.Hooks.Poststop,
		} {
			if h := make(hookKinds[i]); h != nil {
				*list = []specs.Hook{*h}
			}
		}
	})
}

// recorder is a hook that appends to the file: its kind, the status that it gets, and whether it is in the mount
// namespace of this process.
func recorder(t *testing.T, file string) func(kind string) *specs.Hook {
	t.Helper()
	host, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	const script = `read -r state
where=container; [ "$(readlink /proc/self/ns/mnt)" = "$2" ] && where=host
echo "$0 $(echo "$state" | sed 's/.*"status":"\([a-z]*\)".*/\1/') $where" >>"$1"`
	return func(kind string) *specs.Hook {
		return &specs.Hook{
			Path: "/bin/sh", Args: []string{"sh", "-c", script, kind, file, host},
			Env: []string{"PATH=/bin:/usr/bin"},
		}
	}
}

func TestHooks_RunInTheirPlaceAndOrder(t *testing.T) {
	e := newEnv(t)
	dir := publicDir(t)
	file := filepath.Join(dir, "log")
	ran := func(when, want string) {
		t.Helper()
		text, err := os.ReadFile(file)
		if err != nil || string(text) != want {
			t.Errorf("hooks after %s:\n%s(%v), want\n%s", when, text, err, want)
		}
	}
	c := e.create("c1", config{opts: with(bind(dir, dir, "rw"), hooks(recorder(t, file)))}, "sleep", "1000")
	created := "prestart creating host\ncreateRuntime creating host\ncreateContainer creating container\n"
	// Libcontainer calls poststart hooks before it starts the program, in the runc shim as well.
	created += "poststart created host\n"
	started := created + "startContainer created container\n"
	ran("Create", created)
	e.must(c.process.Start(e.ctx), "start")
	// The container calls its hook itself, when it goes on after Start.
	harness.Eventually(t, "five hooks", func() error {
		if text, err := os.ReadFile(file); err != nil || strings.Count(string(text), "\n") < 5 {
			return fmt.Errorf("%s (%w)", text, err)
		}
		return nil
	})
	ran("Start", started)
	c.kill()
	ran("Delete", started+"poststop stopped host\n")
}

func TestHooks_FailedOneIsNamedAndLeavesNothing(t *testing.T) {
	parent := newEnv(t)
	for i, kind := range hookKinds[:5] {
		t.Run(kind, func(t *testing.T) {
			dir := publicDir(t)
			e := parent.sub(t)
			file := filepath.Join(dir, "log")
			failing := hooks(func(k string) *specs.Hook {
				switch k {
				case kind:
					return &specs.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", "echo sorry about that >&2; exit 3"}}
				case "poststop":
					return recorder(t, file)(k)
				}
				return nil
			})
			opts := with(bind(dir, dir, "rw"), failing)
			c, err := e.tryCreate(fmt.Sprintf("h%d", i), config{opts: opts}, "sleep", "1000")
			if err == nil {
				err = c.process.Start(e.ctx)
			}
			switch kind {
			case "startContainer":
				// It runs in the container after Start has let init go, from where
				// nothing can be told any more but by the exit status below.
			default:
				wantError(t, err, nil, kind, "exit status 3", "sorry about that")
			}
			if c != nil {
				if code := c.exit(); code == 0 {
					t.Errorf("exit status = 0, want another")
				}
				c.delete()
			}
			if text, err := os.ReadFile(file); err != nil || strings.Count(string(text), "poststop") != 1 {
				t.Errorf("poststop hook wrote %q (%v), want that it ran once", text, err)
			}
		})
	}
}

func TestHooks_FailedPoststopDoesNotKeepTheContainer(t *testing.T) {
	harness.OursOnly(t, "that a poststop hook which fails is logged only")
	e := newEnv(t)
	c := e.run("c1", config{opts: with(hooks(func(kind string) *specs.Hook {
		if kind != "poststop" {
			return nil
		}
		return &specs.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", "exit 3"}}
	}))}, "true")
	c.wantExit(0)
	e.wantEvents("c1", "create c1 | start c1 | exit c1 | delete c1")
}

func TestHooks_HangingOneIsEndedAfterItsTimeout(t *testing.T) {
	parent := newEnv(t)
	for i, kind := range []string{"createRuntime", "createContainer"} {
		t.Run(kind, func(t *testing.T) {
			e := parent.sub(t)
			began := time.Now()
			_, err := e.tryCreate(fmt.Sprintf("h%d", i), config{opts: with(hooks(func(k string) *specs.Hook {
				if k != kind {
					return nil
				}
				limit := 1
				return &specs.Hook{Path: "/bin/sleep", Args: []string{"sleep", "1000"}, Timeout: &limit}
			}))}, "true")
			wantError(t, err, nil, kind, "timeout")
			if took := time.Since(began); took > harness.Slow(10*time.Second) {
				t.Errorf("Create took %v, want little more than the timeout of 1s", took)
			}
		})
	}
}
