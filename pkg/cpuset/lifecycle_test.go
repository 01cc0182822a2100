// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/cpuset"
)

func TestRemoveAndStop_NothingIsWrittenAfterThem(t *testing.T) {
	for name, end := range map[string]func(r *cpuset.Reconciler){
		"Remove": func(r *cpuset.Reconciler) { r.Remove("c1"); r.Remove("c1"); r.Remove("unknown") },
		"Stop":   func(r *cpuset.Reconciler) { r.Stop(); r.Stop(); r.Remove("c1") },
		"Pin":    func(r *cpuset.Reconciler) { r.Pin("c1", true); r.Pin("c1", true); r.Pin("unknown", true) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, g := plant(t), newGate()
				r := cpuset.New(w.root, g.open)
				add(t, r, w.follow("shared"))
				w.assign("shared", "5")
				g.tell()
				end(r)
				before := w.read("pod/c1", "cpuset.cpus")
				w.assign("shared", "6")
				g.tell()
				time.Sleep(10 * late)
				w.wantCPUs("after "+name, "pod/c1", before)
				select {
				case <-g.closed: // no goroutine is left either, or the bubble would not end
				default:
					t.Errorf("%s of the last container leaves the notifier open", name)
				}
			})
		})
	}
}

// A container that is removed does not end what the others need, and the next one after the last starts it again.
func TestReconciler_HasOneGoroutineWhileContainersFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := plant(t)
		w.mkdir("pod/c2", "", "0-7")
		var gates []*gate
		r := cpuset.New(w.root, func() cpuset.Notifier {
			gates = append(gates, newGate())
			return gates[len(gates)-1].open()
		})
		second := cpuset.Request{ID: "c2", Source: "shared", Dir: w.path("pod/c2")}
		for round := range 3 {
			add(t, r, w.follow("shared"))
			add(t, r, second)
			if len(gates) != round+1 {
				t.Fatalf("%d notifiers in round %d, want %d", len(gates), round, round+1)
			}
			r.Remove("c1")
			w.assign("shared", []string{"2", "3", "4"}[round])
			gates[round].tell()
			time.Sleep(soon)
			w.wantCPUs("after the other was removed", "pod/c2", []string{"2", "3", "4"}[round])
			r.Remove("c2")
		}
		if _, ok := r.State("c2"); ok {
			t.Error("State knows a container that was removed")
		}
	})
}

func TestPin_TheContainerIsLeftAlone(t *testing.T) {
	bubble(t, func(w tree, g *gate, r *cpuset.Reconciler) {
		w.mkdir("pod/c2", "", "0-7")
		add(w, r, w.follow("shared"))
		add(w, r, cpuset.Request{ID: "c2", Source: "shared", Dir: w.path("pod/c2")})
		r.Pin("c1", true)
		w.write("pod/c1", "cpuset.cpus", "7")
		w.assign("shared", "3")
		g.tell()
		time.Sleep(2 * late)
		w.wantCPUs("pinned", "pod/c1", "7")
		w.wantCPUs("not pinned", "pod/c2", "3")
		if got := state(w, r, "c1"); !got.Pinned || got.Err != nil {
			w.Errorf("State = %+v, want it pinned", got)
		}
		r.Pin("c1", false)
		w.wantCPUs("unpinned", "pod/c1", "3")
		if got := state(w, r, "c1"); got.Pinned || got.CPUs != set(w, "3") {
			w.Errorf("State = %+v, want 3 and not pinned", got)
		}
	})
}

// The container's cgroup goes before Remove is called: there is nothing to say about it.
func TestReconcile_ContainerThatGoesIsNotLoggedAsAnError(t *testing.T) {
	bubble(t, func(w tree, g *gate, r *cpuset.Reconciler) {
		l := listen(w)
		add(w, r, w.follow("shared"))
		w.remove("pod/c1")
		w.assign("shared", "3")
		g.tell()
		time.Sleep(2 * late)
		if got := l.at("warning"); len(got) > 0 {
			w.Errorf("warnings %q, want none", got)
		}
		if _, err := os.Stat(w.path("pod/c1")); err == nil {
			w.Error("the cgroup was made again")
		}
	})
}

// unit is an Apply that remembers, and fails or hangs as told.
type unit struct {
	mu   sync.Mutex
	got  []string
	fail error
	hang bool
}

func (u *unit) apply(ctx context.Context, cpus, mems cpuset.Set) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.hang {
		<-ctx.Done()
		return ctx.Err()
	}
	if u.fail == nil {
		u.got = append(u.got, cpus.String()+"/"+mems.String())
	}
	return u.fail
}

func (u *unit) set(fail error, hang bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.fail, u.hang = fail, hang
}

func (u *unit) wantCalls(tb testing.TB, when, want string) {
	tb.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	if got := strings.Join(u.got, " "); got != want {
		tb.Errorf("%s: Apply was told %q, want %q", when, got, want)
	}
}

func TestApply_IsCalledOnceForEachAssignment(t *testing.T) {
	bubble(t, func(w tree, g *gate, r *cpuset.Reconciler) {
		l := listen(w)
		u := &unit{fail: errdefs.ErrUnavailable}
		c := w.follow("shared")
		c.Mems, c.Apply = true, u.apply
		if err := r.Add(w.Context(), c); !errors.Is(err, errdefs.ErrUnavailable) {
			w.Errorf("Add = %v, want that of Apply", err)
		}
		u.set(nil, false)
		add(w, r, c)
		w.write("pod/c1", "cpuset.cpus", "7")
		g.tell()
		time.Sleep(2 * late)
		u.wantCalls(w, "after drift", "0-1/0-1")
		u.set(errdefs.ErrUnavailable, false)
		w.assign("shared", "2")
		g.tell()
		time.Sleep(4 * late)
		if got := state(w, r, "c1"); !errors.Is(got.Err, errdefs.ErrUnavailable) || got.CPUs != set(w, "2") {
			w.Errorf("State = %+v, want 2 and that Apply fails", got)
		}
		if got := l.at("warning"); len(got) != 1 {
			w.Errorf("warnings %q, want one", got)
		}
		u.set(nil, false)
		time.Sleep(late + soon)
		u.wantCalls(w, "when it works again", "0-1/0-1 2/0-1")
		r.Pin("c1", true)
		r.Pin("c1", false)
		u.wantCalls(w, "after a pin", "0-1/0-1 2/0-1 2/0-1")
	})
}

// Apply waits for another program. The files are written before, also those of other containers, and nobody waits long.
func TestApply_ThatHangsIsBounded(t *testing.T) {
	bubble(t, func(w tree, g *gate, r *cpuset.Reconciler) {
		w.mkdir("pod/c2", "", "0-7")
		u := &unit{}
		c := w.follow("shared")
		c.Apply = u.apply
		add(w, r, c)
		add(w, r, cpuset.Request{ID: "c2", Source: "shared", Dir: w.path("pod/c2")})
		u.set(nil, true)
		w.assign("shared", "2")
		g.tell()
		time.Sleep(soon)
		w.wantCPUs("while Apply hangs", "pod/c1", "2")
		w.wantCPUs("while Apply hangs", "pod/c2", "2")
		if got := state(w, r, "c2"); got.CPUs != set(w, "0-1") {
			w.Errorf("State = %+v, want the one before", got)
		}
		begin := time.Now()
		r.Remove("c2")
		if took := time.Since(begin); took > 2*time.Second {
			w.Errorf("Remove took %v, want at most 2 s", took)
		}
	})
}

func TestReconcile_WithoutNotificationFollowsLateAndSaysSoOnce(t *testing.T) {
	bubble(t, func(w tree, g *gate, r *cpuset.Reconciler) {
		l := listen(w)
		g.fail = errdefs.ErrResourceExhausted
		add(w, r, w.follow("shared"))
		w.assign("shared", "4")
		time.Sleep(3 * late)
		w.wantCPUs("without notification", "pod/c1", "4")
		if got := l.at("warning"); len(got) != 1 {
			w.Errorf("warnings %q, want one", got)
		}
	})
}

// The order is forced: Add has the turn, Stop waits for it, and the goroutine, told of a change, waits after Stop.
func TestStop_LaterReconciliationDoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g := plant(t), newGate()
		opened := 0
		r := cpuset.New(w.root, func() cpuset.Notifier { opened++; return g.open() })
		add(t, r, w.follow("shared"))
		w.mkdir("pod/c2", "", "0-7")
		u := &unit{hang: true}
		adding, stopping := make(chan error), make(chan struct{})
		go func() { // joined by adding
			adding <- r.Add(t.Context(), cpuset.Request{ID: "c2", Source: "shared", Dir: w.path("pod/c2"), Apply: u.apply})
		}()
		synctest.Wait()
		go func() { // joined by stopping
			defer close(stopping)
			r.Stop()
		}()
		synctest.Wait()
		w.assign("shared", "5")
		g.tell()
		synctest.Wait()
		if err := <-adding; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Add with an Apply that hangs = %v, want %v", err, context.DeadlineExceeded)
		}
		<-stopping
		w.wantCPUs("after Stop", "pod/c1", "0-1")
		if opened != 1 {
			t.Errorf("%d notifiers were opened, want one", opened)
		}
	})
}

// Whoever keeps the CPUs too, as systemd does, would put the former ones back.
func TestApply_HasTheCPUsThatFollowWhileMemoryNodesCannot(t *testing.T) {
	bubble(t, func(w tree, g *gate, r *cpuset.Reconciler) {
		unit := ""
		c := w.follow("shared")
		c.Mems, c.Apply = true, func(_ context.Context, cpus, _ cpuset.Set) error { unit = cpus.String(); return nil }
		add(w, r, c)
		w.write("shared", "cpuset.mems", "1") // which is offline
		w.write("shared", "cpuset.mems.effective", "0")
		w.assign("shared", "5")
		g.tell()
		time.Sleep(time.Minute)
		if got := w.read("pod/c1", "cpuset.cpus"); got != "5" || unit != got {
			t.Errorf("cpuset.cpus = %q, and Apply has %q, want 5 (%v)", got, unit, state(w, r, "c1").Err)
		}
	})
}
