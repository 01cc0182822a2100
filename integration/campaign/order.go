// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/api/events"

	"sandbox.internal/shim/integration/eventlog"
	"sandbox.internal/shim/integration/harness"
)

// order checks the events of each container against P1 to P5, as they come, and P6 by the times of answers
// (told.go). Any number of goroutines may use it.
type order struct {
	mu         sync.Mutex
	containers map[string]*track // by namespace and id
	excused    map[string]bool   // namespaces in which shims are killed
	hungry     map[string]bool   // by namespace and id: those that die for lack of memory
	ignored    map[string]bool   // by namespace and id: those of pods that have no container of that id
	exits      exits
	violations []Violation
	seen       int
}

// track is what was told of a container since it was created.
type track struct {
	id      string
	told    stage
	oom     bool
	hungry  bool // it dies of hunger unless something else kills it
	execs   map[string]*execTrack
	gap     bool // events may be missing up to now, and the next may have been told before: containerd was away
	excused bool // its shim was killed: containerd says that it ended, and nobody says how its execs did
	away    bool // containerd was away at some time
	owed    bool // its Delete has succeeded while the worker was subscribed, so its delete must come
	unknown bool // its shim was killed while it was created: containerd need not say anything
	frozen  int  // how often a Pause or a Resume has succeeded
	changes int  // how many events said so
}

type execTrack struct {
	told stage
	gap  bool
}

// stage is the last event of a process. Its values are in the order that P1 and P2 have.
type stage int

const (
	untold stage = iota
	toldCreate
	toldStart
	toldExit
	toldDelete
)

var stageNames = [...]string{"nothing", "create", "start", "exit", "delete"}

func (s stage) String() string { return stageNames[s] }

func newOrder() *order {
	return &order{
		containers: map[string]*track{}, excused: map[string]bool{}, ignored: map[string]bool{},
		hungry: map[string]bool{}, exits: newExits(),
	}
}

// add checks an event of the namespace, which was told at a time.
func (o *order) add(namespace string, event any, at time.Time) {
	id := eventlog.Container(event)
	if id == "" {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen++
	key := namespace + "/" + id
	t := o.containers[key]
	if o.ignored[key] {
		return
	}
	if t == nil {
		t = &track{id: id}
		o.containers[key] = t
	}
	if _, isNew := event.(*events.TaskCreate); t.execs == nil || isNew && t.told == toldDelete {
		excused := o.excused[namespace]
		*t = track{id: id, execs: map[string]*execTrack{}, excused: excused, unknown: excused, hungry: o.hungry[key]}
	}
	o.blame(key, t.add(event))
	if exit, ok := event.(*events.TaskExit); ok && !t.excused {
		o.blame(key, o.exits.tell(key, id, exit, at))
	}
}

// add checks an event of the container.
func (t *track) add(event any) []Violation {
	switch e := event.(type) {
	case *events.TaskCreate:
		return t.move(toldCreate, untold)
	case *events.TaskStart:
		return t.move(toldStart, toldCreate)
	case *events.TaskExit:
		if e.GetID() != t.id && e.GetID() != "" {
			return t.exec(e.GetID(), toldExit)
		}
		missed := slices.Concat(t.unended(), t.unchanged(), t.missedOOM(e.GetExitStatus()))
		return append(missed, t.move(toldExit, toldCreate, toldStart)...)
	case *events.TaskDelete:
		if e.GetID() != "" && e.GetID() != t.id { // of an exec, which the runc shim tells
			return nil
		}
		return t.move(toldDelete, toldExit)
	case *events.TaskExecAdded:
		return t.exec(e.GetExecID(), toldCreate)
	case *events.TaskExecStarted:
		return t.exec(e.GetExecID(), toldStart)
	case *events.TaskOOM:
		t.oom = true
		return t.while("oom")
	case *events.TaskPaused:
		t.changes++
		return t.while("paused")
	case *events.TaskResumed:
		t.changes++
		return t.while("resumed")
	}
	return nil
}

// move takes the container to a stage, which may follow some others (P1).
func (t *track) move(to stage, from ...stage) []Violation {
	before := t.told
	t.told = to
	if t.gap || t.excused {
		t.gap = false
		return nil
	}
	if slices.Contains(from, before) {
		return nil
	}
	if to == toldDelete && before < toldExit {
		return []Violation{{Kind: LostExit, Text: fmt.Sprintf("delete follows %v", before)}}
	}
	return outOfOrder("%v follows %v", to, before)
}

// exec takes an exec to a stage (P2), none of which comes after the exit of init but the first (P3, P4).
func (t *track) exec(id string, to stage) []Violation {
	x := t.execs[id]
	if x == nil {
		x = &execTrack{gap: t.gap}
		t.execs[id] = x
	}
	before, gap := x.told, x.gap
	x.told, x.gap = to, false
	switch {
	case gap || t.excused:
		return nil
	case t.told >= toldExit && to > toldCreate:
		return outOfOrder("%v of exec %s comes after %v of init", to, id, t.told)
	case to == toldCreate && before != toldStart: // an exec that ended, or was never started, may be added again
		return nil
	case to > toldCreate && before == to-1:
		return nil
	}
	return outOfOrder("%v of exec %s follows %v", to, id, before)
}

// unended lists the execs whose exit should have been told when init's is (P3).
func (t *track) unended() []Violation {
	if t.gap || t.excused {
		return nil
	}
	var lost []Violation
	for id, x := range t.execs {
		if x.told == toldStart && !x.gap {
			lost = append(lost, Violation{Kind: LostExit, Text: "init's exit comes without that of exec " + id})
		}
	}
	return lost
}

// missedOOM is what is wrong if a container died for lack of memory and nobody said so before its exit (P5).
func (t *track) missedOOM(status uint32) []Violation {
	if status != killed || t.told != toldStart || !t.hungry || t.oom || t.away || t.excused {
		return nil
	}
	return outOfOrder("exit %d comes without an OOM event", status)
}

// while checks what is told of a container between start and exit (P5).
func (t *track) while(what string) []Violation {
	if t.told == toldStart || t.gap || t.excused {
		return nil
	}
	return outOfOrder("%s follows %v", what, t.told)
}

func outOfOrder(format string, args ...any) []Violation {
	return []Violation{{Kind: OutOfOrder, Text: fmt.Sprintf(format, args...)}}
}

// interrupted says that events may have been missed, or may be told again, since containerd was away. Containers with
// these ids may have been created meanwhile.
func (o *order) interrupted(namespace string, ids ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range ids {
		if t := o.containers[namespace+"/"+id]; t == nil || t.told == toldDelete {
			o.containers[namespace+"/"+id] = &track{id: id, execs: map[string]*execTrack{}}
		}
	}
	o.exits.drop("")
	for _, t := range o.containers {
		if t.told == toldDelete {
			continue
		}
		t.gap, t.away, t.owed = true, true, false
		for _, x := range t.execs {
			x.gap = true
		}
	}
}

// excuse says that the shim of a container is about to be killed. The container may be being created.
func (o *order) excuse(namespace, id string, creating bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.containers[namespace+"/"+id]
	if t == nil || t.told == toldDelete {
		t = &track{id: id, execs: map[string]*execTrack{}}
		o.containers[namespace+"/"+id] = t
	}
	t.excused, t.unknown = true, t.unknown || creating
	o.exits.drop(namespace + "/" + id)
}

// excuseAll says the same of all containers of a namespace, and of those that come before it is called with false.
func (o *order) excuseAll(namespace string, on bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.excused, namespace)
	if !on {
		return
	}
	o.excused[namespace] = true
	for key, t := range o.containers {
		if strings.HasPrefix(key, namespace+"/") {
			t.excused, t.unknown = true, true
		}
	}
}

// take returns the violations since the last call.
func (o *order) take() []Violation {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := o.violations
	o.violations = nil
	return list
}

// expectOOM says whether a container that is about to be created, or lives, dies for lack of memory.
func (o *order) expectOOM(namespace, id string, hungry bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := namespace + "/" + id
	if hungry {
		o.hungry[key] = true
		return
	}
	delete(o.hungry, key)
	if t := o.containers[key]; t != nil {
		t.hungry = false
	}
}

// ignore says that an id is that of a pod without a pause container. CRI tells its end as an exit.
func (o *order) ignore(namespace, id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ignored[namespace+"/"+id] = true
}

// lateLimit is how long events may come after containerd was away: the shim tries again each second.
const lateLimit = 2 * time.Second

// awaitDelete waits until the delete of a container is told, if containerd was away meanwhile. Its shim may still have
// to find out that containerd is back, and the next one would be ahead of it.
func (o *order) awaitDelete(namespace, id string) {
	_ = harness.PollFor(harness.Slow(lateLimit), func() error { // what does not come was told while nobody listened
		o.mu.Lock()
		defer o.mu.Unlock()
		if t := o.containers[namespace+"/"+id]; t != nil && t.away && t.told != toldDelete {
			return errors.New("its delete is not told")
		}
		return nil
	})
}

// takeSeen returns how many events came since the last call.
func (o *order) takeSeen() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.seen
	o.seen = 0
	return n
}

// unfinished lists the containers of which containerd has told no delete, but those that still live.
func (o *order) unfinished(living func(key string) bool) []Violation {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := o.exits.missing()
	for key, t := range o.containers {
		if t.owed && t.told != toldDelete && !t.excused {
			text := fmt.Sprintf("%s: Delete returned, and %v is the last event", key, t.told)
			list = append(list, Violation{Kind: LostDelete, Text: text})
			continue
		}
		if t.told != toldDelete && t.told != untold && !t.gap && !t.unknown && !living(key) {
			kind := LostExit
			if t.told == toldExit {
				kind = LostDelete
			}
			list = append(list, Violation{Kind: kind, Text: fmt.Sprintf("%s: %v is the last event", key, t.told)})
		}
	}
	return list
}

// forget drops what is finished, so that a long campaign does not grow.
func (o *order) forget(living func(key string) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key := range o.containers {
		if !living(key) {
			delete(o.containers, key)
		}
	}
	o.exits.forget(living)
	clear(o.ignored)
	clear(o.hungry)
}

// owe says that a Delete has returned, of a container whose delete must be told then.
func (o *order) owe(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.containers[key]
	if t == nil {
		t = &track{execs: map[string]*execTrack{}}
		_, t.id, _ = strings.Cut(key, "/")
		o.containers[key] = t
	}
	t.owed = true
}
