// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd_test

import (
	"fmt"
	"testing"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"

	"sandbox.internal/shim/integration/fakecontainerd"
	"sandbox.internal/shim/integration/harness"
)

const sandboxAnnotation = "io.kubernetes.cri.sandbox-id"

// group starts a shim with a pause container "pod" and members. They have not been through `start`, which containerd 2
// does not call for them.
func group(f *fakecontainerd.Fake, members int) (*fakecontainerd.Shim, []*fakecontainerd.Bundle) {
	f.Helper()
	pod := f.Bundle("pod", annotate(sandboxAnnotation, "pod"), "sleep", "1000")
	s := f.Shim(pod)
	s.Run(pod)
	bundles := []*fakecontainerd.Bundle{pod}
	for i := range members {
		b := f.Bundle(fmt.Sprintf("app%d", i), annotate(sandboxAnnotation, "pod"), "sh", "-c", "sleep 1000 & wait")
		s.Run(b)
		bundles = append(bundles, b)
	}
	return s, bundles
}

// containerd up to 2.3 calls delete for the pause container alone, and leaves the others running (containerd#10727).
func TestDelete_OneCommandEndsAllThatAKilledShimHad(t *testing.T) {
	harness.OursOnly(t, "who cleans up knows all that a shim had")
	for _, asked := range []int{0, 2} {
		t.Run(fmt.Sprintf("of container %d", asked), func(t *testing.T) {
			f := newFake(t)
			s, bundles := group(f, 3)
			kill(f, s)
			r, err := f.DeleteCommand(bundles[asked])
			f.Must(err, "delete")
			if r.GetExitStatus() != 137 || r.GetPid() == 0 {
				t.Errorf("delete = %v, want pid and status 137", r)
			}
			wantAllEnded(f, bundles...)
		})
	}
}

// Since 2.4 containerd calls delete after every container that it has deleted, while the shim goes on.
func TestDelete_LeavesTheOthersToALivingShim(t *testing.T) {
	harness.OursOnly(t, "who cleans up knows all that a shim had")
	f := newFake(t)
	s, bundles := group(f, 3)
	kills := &task.KillRequest{ID: "app0", Signal: 9}
	_, err := s.Kill(f.Ctx, kills)
	f.Must(err, "kill")
	_, err = s.Wait(f.Ctx, &task.WaitRequest{ID: "app0"})
	f.Must(err, "wait")
	_, err = s.Delete(f.Ctx, &task.DeleteRequest{ID: "app0"})
	f.Must(err, "delete")
	r, err := f.DeleteCommand(bundles[1])
	f.Must(err, "delete command")
	if r.GetExitStatus() != 137 || r.GetPid() == 0 || r.GetExitedAt() == nil {
		t.Errorf("delete command = %v, want the pid and exit that Delete answered", r)
	}
	f.Remove(bundles[1])
	for _, b := range []*fakecontainerd.Bundle{bundles[0], bundles[2], bundles[3]} {
		state, err := s.State(f.Ctx, &task.StateRequest{ID: b.ID})
		f.Must(err, "state of "+b.ID)
		if !harness.Alive(int(state.GetPid())) {
			t.Errorf("init of %s does not live any more", b.ID)
		}
	}
	for _, b := range []*fakecontainerd.Bundle{bundles[2], bundles[3], bundles[0]} {
		s.KillAndDelete(b)
	}
	s.End()
}

func TestDelete_ThirtyContainersOfAKilledShimEndInTime(t *testing.T) {
	harness.OursOnly(t, "who cleans up knows all that a shim had")
	f := newFake(t)
	s, bundles := group(f, 30)
	kill(f, s)
	began := time.Now()
	_, err := f.DeleteCommand(bundles[0])
	f.Must(err, "delete")
	if took := time.Since(began); took > deleteLimit {
		t.Errorf("delete of a pod with 30 containers took %v, containerd allows %v", took, deleteLimit)
	} else {
		t.Logf("delete of a pod with 30 containers took %v", took)
	}
	f.Scope().Check(t)
	for _, b := range bundles {
		f.Remove(b)
	}
}

func TestDelete_CommandsOfAPodAtOnce(t *testing.T) {
	harness.OursOnly(t, "who cleans up knows all that a shim had")
	f := newFake(t)
	// As many programs start at once, and as many mount namespaces end, for which a busy machine takes its time. Each
	// delete has the bound of containerd.
	s, bundles := group(f, max(harness.Fewer(10), 5))
	kill(f, s)
	took := deleteAtOnce(f, bundles)
	if took > harness.Slow(deleteLimit) {
		t.Errorf("%d deletes at once took %v, containerd allows %v for each", len(bundles), took, deleteLimit)
	}
	t.Logf("%d deletes at once took %v", len(bundles), took)
}
