// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cleanup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/internal/testx"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

func TestRun_TakesThePodAlongOnlyWithoutItsShim(t *testing.T) {
	for _, tc := range []struct {
		name         string
		make         func(*testing.T, ...string) *household
		ids          []string
		lives        bool
		of           string
		first, again string // what the two deletes remove
	}{
		{"a sandbox", newPod, []string{"a", "b"}, false, "s", "a b pod s", "pod s"},
		{"a member of a sandbox", newPod, []string{"a", "b"}, false, "a", "a b pod s", "a"},
		{"a sandbox whose shim lives", newPod, []string{"a", "b"}, true, "s", "pod", "pod"},
		{"a member of a sandbox whose shim lives", newPod, []string{"a", "b"}, true, "a", "a", "a"},
		{"a pause container", newHousehold, []string{"s", "a", "b"}, false, "s", "a b s", "s"},
		{"a member beside a pause container", newHousehold, []string{"s", "a", "b"}, false, "b", "a b s", "b"},
		{"a pause container whose shim lives", newHousehold, []string{"s", "a", "b"}, true, "s", "s", "s"},
		{"a member beside a pause container whose shim lives", newHousehold, []string{"s", "a", "b"}, true, "b", "b", "b"},
		// The shim was started for a container that never came to be listed, since its Create was refused, say.
		{"the container of the list's bundle was never made", newHousehold, []string{"a"}, false, "a", "a", "a"},
		{"the container of the list's bundle was not the first", newHousehold, []string{"a", "s"}, false, "a", "a s", "a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := tc.make(t, tc.ids...)
			h.lives = tc.lives
			h.want(tc.of, tc.first)
			h.want(tc.of, tc.again)
		})
	}
}

// A container that takes its time to end would take it from the first, whose delete has a bound for all.
func TestRun_StopsAllAtTheSameTime(t *testing.T) {
	for _, of := range []string{"s", "a"} {
		h := newHousehold(t, "s", "a")
		begun := map[string]chan struct{}{"s": make(chan struct{}), "a": make(chan struct{})}
		first := map[string]*sync.Once{"s": {}, "a": {}}
		h.container = func(ctx context.Context, c process.Config) error {
			first[c.ID].Do(func() { close(begun[c.ID]) })
			for _, other := range begun {
				select {
				case <-other:
				case <-ctx.Done():
					return fmt.Errorf("%s: the other has not begun: %w", c.ID, ctx.Err())
				}
			}
			return nil
		}
		h.want(of, "a s")
	}
}

func TestRun_GoesOnWhereOneFails(t *testing.T) {
	h := newPod(t, "a", "b", "c")
	h.failing["b"] = errors.New("it does not die")
	h.want("a", "a b c pod s") // which is gone
	// containerd keeps the sandbox's bundle as long as it cannot be removed, and with it the list.
	got, err := h.run(t.Context(), "s")
	if got != "b pod s" {
		t.Errorf("delete of s removed %q, want b again", got)
	}
	testx.WantText(t, err, `"b"`, "it does not die")
	h.failing = nil
	h.want("s", "b pod s")
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

// A delete that finds another at work on the whole pod does not wait for all of it: containerd gives each 5 s.
func TestRun_OfAMemberDoesNotWaitForTheWholePod(t *testing.T) {
	h := newPod(t, "a", "b")
	unlock, err := lockBundle(t.Context(), h.bundles["s"])
	testx.Must(t, err)
	h.want("a", "a")
	// With its bundle the list would go.
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		h.want("s", "a b pod s")
	}()
	if testx.Closed(waited) {
		t.Error("delete of s did not wait")
	}
	unlock()
	testx.Within(t, "delete of s", waited)
}

func TestRun_LeavesWhatOnlyHasTheSameName(t *testing.T) {
	h, other := newPod(t, "a", "b"), newPod(t)
	// The shim died; somebody removed a's bundle, and made a container of that id in another pod.
	testx.Must(t, os.Remove(filepath.Join(h.bundles["a"], indexLink)))
	testx.Must(t, os.Symlink(other.bundles["s"], filepath.Join(h.bundles["a"], indexLink)))
	h.want("s", "b pod s")
}

func TestRun_WhereABundleIsGone(t *testing.T) {
	for gone, want := range map[string]string{"s": "b", "a": "a b pod s"} {
		h := newPod(t, "a", "b")
		testx.Must(t, os.RemoveAll(h.bundles[gone]))
		h.want("b", want)
	}
}

// A group of containers has no sandbox that stays until all others are gone: the list moves to a bundle that is there.
func TestIndex_MovesWhenItsBundleGoes(t *testing.T) {
	leave := func(h *household, ids ...string) {
		for _, id := range ids {
			testx.Must(t, RemoveState(h.bundles[id]))
			testx.Must(t, h.index.Remove(id, h.bundles[id]))
			if got, want := testx.Files(t, h.bundles[id]), "config.json"+" "+"rootfs"; got != want {
				t.Errorf("files in the bundle of %s = %q, want %q", id, got, want)
			}
			testx.Must(t, os.RemoveAll(h.bundles[id])) // as containerd does
		}
	}
	t.Run("one after the other", func(t *testing.T) {
		h := newHousehold(t, "s", "b", "c", "d")
		leave(h, "s")
		h.want("d", "b c d")
		leave(h, "b", "c")
		h.create("e")
		h.want("e", "d e")
		leave(h, "d", "e")
		h.create("f") // the first of a shim that was about to end
		h.want("f", "f")
		leave(h, "f")
	})
	t.Run("past one that is gone", func(t *testing.T) {
		// What could not be undone of a create is listed until the shim ends, and containerd removes its bundle at once.
		h := newHousehold(t, "s", "a", "b", "c")
		testx.Must(t, os.RemoveAll(h.bundles["a"]))
		leave(h, "s")
		h.want("c", "a b c")
	})
	t.Run("of the shim", func(t *testing.T) {
		h := newHousehold(t)
		h.index.SetShim(filepath.Join(t.TempDir(), "gone"), "/the/socket", nil)
		h.create("a", "b") // a's bundle gets the list
		h.want("b", "a b")
	})
	t.Run("of the sandbox", func(t *testing.T) {
		// containerd gave the sandbox up and removed its bundle; the list is in one that is no sandbox's.
		h := newPod(t, "a")
		testx.Must(t, os.RemoveAll(h.bundles["s"]))
		h.create("b")
		h.lives = true
		h.want("b", "b")
		h.lives = false
		h.want("a", "a b")
	})
}

// containerd may be told of its state directory by a link, /var/run say, and names bundles by it. The shim finds its
// own as its working directory, which has no links.
func TestRun_BundlesBehindALink(t *testing.T) {
	link := filepath.Join(t.TempDir(), "run")
	testx.Must(t, os.Symlink("/", link))
	for want, pod := range map[string]bool{"a s": false, "a pod s": true} {
		h := newHousehold(t)
		h.bundles["s"], h.bundles["a"] = link+h.bundles["s"], link+testx.NewBundle(t, goodSpec())
		if pod {
			testx.Must(t, h.index.SetPod("s", h.bundles["s"], true))
		} else {
			h.create("s")
		}
		h.create("a")
		h.want("s", want)
	}
}

// containerd removes the bundle of the pod when its delete command succeeds, while that of a container still runs. What
// is made there in that moment keeps the bundle.
func TestRun_MakesNoFileInABundle(t *testing.T) {
	for _, of := range []string{"s", "a"} {
		h := newPod(t, "a", "b")
		h.failing["b"] = errors.New("it does not die")
		watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		testx.Must(t, err)
		for _, bundle := range h.bundles {
			_, err := unix.InotifyAddWatch(watch, bundle, unix.IN_CREATE|unix.IN_MOVED_TO)
			testx.Must(t, err)
		}
		for range 2 {
			if got, err := h.run(t.Context(), of); !strings.Contains(got, of) {
				t.Fatalf("delete of %s removed %q, %v", of, got, err)
			}
		}
		events := make([]byte, 4096)
		if n, err := unix.Read(watch, events); !errors.Is(err, unix.EAGAIN) {
			t.Errorf("delete of %s made a file: events %q, %v", of, events[:max(n, 0)], err)
		}
		testx.Must(t, unix.Close(watch))
	}
}

// What cannot be read now may be read later, and says who else has to go. What is broken stays so.
func TestRun_LeavesAllWhereTheIndexCannotBeReadNow(t *testing.T) {
	h := newPod(t, "a", "b")
	list := filepath.Join(h.bundles["s"], indexFile)
	testx.Must(t, os.Rename(list, list+".away"))
	testx.Must(t, os.Mkdir(list, 0o700))
	for _, id := range []string{"a", "s"} {
		got, err := h.run(t.Context(), id)
		if got != "" {
			t.Errorf("delete of %s removed %q, want nothing", id, got)
		}
		testx.WantText(t, err, "read the list of the pod's containers", indexFile)
	}
	testx.Must(t, os.Remove(list))
	testx.Write(t, list, "{half")
	h.want("a", "a")
	testx.Must(t, os.Rename(list+".away", list))
	h.want("a", "a b pod s")
}

// containerd tries a Delete again, for example when a full /run has room again.
func TestIndex_RemoveCanBeTriedAgain(t *testing.T) {
	for _, tc := range []struct {
		removed, blocked string // whose list cannot be written at first
		want             string
	}{
		{"s", "a", "a b"}, // the list moves to a
		{"b", "s", "a s"},
	} {
		t.Run(tc.removed, func(t *testing.T) {
			h := newHousehold(t, "s", "a", "b")
			list := filepath.Join(h.bundles[tc.blocked], indexFile)
			testx.Must(t, os.RemoveAll(list))
			testx.Must(t, os.MkdirAll(filepath.Join(list, "in the way"), 0o700))
			if err := h.index.Remove(tc.removed, h.bundles[tc.removed]); err == nil {
				t.Fatal("Remove succeeds where the list cannot be written")
			}
			testx.Must(t, os.RemoveAll(list))
			testx.Must(t, h.index.Remove(tc.removed, h.bundles[tc.removed]))
			testx.Must(t, os.RemoveAll(h.bundles[tc.removed]))
			h.want("a", tc.want)
		})
	}
}

// withMember has a in the PID namespace of another container, such as a pause container whose namespace is the pod's.
func withMember(t *testing.T) *household {
	t.Helper()
	spec := goodSpec()
	spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.PIDNamespace, Path: "/proc/4321/ns/pid"}}
	h := newHousehold(t, "s")
	h.bundles["a"] = testx.NewBundle(t, spec)
	h.create("a")
	return h
}

// With the namespace's first process the kernel kills its members, in the middle of their grace.
func TestRun_EndsFirstWhatIsInThePIDNamespaceOfAnother(t *testing.T) {
	for _, of := range []string{"s", "a"} {
		h := withMember(t)
		h.create("b")
		var ended atomic.Bool
		h.container = func(_ context.Context, c process.Config) error {
			if c.ID == "a" {
				for range 100 {
					runtime.Gosched() // lets the others begin, if they do not wait
				}
				ended.Store(true)
			} else if !ended.Load() {
				return fmt.Errorf("%s is ended before a", c.ID)
			}
			return nil
		}
		h.want(of, "a b s")
	}
}

// The other containers do not wait for a process in uninterruptible sleep, say.
func TestRun_DoesNotWaitForOneThatCannotDie(t *testing.T) {
	h := withMember(t)
	var inTime atomic.Bool
	h.container = func(ctx context.Context, c process.Config) error {
		if c.ID == "a" {
			<-ctx.Done()
			return ctx.Err()
		}
		inTime.Store(ctx.Err() == nil)
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), removalReserve+100*time.Millisecond)
	defer cancel()
	_, err := h.run(ctx, "s")
	testx.WantText(t, err, `"a"`)
	if !inTime.Load() {
		t.Error("the other one was removed when the time was over")
	}
}

// household is the list and the bundles of a shim, and what a delete command does with them.
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

// newHousehold is a shim whose list is in the bundle of s, with containers.
func newHousehold(t *testing.T, ids ...string) *household {
	t.Helper()
	h := &household{t: t, bundles: map[string]string{"s": testx.NewBundle(t, goodSpec())}, failing: map[string]error{}}
	h.index.SetShim(h.bundles["s"], "/the/socket", nil)
	h.create(ids...)
	return h
}

// newPod is a shim of the Sandbox API, whose sandbox is s.
func newPod(t *testing.T, ids ...string) *household {
	t.Helper()
	h := newHousehold(t)
	testx.Must(t, os.Remove(filepath.Join(h.bundles["s"], "config.json")))
	testx.Must(t, h.index.SetPod("s", h.bundles["s"], true))
	h.create(ids...)
	return h
}

func (h *household) create(ids ...string) {
	h.t.Helper()
	for _, id := range ids {
		if h.bundles[id] == "" {
			h.bundles[id] = testx.NewBundle(h.t, goodSpec())
		}
		testx.Must(h.t, h.index.Add(id, h.bundles[id], "/r"))
		testx.Must(h.t, State{Root: "/r"}.Write(h.bundles[id]))
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
			if c.ID == "" {
				h.t.Error("a container without an id was to be removed, whose state directory is that of all")
			}
			if c.Bundle != "" && c.Bundle != resolveBundle(h.bundles[c.ID]) {
				return fmt.Errorf("container %q has bundle %q, want %q", c.ID, c.Bundle, h.bundles[c.ID])
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
