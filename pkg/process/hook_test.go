// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process_test

import (
	"context"
	"errors"
	"slices"
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

func TestHooks_AreUndoneInReverse(t *testing.T) {
	for _, tc := range []struct {
		fails string
		want  []string
		died  bool // init
	}{
		{"prepare", []string{"prepare a", "prepare b", "removed b", "removed a"}, false},
		{"created", []string{"prepare a", "prepare b", "created a", "created b", "destroy b", "removed b", "removed a"}, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, &processtest.Runtime{}, process.Config{})
			f := &processtest.Runtime{}
			var calls []string
			b := fakeHook{name: "b", calls: &calls, fails: tc.fails}
			config := process.Config{ID: "c2", Hooks: []process.Hook{fakeHook{name: "a", calls: &calls}, b}, CPUSet: b}
			if _, err := process.New(ctx, f, w.queue, config); err == nil || err.Error() != `container "c2": `+tc.fails {
				t.Errorf("New = %v, want the error of %s", err, tc.fails)
			}
			if !slices.Equal(calls, tc.want) {
				t.Errorf("calls = %q, want %q", calls, tc.want)
			}
			if died := len(f.Containers()) > 0 && f.Containers()[0].First().Reaped(); died != tc.died {
				t.Errorf("init is dead: %t, want %t", died, tc.died)
			}
			w.wantLog("create c1")
		})
	}
}

func TestHooks_OfTheCgroupAreToldOfUpdateAndDelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []string
		f := &processtest.Runtime{}
		hook := fakeHook{name: "a", calls: &calls}
		w := newWorld(t, f, process.Config{ID: "c1", Hooks: []process.Hook{hook}, CPUSet: hook})
		must(t, w.Update(ctx, &specs.LinuxResources{}))
		_, err := w.Delete(ctx)
		must(t, err)
		if want := []string{"prepare a", "created a", "update a", "updated a", "destroy a", "removed a"}; !slices.Equal(calls, want) {
			t.Errorf("calls = %q, want %q", calls, want)
		}
	})
}

// The first hook has what the delete command needs to find what is left.
func TestHooks_TheFirstStaysWhileSomethingIsLeft(t *testing.T) {
	broken := errors.New("broken")
	for name, tc := range map[string]struct {
		fails   string           // of the second hook
		failing map[string]error // of the runtime
		want    []string         // the end of the calls
	}{
		"the runtime could not undo its own": {"", map[string]error{"create": errors.Join(broken, process.ErrLeft)}, []string{"removed b"}},
		"the container cannot be discarded":  {"created", map[string]error{"destroy": broken}, []string{"destroy b", "removed b"}},
		"another hook cannot be undone":      {"removed", map[string]error{"create": broken}, []string{"removed b", "removed b"}},
		"nothing is left":                    {"", map[string]error{"create": broken}, []string{"removed b", "removed a"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, &processtest.Runtime{}, process.Config{})
				f := &processtest.Runtime{}
				for call, err := range tc.failing {
					f.Fail(call, err)
				}
				var calls []string
				b := fakeHook{name: "b", calls: &calls, fails: tc.fails}
				config := process.Config{ID: "c2", Hooks: []process.Hook{fakeHook{name: "a", calls: &calls}, b}, CPUSet: b}
				if _, err := process.New(ctx, f, w.queue, config); err == nil {
					t.Error("New succeeded")
				}
				if end := calls[len(calls)-len(tc.want):]; !slices.Equal(end, tc.want) {
					t.Errorf("calls = %q, want %q at the end", calls, tc.want)
				}
			})
		})
	}
}
