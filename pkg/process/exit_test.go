// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"sync"
	"testing"
	"time"
)

// slow is a process whose Status, which asks for the pid with the lock held, takes longer than the 1 ms after which
// sync.Mutex serves its waiters in order. So all of them come in between two critical sections.
type slow struct{ *fakeProcess }

func (s slow) Pid() int {
	<-time.After(2 * time.Millisecond)
	return s.fakeProcess.Pid()
}

func TestStatus_StoppedIsNeverShownWithoutItsExit(t *testing.T) {
	const lookers = 3
	w := newWorld(t, newFake())
	must(t, w.Init().Start(ctx))
	for name, tc := range map[string]struct {
		stop func(*Process)
		want int
	}{
		"an exit":            {func(p *Process) { p.publishExit(Exit{Status: 7}) }, 7},
		"a start that fails": {(*Process).failStart, unknownStatus},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProcess(w.Container, "e1", nil, w.Init().io, nil)
			p.handle = slow{w.fake.process()}
			var begun, looking sync.WaitGroup
			begun.Add(lookers)
			var shown [lookers]Exit // the first time that it is shown as stopped
			for i := range shown {
				looking.Go(func() { // ends when p is stopped
					s := p.Status()
					begun.Done()
					for s.State != Stopped {
						s = p.Status()
					}
					shown[i] = s.Exit
				})
			}
			begun.Wait()
			tc.stop(p)
			looking.Wait()
			for _, exit := range shown {
				if exit.Status != tc.want {
					t.Errorf("stopped is shown with status %d, want %d", exit.Status, tc.want)
				}
			}
		})
	}
	w.fake.init.die(0)
	_, err := w.Init().Wait(ctx)
	must(t, err)
}
