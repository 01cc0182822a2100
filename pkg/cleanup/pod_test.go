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

// household is a pod on disk, and what a delete command did with it.
type household struct {
	t       *testing.T
	bundles map[string]string // by id
	lives   bool              // the shim

	mu      sync.Mutex
	removed []string         // ids, in any order; a sandbox's with "pod " before it
	failing map[string]error // by id
	asked   []string         // ids of containers, whatever became of it
}

// newHousehold makes the sandbox home, with its containers.
func newHousehold(t *testing.T, home string, pod bool, ids ...string) *household {
	t.Helper()
	h := &household{t: t, bundles: map[string]string{}, failing: map[string]error{}}
	var s Index
	spec := goodSpec()
	if pod {
		spec = nil
	}
	h.bundles[home] = testx.NewBundle(t, spec)
	s.SetShim(h.bundles[home], "/the/socket", nil)
	if pod {
		testx.Must(t, s.SetPod(home, h.bundles[home], true))
	} else {
		h.create(&s, home)
	}
	for _, id := range ids {
		h.create(&s, id)
	}
	return h
}

func (h *household) create(s *Index, id string) {
	h.t.Helper()
	if h.bundles[id] == "" {
		h.bundles[id] = testx.NewBundle(h.t, goodSpec())
	}
	testx.Must(h.t, s.Add(id, h.bundles[id], "/r"))
	testx.Must(h.t, State{Root: "/r"}.Write(h.bundles[id]))
}

// delete is one delete command. It answers what it removed.
func (h *household) delete(id string) (string, error) {
	h.t.Helper()
	return h.deleteWithin(h.t.Context(), id)
}

func (h *household) deleteWithin(ctx context.Context, id string) (string, error) {
	h.t.Helper()
	_, exit, err := Request{
		Namespace: "ns", ID: id, Bundle: h.bundles[id],
		Container: func(_ context.Context, c process.Config) error {
			h.mu.Lock()
			h.asked = append(h.asked, c.ID)
			h.mu.Unlock()
			if c.Bundle != "" && c.Bundle != resolveBundle(h.bundles[c.ID]) {
				return fmt.Errorf("container %q has bundle %q, want %q", c.ID, c.Bundle, h.bundles[c.ID])
			}
			return h.note(c.ID, c.ID)
		},
		Pod: func(bundle string) error { return h.note(id, "pod "+filepath.Base(filepath.Dir(filepath.Dir(bundle)))) },
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

func (h *household) note(id, what string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if strings.HasPrefix(what, "pod ") {
		what = "pod"
	}
	h.removed = append(h.removed, what)
	return h.failing[id]
}

func TestRun_TakesThePodAlongOnlyWithoutItsShim(t *testing.T) {
	for _, tc := range []struct {
		name  string
		pod   bool // of the Sandbox API, not of a pause container
		lives bool
		of    string
		first string // what the first delete removes
		again string // and the second
	}{
		{name: "a sandbox", pod: true, of: "s", first: "a b pod s", again: "pod s"},
		{name: "a member of a sandbox", pod: true, of: "a", first: "a b pod s", again: "a"},
		{name: "a sandbox whose shim lives", pod: true, lives: true, of: "s", first: "pod", again: "pod"},
		{name: "a member of a sandbox whose shim lives", pod: true, lives: true, of: "a", first: "a", again: "a"},
		{name: "a pause container", of: "s", first: "a b s", again: "s"},
		{name: "a member beside a pause container", of: "b", first: "a b s", again: "b"},
		{name: "a pause container whose shim lives", lives: true, of: "s", first: "s", again: "s"},
		{name: "a member beside a pause container whose shim lives", lives: true, of: "b", first: "b", again: "b"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHousehold(t, "s", tc.pod, "a", "b")
			h.lives = tc.lives
			for i, want := range []string{tc.first, tc.again} {
				if got, err := h.delete(tc.of); err != nil || got != want {
					t.Errorf("delete %d of %s removed %q, %v, want %q", i+1, tc.of, got, err, want)
				}
			}
		})
	}
}

// Else one that takes its time to end would take it from the first, whose delete has a bound for all.
func TestRun_StopsAllAtTheSameTime(t *testing.T) {
	for _, of := range []string{"s", "a"} {
		h := newHousehold(t, "s", false, "a")
		begun := map[string]chan struct{}{"s": make(chan struct{}), "a": make(chan struct{})}
		first := map[string]*sync.Once{"s": {}, "a": {}}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, _, err := Request{
			Namespace: "ns", ID: of, Bundle: h.bundles[of],
			Container: func(ctx context.Context, c process.Config) error {
				first[c.ID].Do(func() { close(begun[c.ID]) })
				for _, other := range begun {
					select {
					case <-other:
					case <-ctx.Done():
						return fmt.Errorf("%s: the other has not begun: %w", c.ID, ctx.Err())
					}
				}
				return nil
			},
			Serves: func(context.Context, string, string) (bool, error) { return false, nil },
		}.Run(ctx)
		if err != nil {
			t.Errorf("delete of %s: %v", of, err)
		}
	}
}

func TestRun_GoesOnWhereOneFails(t *testing.T) {
	h := newHousehold(t, "s", true, "a", "b", "c")
	h.failing["b"] = errors.New("it does not die")
	// The one that was asked for is gone.
	if got, err := h.delete("a"); err != nil || got != "a b c pod s" {
		t.Errorf("delete of a removed %q, %v, want all", got, err)
	}
	// containerd keeps home as long as it cannot be removed, and with it the list.
	got, err := h.delete("s")
	if got != "b pod s" {
		t.Errorf("delete of s removed %q, want b again", got)
	}
	testx.WantText(t, err, `"b"`, "it does not die")
	h.failing = nil
	if got, err := h.delete("s"); err != nil || got != "b pod s" {
		t.Errorf("third delete removed %q, %v", got, err)
	}
}

func TestRun_ForAllAtOnce(t *testing.T) {
	ids := []string{"s"}
	for i := range 30 {
		ids = append(ids, fmt.Sprintf("m%d", i))
	}
	h := newHousehold(t, "s", true, ids[1:]...)
	var all sync.WaitGroup
	for _, id := range append(ids, ids...) {
		all.Go(func() {
			if _, err := h.delete(id); err != nil {
				t.Errorf("delete of %s: %v", id, err)
			}
		})
	}
	all.Wait()
}

// A delete that finds another at work on the whole pod does not wait for all of it: containerd gives each 5 s.
func TestRun_OfAMemberDoesNotWaitForTheWholePod(t *testing.T) {
	h := newHousehold(t, "s", true, "a", "b")
	unlock, err := lockBundle(t.Context(), h.bundles["s"])
	testx.Must(t, err)
	if got, err := h.delete("a"); err != nil || got != "a" {
		t.Errorf("delete of a while another removes the pod removed %q, %v, want a alone", got, err)
	}
	// With its bundle the list would go.
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		if got, err := h.delete("s"); err != nil || got != "a b pod s" {
			t.Errorf("delete of s removed %q, %v, want all", got, err)
		}
	}()
	if testx.Closed(waited) {
		t.Error("delete of s did not wait")
	}
	unlock()
	testx.Within(t, "delete of s", waited)
}

func TestRun_LeavesWhatOnlyHasTheSameName(t *testing.T) {
	h := newHousehold(t, "s", true, "a", "b")
	other := newHousehold(t, "s2", true)
	// The shim died; somebody removed a's bundle, and made a container of that id in another pod.
	testx.Must(t, os.Remove(filepath.Join(h.bundles["a"], indexLink)))
	testx.Must(t, os.Symlink(other.bundles["s2"], filepath.Join(h.bundles["a"], indexLink)))
	if got, err := h.delete("s"); err != nil || got != "b pod s" {
		t.Errorf("delete removed %q, %v, want all but a", got, err)
	}
}

func TestRun_WhereABundleIsGone(t *testing.T) {
	for _, gone := range []string{"s", "a"} {
		h := newHousehold(t, "s", true, "a", "b")
		testx.Must(t, os.RemoveAll(h.bundles[gone]))
		want := map[string]string{"s": "b", "a": "a b pod s"}[gone]
		if got, err := h.delete("b"); err != nil || got != want {
			t.Errorf("delete without the bundle of %s removed %q, %v, want %q", gone, got, err, want)
		}
	}
}

// A group of containers has no sandbox that stays until all others are gone.
func TestIndex_MovesWhenItsBundleGoes(t *testing.T) {
	h := &household{t: t, bundles: map[string]string{}, failing: map[string]error{}}
	var s Index
	h.bundles["a"] = testx.NewBundle(t, goodSpec())
	s.SetShim(h.bundles["a"], "/the/socket", nil)
	for _, id := range []string{"a", "b", "c", "d"} {
		h.create(&s, id)
	}
	leave := func(id string) {
		t.Helper()
		testx.Must(t, RemoveState(h.bundles[id]))
		testx.Must(t, s.Remove(id, h.bundles[id]))
		if got, want := testx.Files(t, h.bundles[id]), "config.json"+" "+"rootfs"; got != want {
			t.Errorf("files in the bundle of %s = %q, want %q", id, got, want)
		}
		testx.Must(t, os.RemoveAll(h.bundles[id])) // as containerd does
	}
	leave("a")
	if got, err := h.delete("d"); err != nil || got != "b c d" {
		t.Errorf("delete removed %q, %v, want b c d", got, err)
	}
	leave("b")
	leave("c")
	h.create(&s, "e")
	if got, err := h.delete("e"); err != nil || got != "d e" {
		t.Errorf("delete removed %q, %v, want d e", got, err)
	}
	leave("d")
	leave("e")
	h.create(&s, "f") // the first of a shim that was about to end
	if got, err := h.delete("f"); err != nil || got != "f" {
		t.Errorf("delete removed %q, %v, want f", got, err)
	}
	leave("f")
}

func TestIndex_OfAShimWhoseBundleIsGone(t *testing.T) {
	h := newHousehold(t, "s", false)
	var s Index
	s.SetShim(filepath.Join(t.TempDir(), "gone"), "/the/socket", nil)
	h.create(&s, "a") // becomes home
	h.create(&s, "b")
	if got, err := h.delete("b"); err != nil || got != "a b" {
		t.Errorf("delete removed %q, %v, want a b", got, err)
	}
}

// containerd gave the sandbox up and removed its bundle; what is in the one that is home now is no sandbox's.
func TestIndex_OfASandboxWhoseBundleIsGone(t *testing.T) {
	h := &household{t: t, bundles: map[string]string{"s": testx.NewBundle(t, nil)}, failing: map[string]error{}}
	var s Index
	s.SetShim(h.bundles["s"], "/the/socket", nil)
	testx.Must(t, s.SetPod("s", h.bundles["s"], true))
	h.create(&s, "a")
	testx.Must(t, os.RemoveAll(h.bundles["s"]))
	h.create(&s, "b")
	h.lives = true
	if got, err := h.delete("b"); err != nil || got != "b" {
		t.Errorf("delete of b while the shim lives removed %q, %v, want b", got, err)
	}
	h.lives = false
	if got, err := h.delete("a"); err != nil || got != "a b" {
		t.Errorf("delete removed %q, %v, want a b", got, err)
	}
}

// containerd may be told of its state directory by a link, /var/run say, and names bundles by it. The shim finds its
// own as its working directory, which has no links.
func TestRun_BundlesBehindALink(t *testing.T) {
	for _, pod := range []bool{false, true} {
		t.Run(fmt.Sprintf("pod=%t", pod), func(t *testing.T) {
			link := filepath.Join(t.TempDir(), "run")
			testx.Must(t, os.Symlink("/", link))
			plain := testx.NewBundle(t, goodSpec())
			h := &household{t: t, failing: map[string]error{}, bundles: map[string]string{
				"s": link + plain, "a": link + testx.NewBundle(t, goodSpec()),
			}}
			var s Index
			s.SetShim(plain, "/the/socket", nil)
			want := "a s"
			if pod {
				testx.Must(t, s.SetPod("s", h.bundles["s"], true))
				want = "a pod s"
			} else {
				h.create(&s, "s")
			}
			h.create(&s, "a")
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if got, err := h.deleteWithin(ctx, "s"); err != nil || got != want {
				t.Errorf("delete removed %q (%v), want %q", got, err, want)
			}
		})
	}
}

// The shim was started for a container that never came to be listed, since its Create was refused, say.
func TestRun_WithoutAContainerInTheIndexBundle(t *testing.T) {
	h := &household{t: t, failing: map[string]error{}, bundles: map[string]string{"a": testx.NewBundle(t, goodSpec())}}
	var s Index
	s.SetShim(testx.NewBundle(t, nil), "/the/socket", nil)
	h.create(&s, "a")
	if got, err := h.delete("a"); err != nil || got != "a" {
		t.Errorf("delete removed %q, %v, want a and nothing else", got, err)
	}
	if slices.Contains(h.asked, "") {
		t.Error("a container without an id was to be removed, whose state directory is that of all")
	}
}

func TestRun_WhereTheIndexBundlesContainerWasNotTheFirst(t *testing.T) {
	h := &household{t: t, failing: map[string]error{}, bundles: map[string]string{"s": testx.NewBundle(t, goodSpec())}}
	var s Index
	s.SetShim(h.bundles["s"], "/the/socket", nil)
	h.create(&s, "a")
	h.create(&s, "s")
	if got, err := h.delete("a"); err != nil || got != "a s" {
		t.Errorf("delete removed %q, %v, want a s", got, err)
	}
}

// containerd removes the bundle of the pod when its delete command succeeds, while that of a container still runs. What
// is made there in that moment keeps the bundle.
func TestRun_MakesNoFileInABundle(t *testing.T) {
	for _, of := range []string{"s", "a"} {
		h := newHousehold(t, "s", true, "a", "b")
		h.failing["b"] = errors.New("it does not die")
		watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		testx.Must(t, err)
		for _, bundle := range h.bundles {
			_, err := unix.InotifyAddWatch(watch, bundle, unix.IN_CREATE|unix.IN_MOVED_TO)
			testx.Must(t, err)
		}
		for range 2 {
			if got, err := h.delete(of); !strings.Contains(got, of) {
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

func TestRun_WithABrokenIndex(t *testing.T) {
	h := newHousehold(t, "s", true, "a", "b")
	testx.Must(t, os.WriteFile(filepath.Join(h.bundles["s"], indexFile), []byte("{half"), 0o600))
	if got, err := h.delete("a"); err != nil || got != "a" {
		t.Errorf("delete removed %q, %v, want the one that was asked for", got, err)
	}
}

// What cannot be read now may be read later, and says who else has to go.
func TestRun_LeavesAllWhereTheIndexCannotBeReadNow(t *testing.T) {
	h := newHousehold(t, "s", true, "a", "b")
	list := filepath.Join(h.bundles["s"], indexFile)
	testx.Must(t, os.Rename(list, list+".away"))
	testx.Must(t, os.Mkdir(list, 0o700))
	for _, id := range []string{"a", "s"} {
		got, err := h.delete(id)
		if got != "" {
			t.Errorf("delete of %s removed %q, want nothing", id, got)
		}
		testx.WantText(t, err, "read the list of the pod's containers", indexFile)
	}
	testx.Must(t, os.Remove(list))
	testx.Must(t, os.Rename(list+".away", list))
	if got, err := h.delete("a"); err != nil || got != "a b pod s" {
		t.Errorf("delete afterwards removed %q, %v, want all", got, err)
	}
}

// What could not be undone of a create is listed until the shim ends, and containerd removes its bundle at once.
func TestIndex_MovesToABundleThatIsThere(t *testing.T) {
	h := &household{t: t, bundles: map[string]string{}, failing: map[string]error{}}
	var s Index
	h.bundles["s"] = testx.NewBundle(t, goodSpec())
	s.SetShim(h.bundles["s"], "/the/socket", nil)
	for _, id := range []string{"s", "a", "b", "c"} {
		h.create(&s, id)
	}
	testx.Must(t, os.RemoveAll(h.bundles["a"]))
	testx.Must(t, s.Remove("s", h.bundles["s"]))
	testx.Must(t, os.RemoveAll(h.bundles["s"]))
	if got, err := h.delete("c"); err != nil || got != "a b c" {
		t.Errorf("delete removed %q, %v, want a b c", got, err)
	}
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
			h := &household{t: t, bundles: map[string]string{}, failing: map[string]error{}}
			var s Index
			h.bundles["s"] = testx.NewBundle(t, goodSpec())
			s.SetShim(h.bundles["s"], "/the/socket", nil)
			for _, id := range []string{"s", "a", "b"} {
				h.create(&s, id)
			}
			list := filepath.Join(h.bundles[tc.blocked], indexFile)
			testx.Must(t, os.RemoveAll(list))
			testx.Must(t, os.MkdirAll(filepath.Join(list, "in the way"), 0o700))
			if err := s.Remove(tc.removed, h.bundles[tc.removed]); err == nil {
				t.Fatal("Remove succeeds where the list cannot be written")
			}
			testx.Must(t, os.RemoveAll(list))
			testx.Must(t, s.Remove(tc.removed, h.bundles[tc.removed]))
			testx.Must(t, os.RemoveAll(h.bundles[tc.removed]))
			if got, err := h.delete("a"); err != nil || got != tc.want {
				t.Errorf("delete removed %q, %v, want %s", got, err, tc.want)
			}
		})
	}
}

// Such as a pause container whose PID namespace is the pod's: with it the kernel kills them, in the middle of their
// grace.
func TestRun_EndsFirstWhatIsInThePIDNamespaceOfAnother(t *testing.T) {
	for _, of := range []string{"s", "a"} {
		h := &household{t: t, bundles: map[string]string{}}
		var s Index
		spec := goodSpec()
		spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.PIDNamespace, Path: "/proc/4321/ns/pid"}}
		h.bundles["s"], h.bundles["a"], h.bundles["b"] = testx.NewBundle(t, goodSpec()), testx.NewBundle(t, spec), testx.NewBundle(t, goodSpec())
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
	h.bundles["s"], h.bundles["a"] = testx.NewBundle(t, goodSpec()), testx.NewBundle(t, spec)
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
	testx.WantText(t, err, `"a"`)
	if !inTime.Load() {
		t.Error("the other one was removed when the time was over")
	}
}
