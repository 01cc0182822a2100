// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"sync"
	"testing"
	"time"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/stdio"
)

// slow is a process whose Status, which asks for the pid with the lock held, takes longer than the 1 ms after which
// sync.Mutex serves its waiters in order. So all of them come in between two critical sections.
type slow struct{ Handle }

func (slow) Pid() int {
	<-time.After(2 * time.Millisecond)
	return 1
}

func TestStatus_StoppedIsNeverShownWithoutItsExit(t *testing.T) {
	const lookers = 3
	queue := event.NewQueue(func(context.Context, event.Event, time.Time) error { return nil })
	defer func() { _ = queue.Close(t.Context()) }() // nothing refuses an event
	oom, err := cgroup.New(nil).WatchOOM(func() {})
	if err != nil {
		t.Fatal(err)
	}
	c := &Container{events: queue, oom: oom}
	c.init = newProcess(c, "", nil, stdio.Config{}, nil)
	p := newProcess(c, "e1", nil, stdio.Config{}, nil)
	p.handle = slow{}
	p.commit(OpStart)
	p.commit(OpRun)
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
	p.publishExit(Exit{Status: 7})
	looking.Wait()
	for _, exit := range shown {
		if exit.Status != 7 {
			t.Errorf("stopped is shown with status %d, want 7", exit.Status)
		}
	}
}
