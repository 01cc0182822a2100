// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"fmt"
	"maps"
	"time"

	"github.com/containerd/containerd/api/events"
)

// exits checks P6: Wait returns after the exit was told. That is when the shim put the exit into its queue, which is
// the time that the event has. The event itself may come later than the answer of Wait.
type exits struct {
	told   map[ended]exited // exits by their events
	waited map[ended]exited // what Wait returned, of exits that have not come yet
	begun  map[ended]bool   // whose exits must be told: those that have begun since containerd was away
}

// exited is when a process ended, and how.
type exited struct {
	at     time.Time
	status uint32
}

// ended is a process whose end was told or waited for.
type ended struct {
	key  string // of the container: namespace and id
	exec string // empty for init
	pid  int
}

func newExits() exits {
	return exits{told: map[ended]exited{}, waited: map[ended]exited{}, begun: map[ended]bool{}}
}

// tell takes an exit that was put into the queue at a time.
func (x *exits) tell(key, id string, e *events.TaskExit, at time.Time) []Violation {
	p := ended{key: key, exec: e.GetID(), pid: int(e.GetPid())}
	if p.exec == id {
		p.exec = ""
	}
	told := exited{at, e.GetExitStatus()}
	x.told[p] = told
	waited, ok := x.waited[p]
	delete(x.waited, p)
	if !ok {
		return nil
	}
	return p.early(told, waited)
}

// wait takes a Wait that has returned at a time.
func (x *exits) wait(p ended, waited exited) []Violation {
	if told, ok := x.told[p]; ok {
		return p.early(told, waited)
	}
	x.waited[p] = waited
	return nil
}

// early is what is wrong if Wait returned before the exit was told.
func (p ended) early(told, waited exited) []Violation {
	if told.status != waited.status {
		text := fmt.Sprintf("Wait for %q, pid %d, returned %d, and its exit was told with %d",
			p.exec, p.pid, waited.status, told.status)
		return []Violation{{Kind: LostExit, Text: text}}
	}
	if !told.at.After(waited.at) {
		return nil
	}
	return outOfOrder("Wait for %q, pid %d, returned %v before its exit was told", p.exec, p.pid, told.at.Sub(waited.at))
}

// drop forgets what has begun in a container, or in all for an empty key: its exits need not come.
func (x *exits) drop(key string) {
	of := func(p ended) bool { return key == "" || p.key == key }
	maps.DeleteFunc(x.waited, func(p ended, _ exited) bool { return of(p) })
	maps.DeleteFunc(x.begun, func(p ended, _ bool) bool { return of(p) })
}

// forget drops all but what runs in containers that live.
func (x *exits) forget(living func(key string) bool) {
	begun := x.begun
	maps.DeleteFunc(begun, func(p ended, _ bool) bool {
		_, told := x.told[p]
		return told || !living(p.key)
	})
	*x = newExits()
	x.begun = begun
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

// began says that a process has just been created or started.
func (o *order) began(namespace, id, exec string, pid int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.exits.begun[ended{namespace + "/" + id, exec, pid}] = true
}

// waited says that Wait has just returned for a process. With pid 0 nobody knows which one that was. The exit of one
// that had begun before containerd was away may have been told while nobody listened.
func (o *order) waited(namespace, id, exec string, pid int, status uint32) {
	at := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	key := namespace + "/" + id
	t := o.containers[key]
	p := ended{key, exec, pid}
	if _, told := o.exits.told[p]; !told && !o.exits.begun[p] || t != nil && (t.excused || t.gap) {
		return
	}
	o.blame(key, o.exits.wait(p, exited{at, status}))
}

// blame keeps what is wrong with a container.
func (o *order) blame(key string, list []Violation) {
	for _, v := range list {
		v.Text = fmt.Sprintf("%s: %s", key, v.Text)
		o.violations = append(o.violations, v)
	}
}

// frozen says that a Pause or a Resume of a container has returned. Its event comes before that of the exit.
func (o *order) frozen(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if t := o.containers[key]; t != nil {
		t.frozen++
	}
}

// unchanged is what is wrong if the container exits before all that it was paused and resumed was told.
func (t *track) unchanged() []Violation {
	if t.changes >= t.frozen || t.gap || t.away || t.excused {
		return nil
	}
	return outOfOrder("exit follows %d events of %d that were paused or resumed", t.changes, t.frozen)
}
