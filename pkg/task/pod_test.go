// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"sandbox.internal/shim/pkg/internal/testx"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/process"
)

// gate is a pod that admits containers, or does not.
type gate struct {
	refusal error

	mu    sync.Mutex
	adapt func(*specs.Spec) error // nil: it does not
}

func (g *gate) set(adapt func(*specs.Spec) error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.adapt = adapt
}

func (g *gate) admit() (adapt func(*specs.Spec) error, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.adapt == nil {
		return nil, g.refusal
	}
	return g.adapt, nil
}

// podOf adds a pod to m that admits no containers yet.
func podOf(t *testing.T, m *Manager) *gate {
	t.Helper()
	g := &gate{refusal: fmt.Errorf("not now: %w", errdefs.ErrFailedPrecondition)}
	testx.Must(t, m.AddPod("s", testx.NewBundle(t, nil), g.admit))
	return g
}

func noAdaptation(*specs.Spec) error { return nil }

func TestAddPod_RefusesContainersUntilTheyAreAdmitted(t *testing.T) {
	m := newManager(t, newRuntime())
	pod := podOf(t, m)
	create := func() error {
		_, err := m.Create(t.Context(), CreateRequest{ID: "m", Bundle: testx.NewBundle(t, goodSpec())})
		return err
	}
	if err := create(); !errors.Is(err, pod.refusal) {
		t.Errorf("Create = %v, want %v", err, pod.refusal)
	}
	pod.set(func(spec *specs.Spec) error { spec.Hostname = "of the pod"; return nil })
	testx.Must(t, create())
	if got := m.Containers()[0].Init().Status().ID; got != "m" {
		t.Errorf("Containers = %q, want m", got)
	}
	pod.set(nil)
	_, err := m.Create(t.Context(), CreateRequest{ID: "m2", Bundle: testx.NewBundle(t, goodSpec())})
	if !errors.Is(err, pod.refusal) {
		t.Errorf("Create = %v, want %v", err, pod.refusal)
	}
}

// Who refuses containers and then stops all has stopped all there will ever be.
func TestAdmit_RefusesAgainstCreate(t *testing.T) {
	bundle := testx.NewBundle(t, goodSpec())
	for range 100 {
		m := newManager(t, newRuntime())
		pod := podOf(t, m)
		pod.set(noAdaptation)
		var both sync.WaitGroup
		both.Go(func() { _, _ = m.Create(t.Context(), CreateRequest{ID: "m", Bundle: bundle}) }) // either is well
		pod.set(nil)
		m.mu.Lock()
		reserved := len(m.containers)
		m.mu.Unlock()
		both.Wait()
		if got := len(m.Containers()); got > reserved {
			t.Fatalf("%d containers, %d of which were reserved before they were refused", got, reserved)
		}
		testx.Must(t, m.StopAll(t.Context()))
		for _, c := range m.Containers() {
			remove(t, m, c.ID())
		}
	}
}

// The delete command takes the answer as a proof that nothing is left. Otherwise it needs the list.
func TestShutdownPod_LeavesAnAnswerOfWhatHasGone(t *testing.T) {
	exit := &process.Exit{Status: 3, At: time.Unix(1700000000, 0)}
	for _, tt := range []struct {
		name string
		exit *process.Exit
		busy bool // the list of containers cannot be removed
		want string
	}{
		{"all is gone", exit, false, "/the/socket\x00pid 42, status 3"},
		{"something may be left", nil, false, ""},
		{"the list of containers is left", exit, true, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bundle := testx.NewBundle(t, goodSpec())
			m := newManager(t, newRuntime())
			m.KeepIndex("pod", bundle, "/the/socket", func(pid int, e process.Exit) ([]byte, error) {
				return fmt.Appendf(nil, "pid %d, status %d", pid, e.Status), nil
			})
			testx.Must(t, m.AddPod("pod", bundle, (&gate{}).admit))
			testx.Must(t, m.SetPodPid(42))
			list := filepath.Join(bundle, "shim.json")
			if tt.busy {
				testx.Must(t, os.Remove(list))
				testx.Must(t, os.MkdirAll(filepath.Join(list, "in the way"), 0o700))
			}
			if err := m.ShutdownPod(42, tt.exit); (err != nil) != tt.busy {
				t.Errorf("ShutdownPod = %v, want an error: %t", err, tt.busy)
			}
			if !testx.Closed(m.Done()) {
				t.Error("the shim goes on")
			}
			got, err := os.ReadFile(list)
			if tt.want == "" && !tt.busy {
				tt.want = `{"Root":"/run/containerd/runc/ns","Pid":42,"Pod":true,"Socket":"/the/socket"}`
			}
			if string(got) != tt.want {
				t.Errorf("%s = %q, %v, want %q", list, got, err, tt.want)
			}
		})
	}
}

// Between the two a container would come into the namespaces of the host, to which the main thread has returned.
func TestShutdownPod_AdmitsNoContainerBeforeTheShimEnds(t *testing.T) {
	for range 20 {
		m := newManager(t, newRuntime())
		pod := podOf(t, m)
		pod.set(noAdaptation)
		pod.set(nil)
		done := make(chan error, 1)
		go func() { done <- m.ShutdownPod(0, &process.Exit{}) }() // takes files away first
		for err := error(nil); !errdefs.IsUnavailable(err); {
			if _, err = m.reserve("m", func() {}); err == nil {
				t.Fatal("a container was admitted between the end of the pod and that of the shim")
			}
		}
		testx.Must(t, <-done)
		if !testx.Closed(m.Done()) {
			t.Error("the shim does not end")
		}
	}
}
