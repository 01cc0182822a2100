// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cleanup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/process"
)

func TestRun_TakesThePodAlongOnlyWithoutItsShim(t *testing.T) {
	for _, tc := range []struct {
		name  string
		make  func(*testing.T, ...string) *household
		ids   []string
		lives bool
		of    string
		want  string // what each of two deletes removes
	}{
		{"a sandbox", newPod, []string{"a", "b"}, false, "s", "a b pod s"},
		{"a member of a sandbox", newPod, []string{"a", "b"}, false, "a", "a"},
		{"a sandbox whose shim lives", newPod, []string{"a", "b"}, true, "s", "pod"},
		{"a member of a sandbox whose shim lives", newPod, []string{"a", "b"}, true, "a", "a"},
		{"a pause container", newHousehold, []string{"s", "a", "b"}, false, "s", "a b s"},
		{"a pause container that was not the first", newHousehold, []string{"a", "s", "b"}, false, "s", "a b s"},
		{"a pause container whose shim lives", newHousehold, []string{"s", "a", "b"}, true, "s", "s"},
		{"a member beside a pause container", newHousehold, []string{"s", "a", "b"}, false, "b", "b"},
		// The shim was started for a container whose Create was refused, say.
		{"a container that was never made", newHousehold, []string{"a"}, false, "s", "a s"},
		{"a container that is alone", newHousehold, []string{"s"}, true, "s", "s"}, // nobody asks the shim
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := tc.make(t, tc.ids...)
			h.lives = tc.lives
			h.want(tc.of, tc.want)
			h.want(tc.of, tc.want)
		})
	}
}

// A container that takes its time to end would take it from the first, whose delete has a bound for all.
func TestRun_StopsAllAtTheSameTime(t *testing.T) {
	h := newHousehold(t, "s", "a")
	begun := map[string]chan struct{}{"s": make(chan struct{}), "a": make(chan struct{})}
	h.container = func(ctx context.Context, c process.Config) error {
		close(begun[c.ID])
		for _, other := range begun {
			select {
			case <-other:
			case <-ctx.Done():
				return fmt.Errorf("%s: the other has not begun: %w", c.ID, ctx.Err())
			}
		}
		return nil
	}
	h.want("s", "a s")
}

func TestRun_GoesOnWhereOneFails(t *testing.T) {
	h := newPod(t, "a", "b", "c")
	h.failing["b"] = errors.New("it does not die")
	// containerd keeps the sandbox's bundle as long as it cannot be removed, and with it the list.
	got, err := h.run(t.Context(), "s")
	if got != "a b c pod s" {
		t.Errorf("delete of s removed %q, want all", got)
	}
	testx.WantText(t, err, `"b"`, "it does not die")
	h.failing = nil
	h.want("s", "a b c pod s")
}

func TestRun_ForAllAtOnce(t *testing.T) {
	ids := []string{"s"}
	for i := range 30 {
		ids = append(ids, fmt.Sprintf("m%d", i))
	}
	h := newPod(t, ids[1:]...)
	var all sync.WaitGroup
	for _, id := range append(ids, ids...) {
		all.Go(func() {
			if _, err := h.run(t.Context(), id); err != nil {
				t.Errorf("delete of %s: %v", id, err)
			}
		})
	}
	all.Wait()
}

func TestRun_LeavesWhatOnlyHasTheSameName(t *testing.T) {
	h := newPod(t, "a", "b")
	// The shim died; somebody removed a's bundle, and made a container of that id in another pod.
	testx.Must(t, State{Root: "/r", Socket: "/another/socket"}.Write(h.bundles["a"]))
	h.want("s", "b pod s")
}

func TestRun_WhereABundleIsGone(t *testing.T) {
	for gone, want := range map[string]string{"s": "s", "a": "a b pod s"} {
		h := newPod(t, "a", "b")
		testx.Must(t, os.RemoveAll(h.bundles[gone]))
		h.want("s", want)
	}
}

// What the shim has at last, and what of it the delete command for s, for which it was started, removes.
func TestIndex_ListsWhatIsThere(t *testing.T) {
	leave := func(h *household, ids ...string) {
		for _, id := range ids {
			testx.Must(t, h.index.Remove(id, h.bundles[id]))
			if got := testx.Files(t, h.bundles[id]); got != "config.json rootfs" {
				t.Errorf("files in the bundle of %s = %q, want those of the client", id, got)
			}
		}
	}
	t.Run("one after the other", func(t *testing.T) {
		h := newHousehold(t, "s", "a", "b")
		leave(h, "b")
		h.want("s", "a s")
		leave(h, "a")
		h.want("s", "s")
		h.create("c")
		h.want("s", "c s")
	})
	t.Run("that which has the list goes first", func(t *testing.T) {
		h := newHousehold(t, "s", "a")
		leave(h, "s")
		h.want("s", "s")
		h.create("b")
		h.want("a", "a")
		leave(h, "a", "b")
		h.create("s", "c") // again
		h.want("s", "c s")
	})
	t.Run("its bundle is gone", func(t *testing.T) {
		// containerd gave the sandbox up and removed its bundle.
		h := newPod(t, "a")
		testx.Must(t, os.RemoveAll(h.bundles["s"]))
		h.create("b")
		leave(h, "a", "b")
	})
}

// containerd removes the bundle of the pod when its delete command succeeds, while that of a container still runs. What
// is made there in that moment keeps the bundle.
func TestRun_MakesNoFileInABundle(t *testing.T) {
	h := newPod(t, "a", "b")
	h.failing["b"] = errors.New("it does not die")
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	testx.Must(t, err)
	defer unix.Close(watch)
	for _, bundle := range h.bundles {
		_, err := unix.InotifyAddWatch(watch, bundle, unix.IN_CREATE|unix.IN_MOVED_TO)
		testx.Must(t, err)
	}
	if got, err := h.run(t.Context(), "s"); !strings.Contains(got, "s") {
		t.Fatalf("delete of s removed %q, %v", got, err)
	}
	events := make([]byte, 4096)
	if n, err := unix.Read(watch, events); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("delete made a file: events %q, %v", events[:max(n, 0)], err)
	}
}

// containerd tries a Delete again, for example when a full /run has room again.
func TestIndex_RemoveCanBeTriedAgain(t *testing.T) {
	h := newHousehold(t, "s", "a", "b")
	list := filepath.Join(h.bundles["s"], stateFile)
	testx.Must(t, os.RemoveAll(list))
	testx.Must(t, os.MkdirAll(filepath.Join(list, "in the way"), 0o700))
	if err := h.index.Remove("b", h.bundles["b"]); err == nil {
		t.Fatal("Remove succeeds where the list cannot be written")
	}
	testx.Must(t, os.RemoveAll(list))
	testx.Must(t, h.index.Remove("b", h.bundles["b"]))
	h.want("s", "a s")
}

// The files that the release before wrote: a pod's list was a file of its own, to which those of its containers linked.
func TestRun_OfTheShimOfAFormerRelease(t *testing.T) {
	h := newPod(t)
	bundle, member := h.bundles["s"], testx.NewBundle(t, goodSpec())
	h.bundles["a"] = member
	testx.Write(t, filepath.Join(bundle, stateFile), `{"Root":"/run/containerd/runc/ns","Pid":42}`)
	testx.Write(t, filepath.Join(bundle, "shim.pod.json"),
		`{"ID":"s","Pod":true,"Socket":"/the/socket","Members":{"a":{"Bundle":"`+member+`","Root":"/r"}}}`)
	testx.Write(t, filepath.Join(member, stateFile), `{"Root":"/r","Pid":7,"Stop":{"Signal":15,"Grace":1000000000}}`)
	testx.Must(t, os.Symlink(bundle, filepath.Join(member, "shim.home")))
	h.lives = true
	h.want("s", "pod")
	h.want("a", "a")
	h.lives = false
	h.want("s", "a pod s")
}

// household is the files and the bundles of a shim, and what a delete command does with them.
type household struct {
	t       *testing.T
	index   Index
	bundles map[string]string // by id
	lives   bool              // the shim

	mu        sync.Mutex
	removed   []string         // ids, in any order; a sandbox is "pod"
	failing   map[string]error // by id
	container func(context.Context, process.Config) error
}

// newHousehold is a shim that was started for s, with containers.
func newHousehold(t *testing.T, ids ...string) *household {
	t.Helper()
	h := &household{t: t, bundles: map[string]string{"s": testx.NewBundle(t, goodSpec())}, failing: map[string]error{}}
	h.index.SetShim("s", h.bundles["s"], "/the/socket", nil)
	h.create(ids...)
	return h
}

// newPod is a shim of the Sandbox API, whose sandbox is s.
func newPod(t *testing.T, ids ...string) *household {
	t.Helper()
	h := newHousehold(t)
	testx.Must(t, os.Remove(filepath.Join(h.bundles["s"], "config.json")))
	testx.Must(t, h.index.Write("s", h.bundles["s"], State{Root: "/r", Pod: true}))
	h.create(ids...)
	return h
}

func (h *household) create(ids ...string) {
	h.t.Helper()
	for _, id := range ids {
		if h.bundles[id] == "" {
			h.bundles[id] = testx.NewBundle(h.t, goodSpec())
		}
		testx.Must(h.t, h.index.Write(id, h.bundles[id], State{Root: "/r"}))
	}
}

// run is one delete command.
func (h *household) run(ctx context.Context, id string) (removed string, err error) {
	note := func(id, what string) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.removed = append(h.removed, what)
		return h.failing[id]
	}
	_, exit, err := Request{
		Namespace: "ns", ID: id, Bundle: h.bundles[id],
		Container: func(ctx context.Context, c process.Config) error {
			if c.Bundle != h.bundles[c.ID] || c.Root == "" {
				return fmt.Errorf("container %q has bundle %q, root %q", c.ID, c.Bundle, c.Root)
			}
			if h.container != nil {
				if err := h.container(ctx, c); err != nil {
					return err
				}
			}
			return note(c.ID, c.ID)
		},
		Pod: func(string) error { return note(id, "pod") },
		Serves: func(_ context.Context, socket, _ string) (bool, error) {
			if socket != "/the/socket" {
				return false, fmt.Errorf("asked of socket %q", socket)
			}
			return h.lives, nil
		},
	}.Run(ctx)
	if err == nil && (exit.Status != 137 || exit.At.IsZero()) {
		h.t.Errorf("delete %s = exit %+v, want 137, and a time", id, exit)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	all := slices.Sorted(slices.Values(h.removed))
	h.removed = nil
	return strings.Join(slices.Compact(all), " "), err
}

// want fails the test unless a delete command removes these ids, and succeeds.
func (h *household) want(id, want string) {
	h.t.Helper()
	if got, err := h.run(h.t.Context(), id); err != nil || got != want {
		h.t.Errorf("delete of %s removed %q, %v, want %q", id, got, err, want)
	}
}
