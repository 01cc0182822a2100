// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset_test

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/cpuset"
	"sandbox.internal/shim/pkg/internal/testx"
)

const (
	soon = 10 * time.Millisecond // a change that is told was followed by then
	late = 3 * time.Second       // a change that is not told was followed by then
)

// bubble runs a test with a Reconciler in the time of a bubble, which fails if a goroutine is left.
func bubble(t *testing.T, run func(w tree, g *gate, r *cpuset.Reconciler)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, g := plant(t), newGate()
		r := cpuset.New(w.root, g.open)
		run(w, g, r)
		r.Stop()
		synctest.Wait()
	})
}

func add(tb testing.TB, r *cpuset.Reconciler, c cpuset.Request) {
	tb.Helper()
	testx.Must(tb, r.Add(tb.Context(), c))
}

func state(tb testing.TB, r *cpuset.Reconciler, id string) cpuset.State {
	tb.Helper()
	s, ok := r.State(id)
	if !ok {
		tb.Fatalf("State(%q) knows nothing", id)
	}
	return s
}

func TestAdd_HasWrittenWhenItReturns(t *testing.T) {
	bubble(t, func(w tree, _ *gate, r *cpuset.Reconciler) {
		add(w, r, w.follow("/shared"))
		w.wantCPUs("after Add", "pod/c1", "0-1")
		got := state(w, r, "c1")
		want := cpuset.State{Source: w.path("shared"), CPUs: set(w, "0-1"), Writes: 1}
		if got != want {
			w.Errorf("State = %+v, want %+v", got, want)
		}
		if got := w.read("pod/c1", "cpuset.mems"); got != "" {
			w.Errorf("cpuset.mems = %q, want nothing written", got)
		}
	})
}

func TestAdd_FollowsMemoryNodes(t *testing.T) {
	bubble(t, func(w tree, g *gate, r *cpuset.Reconciler) {
		c := w.follow("shared")
		c.Mems = true
		add(w, r, c)
		for _, mems := range []string{"0-1", "1"} {
			w.write("shared", "cpuset.mems.effective", mems)
			g.tell()
			time.Sleep(soon)
			if got := w.read("pod/c1", "cpuset.mems"); got != mems {
				w.Errorf("cpuset.mems = %q, want %q", got, mems)
			}
		}
		if !g.watches(w.root, "shared/cpuset.mems") || !g.watches(w.root, "pod/c1/cpuset.mems") {
			w.Error("the files of memory nodes are not watched")
		}
	})
}

// The kernel gives a container what its parent has. A list would keep CPUs from being taken from the parent before Linux
// 5.17, and a kernel's default is 128 inotify instances for all of root, where a node has 110 pods.
func TestAdd_OfTheParentWritesNothingAndTakesNoScarceInstance(t *testing.T) {
	bubble(t, func(w tree, g *gate, r *cpuset.Reconciler) {
		for _, source := range []string{cpuset.Parent, "/pod"} {
			add(w, r, w.follow(source))
			w.wantCPUs("with source "+source, "pod/c1", "")
			if _, ok := r.State("c1"); ok || g.closed != nil {
				w.Errorf("with source %s the container follows: %t, something is watched: %t", source, ok, g.closed != nil)
			}
		}
	})
}

func TestAdd_Refuses(t *testing.T) {
	bubble(t, func(w tree, _ *gate, r *cpuset.Reconciler) {
		w.mkdir("nothing", "", "")
		w.mkdir("offline", "9", "0-7")
		w.mkdir("elsewhere", "8-9", "8-9")
		w.mkdir("garbage", "", "many")
		w.mkdir("bare", "", "")
		for _, file := range []string{"cpuset.cpus", "cpuset.cpus.effective"} {
			testx.Must(w, os.Remove(w.path("bare/"+file)))
		}
		invalid, precondition := errdefs.ErrInvalidArgument, errdefs.ErrFailedPrecondition
		for _, c := range []struct {
			source string
			class  error
			text   string
		}{
			{"missing/one", errdefs.ErrNotFound, w.path("missing/one")},
			{"", invalid, "must be parent or a path below"},
			{"/", invalid, "must be parent or a path below"},
			{"../" + w.root, invalid, "must be parent or a path below"},
			{"shared/..", invalid, "must be parent or a path below"},
			{"shared/cpuset.cpus", invalid, "must be a directory"},
			{"a\x00b", invalid, "must be a directory"},
			{strings.Repeat("a", 300), invalid, "must be a directory"},
			{"pod/c1", invalid, "the container's own cgroup"},
			{"/pod//c1/nested", invalid, "the container's own cgroup"},
			{"nothing", precondition, `has nothing of the source's ""`},
			{"offline", precondition, "none of these can be used now"},
			{"elsewhere", precondition, `has nothing of the source's "8-9"`},
			{"garbage", invalid, `"many"`},
			{"bare", precondition, "no cpuset controller"},
		} {
			err := r.Add(w.Context(), w.follow(c.source))
			if !errors.Is(err, c.class) || !strings.Contains(err.Error(), c.text) {
				w.Errorf("Add with source %q = %v, want %v that says %q", c.source, err, c.class, c.text)
			}
			if _, ok := r.State("c1"); ok {
				w.Errorf("Add with source %q failed and the container follows", c.source)
			}
		}
		w.wantCPUs("after refusals", "pod/c1", "")
		for _, dir := range []string{"/", w.root, "pod/c1"} {
			c := cpuset.Request{ID: "c1", Source: "shared", Dir: dir}
			if err := r.Add(w.Context(), c); !errors.Is(err, errdefs.ErrInvalidArgument) {
				w.Errorf("Add with cgroup %q = %v, want %v", dir, err, errdefs.ErrInvalidArgument)
			}
		}
		c := cpuset.Request{ID: "c1", Source: "shared", Dir: w.path("pod/c9")}
		if err := r.Add(w.Context(), c); !errors.Is(err, errdefs.ErrNotFound) {
			w.Errorf("Add with a cgroup that does not exist = %v, want %v", err, errdefs.ErrNotFound)
		}
		w.mkdir("pod/c9", "", "0-7")
		testx.Must(w, os.Remove(w.path("pod/c9/cpuset.cpus")))
		if err := r.Add(w.Context(), c); !errors.Is(err, errdefs.ErrNotFound) {
			w.Errorf("Add with a cgroup that goes = %v, want %v", err, errdefs.ErrNotFound)
		}
		if _, err := os.Stat(w.path("pod/c9/cpuset.cpus")); err == nil {
			w.Error("a control file was made")
		}
		add(w, r, w.follow("shared"))
		if err := r.Add(w.Context(), w.follow("shared")); !errors.Is(err, errdefs.ErrAlreadyExists) {
			w.Errorf("Add again = %v, want %v", err, errdefs.ErrAlreadyExists)
		}
		r.Stop()
		if err := r.Add(w.Context(), w.follow("shared")); !errors.Is(err, errdefs.ErrFailedPrecondition) {
			w.Errorf("Add after Stop = %v, want %v", err, errdefs.ErrFailedPrecondition)
		}
	})
}

func TestReconcile_FollowsANotifiedChangeAtOnce(t *testing.T) {
	bubble(t, func(w tree, g *gate, r *cpuset.Reconciler) {
		add(w, r, w.follow("shared"))
		for _, path := range []string{
			"shared/cpuset.cpus", "pod/cpuset.cpus", "pod/c1/cpuset.cpus", ".",
		} {
			if !g.watches(w.root, path) {
				w.Errorf("%s is not watched", path)
			}
		}
		w.assign("shared", "2,4")
		g.tell()
		time.Sleep(soon)
		w.wantCPUs("after a change", "pod/c1", "2,4")
		w.assign("shared", "0-7")
		w.assign("pod", "0-5")
		g.tell()
		time.Sleep(soon)
		w.wantCPUs("after a change of the pod", "pod/c1", "0-5")
		if got := state(w, r, "c1"); got.Writes != 3 || got.CPUs != set(w, "0-5") || got.Err != nil {
			w.Errorf("State = %+v, want 3 writes and 0-5", got)
		}
	})
}

func TestReconcile_FollowsOtherChangesLate(t *testing.T) {
	bubble(t, func(w tree, g *gate, r *cpuset.Reconciler) {
		add(w, r, w.follow("shared"))
		for range 20 {
			for _, list := range []string{"1", "0-1"} { // CPU 0 is unplugged and comes back
				w.write("shared", "cpuset.cpus.effective", list)
				time.Sleep(late + soon)
				w.wantCPUs("after a silent change", "pod/c1", list)
			}
		}
		if n, most := g.wakeups(), int(40*(late+soon)/time.Second); n < 40 || n > most {
			w.Errorf("%d wake-ups in 40 × %v, want 40 to %d", n, late, most)
		}
	})
}

func TestReconcile_CorrectsDrift(t *testing.T) {
	bubble(t, func(w tree, g *gate, r *cpuset.Reconciler) {
		add(w, r, w.follow("shared"))
		for _, list := range []string{"0-7", "", "5"} {
			w.write("pod/c1", "cpuset.cpus", list)
			g.tell()
			time.Sleep(soon)
			w.wantCPUs("after "+strconv.Quote(list), "pod/c1", "0-1")
		}
	})
}

func TestReconcile_LimitsTheWritesOfABurst(t *testing.T) {
	bubble(t, func(w tree, g *gate, r *cpuset.Reconciler) {
		add(w, r, w.follow("shared"))
		begin := time.Now()
		for i := range 1000 {
			w.write("shared", "cpuset.cpus.effective", strconv.Itoa(i%2))
			g.tell()
			time.Sleep(100 * time.Microsecond)
		}
		took := time.Since(begin)
		time.Sleep(soon)
		w.wantCPUs("after a burst", "pod/c1", "1")
		if got, most := state(w, r, "c1").Writes, int(took/(5*time.Millisecond))+3; got > most {
			w.Errorf("%d writes for 1000 changes in %v, want at most %d", got, took, most)
		}
	})
}

func TestReconcile_KeepsAndLogsOnceWhatItCannotFollow(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(w tree)
		fix   func(w tree)
	}{
		"an empty list": {func(w tree) { w.assign("shared", "") }, nil},
		"garbage":       {func(w tree) { w.assign("shared", "1-") }, nil},
		"CPUs that are offline": {func(w tree) {
			w.assign("shared", "6")
			w.write("shared", "cpuset.cpus.effective", "0-5")
		}, nil},
		"CPUs that the pod lacks": {func(w tree) { w.assign("shared", "8-9") }, nil},
		"no source":               {func(w tree) { w.remove("shared") }, func(w tree) { w.mkdir("shared", "2-3", "2-3") }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w tree, g *gate, r *cpuset.Reconciler) {
				l := listen(w)
				add(w, r, w.follow("shared"))
				c.spoil(w)
				if name != "no source" {
					w.write("pod", "cpuset.cpus", "0-7") // a change of no importance
				}
				for range 3 {
					g.tell()
					time.Sleep(late)
				}
				w.wantCPUs("spoilt", "pod/c1", "0-1")
				got := state(w, r, "c1")
				if got.Err == nil || got.Writes != 1 || got.CPUs != set(w, "0-1") {
					w.Errorf("spoilt: State = %+v, want an error, 0-1 and one write", got)
				}
				if got := l.at("warning"); len(got) != 1 {
					w.Errorf("spoilt: warnings %q, want one", got)
				}
				if c.fix != nil {
					c.fix(w)
				}
				if name != "no source" {
					w.assign("shared", "2-3")
				}
				g.tell()
				time.Sleep(late)
				w.wantCPUs("fixed", "pod/c1", "2-3")
				if got := state(w, r, "c1"); got.Err != nil || got.Writes != 2 {
					w.Errorf("fixed: State = %+v, want no error and two writes", got)
				}
				if got := l.at("info"); len(got) != 1 {
					w.Errorf("fixed: notes %q, want one", got)
				}
			})
		})
	}
}

func TestReconcile_WatchesWhereAMissingSourceWillBe(t *testing.T) {
	bubble(t, func(w tree, g *gate, r *cpuset.Reconciler) {
		w.mkdir("slice", "", "0-7")
		w.mkdir("slice/shared", "2", "2")
		add(w, r, w.follow("slice/shared"))
		if !g.watches(w.root, "slice") || g.watches(w.root, ".") {
			w.Error("not the directory of the source is watched, or another one too")
		}
		w.remove("slice")
		g.tell()
		time.Sleep(soon)
		if g.watches(w.root, "slice") || !g.watches(w.root, ".") {
			w.Error("not the directory above the one that is gone is watched")
		}
		w.mkdir("slice", "", "0-7")
		g.tell()
		time.Sleep(soon)
		if !g.watches(w.root, "slice") {
			w.Error("the directory is not watched that was made again")
		}
		w.wantCPUs("without source", "pod/c1", "2")
	})
}

// The cgroup of a container that has exited may go, and be made again for another container.
func TestReconcile_LeavesACgroupThatWasMadeAgain(t *testing.T) {
	bubble(t, func(w tree, g *gate, r *cpuset.Reconciler) {
		add(w, r, w.follow("shared"))
		w.mkdir("pod/c2", "7", "7")
		w.remove("pod/c1")
		testx.Must(w, os.Rename(w.path("pod/c2"), w.path("pod/c1")))
		w.assign("shared", "2")
		g.tell()
		time.Sleep(late)
		w.wantCPUs("made again", "pod/c1", "7")
	})
}
