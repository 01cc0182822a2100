// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/containerd/api/events"
)

// exits checks P6: Wait returns after the exit was told. That is when the shim put the exit into its queue, which is
// the time that the event has. The event itself may come later than the answer of Wait.
type exits struct {
	told   map[ended]time.Time // when exits were put into the queue
	waited map[ended]time.Time // when Wait returned, of exits that have not come yet
}

// ended is a process whose end was told or waited for.
type ended struct {
	key  string // of the container: namespace and id
	exec string // empty for init
	pid  int
}

func newExits() exits { return exits{told: map[ended]time.Time{}, waited: map[ended]time.Time{}} }

// tell takes an exit that was put into the queue at a time.
func (x *exits) tell(key, id string, e *events.TaskExit, at time.Time) []Violation {
	p := ended{key: key, exec: e.GetID(), pid: int(e.GetPid())}
	if p.exec == id {
		p.exec = ""
	}
	x.told[p] = at
	waited, ok := x.waited[p]
	delete(x.waited, p)
	if !ok {
		return nil
	}
	return p.early(at, waited)
}

// wait takes a Wait that has returned at a time.
func (x *exits) wait(p ended, at time.Time) []Violation {
	if told, ok := x.told[p]; ok {
		return p.early(told, at)
	}
	x.waited[p] = at
	return nil
}

// early is what is wrong if Wait returned before the exit was told.
func (p ended) early(told, waited time.Time) []Violation {
	if !told.After(waited) {
		return nil
	}
	return outOfOrder("Wait for %q, pid %d, returned %v before its exit was told", p.exec, p.pid, told.Sub(waited))
}

// drop forgets what was waited for in a container, or in all for an empty key: its exits need not come.
func (x *exits) drop(key string) {
	for p := range x.waited {
		if key == "" || p.key == key {
			delete(x.waited, p)
		}
	}
}

// missing lists the exits that were waited for and have not come.
func (x *exits) missing() []Violation {
	var list []Violation
	for p := range x.waited {
		list = append(list, Violation{Kind: LostExit, Text: fmt.Sprintf(
			"%s: Wait for %q, pid %d, returned, and its exit never came", p.key, p.exec, p.pid)})
	}
	return list
}

// waited says that Wait has just returned for a process. With pid 0 nobody knows which one that was.
func (o *order) waited(namespace, id, exec string, pid int) {
	at := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	key := namespace + "/" + id
	t := o.containers[key]
	if pid == 0 || t == nil || t.excused || t.gap {
		return
	}
	o.blame(key, o.exits.wait(ended{key, exec, pid}, at))
}

// blame keeps what is wrong with a container.
func (o *order) blame(key string, list []Violation) {
	for _, v := range list {
		v.Text = fmt.Sprintf("%s: %s", key, v.Text)
		o.violations = append(o.violations, v)
	}
}

// deliverLimit is how long a Delete may have taken for its answer to say that all events were delivered. P7 allows half
// a second for them.
const deliverLimit = 400 * time.Millisecond

// deletedTopic is of an event that the worker publishes itself when Delete has returned. containerd hands on events in
// the order in which it gets them, so those of the container must have come before (P7).
const deletedTopic = "/campaign/deleted"

// deleted has P7 checked of a container whose Delete has just returned.
func (e *Env) deleted(ctx context.Context, id string, took time.Duration) {
	if took > deliverLimit {
		return
	}
	gone := &events.NamespaceDelete{Name: e.name + "/" + id}
	_ = e.client.EventService().Publish(e.namespaced(ctx), deletedTopic, gone) // or containerd is away
}

// delivered checks that all of a container was told whose Delete has returned before.
func (o *order) delivered(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.containers[key]
	if t == nil || t.told == toldDelete || t.away || t.gap || t.excused || t.unknown {
		return
	}
	o.blame(key, outOfOrder("Delete returned after %v, and its delete was not delivered", t.told))
}
