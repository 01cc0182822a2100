// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/process/processtest"
)

// fakeHook writes down what is called, and fails one call.
type fakeHook struct {
	process.NoHook
	name  string
	calls *[]string
	fails string
}

func (h fakeHook) call(what string) error {
	*h.calls = append(*h.calls, what+" "+h.name)
	if h.fails == what {
		return errors.New(what)
	}
	return nil
}

func (h fakeHook) Prepare(context.Context, *process.Config) error { return h.call("prepare") }

func (h fakeHook) Created(context.Context, process.RuntimeContainer, process.Handle) error {
	return h.call("created")
}

func (h fakeHook) Removed() error                     { return h.call("removed") }
func (h fakeHook) BeforeUpdate(*specs.LinuxResources) { _ = h.call("update") }
func (h fakeHook) AfterUpdate(error)                  { _ = h.call("updated") }
func (h fakeHook) BeforeDestroy()                     { _ = h.call("destroy") }

// record is the record of a container that fails to be created.
type record struct {
	noRecord
	calls *[]string
}

func (r record) Remove() error {
	*r.calls = append(*r.calls, "forgotten")
	return nil
}

// The record has what the delete command needs to find what is left.
func TestHooks_AreUndoneInReverseAndTheRecordStaysWhileSomethingIsLeft(t *testing.T) {
	broken := errors.New("broken")
	for name, tc := range map[string]struct {
		fails   string           // of the second hook
		failing map[string]error // of the runtime
		want    string           // calls
		died    bool             // init
	}{
		"a hook cannot prepare":              {"prepare", nil, "prepare a, prepare b, removed b, removed a, forgotten", false},
		"a hook refuses init":                {"created", nil, "prepare a, prepare b, created a, created b, destroy b, removed b, removed a, forgotten", true},
		"the runtime could not undo its own": {"", map[string]error{"create": errors.Join(broken, process.ErrLeft)}, "prepare a, prepare b, removed b, removed a", false},
		"the container cannot be discarded":  {"created", map[string]error{"destroy": broken}, "prepare a, prepare b, created a, created b, destroy b, removed b, removed a", true},
		"a hook cannot be undone":            {"removed", map[string]error{"create": broken}, "prepare a, prepare b" + strings.Repeat(", removed b, removed a", 5), false},
		"the runtime fails":                  {"", map[string]error{"create": broken}, "prepare a, prepare b, removed b, removed a, forgotten", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, &processtest.Runtime{}, process.Config{})
				f := &processtest.Runtime{}
				for call, err := range tc.failing {
					f.Fail(call, err)
				}
				var calls []string
				a, b := fakeHook{name: "a", calls: &calls}, fakeHook{name: "b", calls: &calls, fails: tc.fails}
				config := process.Config{ID: "c2", Hooks: []process.Hook{a, b}, CPUSet: b, Record: record{calls: &calls}}
				if _, err := process.New(ctx, f, w.queue, config); err == nil || !strings.HasPrefix(err.Error(), `container "c2": `) {
					t.Errorf("New = %v", err)
				}
				if got := strings.Join(calls, ", "); got != tc.want {
					t.Errorf("calls = %q, want %q", got, tc.want)
				}
				if died := len(f.Containers()) > 0 && f.Containers()[0].First().Reaped(); died != tc.died {
					t.Errorf("init is dead: %t, want %t", died, tc.died)
				}
				w.wantLog("create c1")
			})
		})
	}
}

func TestHooks_OfTheCgroupAreToldOfUpdateAndDelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []string
		hook := fakeHook{name: "a", calls: &calls}
		w := newWorld(t, &processtest.Runtime{}, process.Config{Hooks: []process.Hook{hook}, CPUSet: hook})
		must(t, w.Update(ctx, &specs.LinuxResources{}))
		must(t, w.delete(w.Init()))
		const want = "prepare a, created a, update a, updated a, destroy a, removed a"
		if got := strings.Join(calls, ", "); got != want {
			t.Errorf("calls = %q, want %q", got, want)
		}
	})
}
