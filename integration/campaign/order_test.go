// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/api/events"
)

// step does to the order what a word says of the container c: an event, such as "exec-added x", what the campaign itself
// knows, such as "away", or the end of all, by which what is unfinished is found.
func step(tb testing.TB, o *order, word string) (found []Violation) {
	tb.Helper()
	kind, id, _ := strings.Cut(word, " ")
	pid := map[string]int{"": 7, "x": 9, "y": 10}[id]
	add := func(event any) { o.add("ns", event, time.Now()) }
	exit := func(told time.Duration, status uint32) {
		o.add("ns", &events.TaskExit{ContainerID: "c", ID: cmp.Or(id, "c"), Pid: uint32(pid), ExitStatus: status}, time.Now().Add(told))
	}
	switch kind {
	case "create":
		add(&events.TaskCreate{ContainerID: "c"})
	case "start":
		add(&events.TaskStart{ContainerID: "c"})
	case "exec-added":
		add(&events.TaskExecAdded{ContainerID: "c", ExecID: id})
	case "exec-started":
		add(&events.TaskExecStarted{ContainerID: "c", ExecID: id})
	case "exit":
		exit(0, 0)
	case "exit-137":
		exit(0, 137)
	case "exit-told-earlier":
		exit(-time.Millisecond, 0)
	case "exit-told-later":
		exit(time.Second, 0)
	case "paused":
		add(&events.TaskPaused{ContainerID: "c"})
	case "resumed":
		add(&events.TaskResumed{ContainerID: "c"})
	case "oom":
		add(&events.TaskOOM{ContainerID: "c"})
	case "delete":
		add(&events.TaskDelete{ContainerID: "c"})
	case "away":
		o.interrupted("ns", "c")
	case "hungry", "fed":
		o.expectOOM("ns", "c", kind == "hungry")
	case "killed":
		o.excuse("ns", "c", false)
	case "frozen":
		o.frozen("ns/c")
	case "began":
		o.began("ns", "c", id, pid)
	case "waited":
		o.waited("ns", "c", id, pid, 0)
	case "deleted": // Delete has returned
		o.owe("ns/c")
	case "round":
		o.forget(func(string) bool { return true })
	case "end", "alive":
		return o.unfinished(func(string) bool { return kind == "alive" })
	default:
		tb.Fatalf("%q is no step", word)
	}
	return nil
}

func TestOrder(t *testing.T) {
	for _, tt := range []struct {
		name, events string
		want         []Kind
	}{
		{"a whole life", "create | start | exec-added x | exec-started x | exit x | exit | delete", nil},
		{"never started", "create | exit | delete", nil},
		{"created again", "create | exit | delete | create | start | exit | delete", nil},
		{"an exec that was never started", "create | start | exec-added x | exit | delete", nil},
		{"an exec id used again", "create | start | exec-added x | exec-added x | exec-started x | exit x | exec-added x | exit | delete", nil},
		{"an OOM kill", "create | start | oom | exit | delete", nil},
		{"P1: no exit of init", "create | start | delete", []Kind{LostExit}},
		{"P1: start before create", "start", []Kind{OutOfOrder}},
		{"P1: two starts", "create | start | start", []Kind{OutOfOrder}},
		{"P1: two exits", "create | start | exit | exit", []Kind{OutOfOrder}},
		{"P1: exit after delete", "create | start | exit | delete | exit", []Kind{OutOfOrder}},
		{"P2: started before added", "create | start | exec-started x", []Kind{OutOfOrder}},
		{"P2: exit before started", "create | start | exec-added x | exit x", []Kind{OutOfOrder}},
		{"P2: two exits", "create | start | exec-added x | exec-started x | exit x | exit x", []Kind{OutOfOrder}},
		{"P3: no exit of an exec", "create | start | exec-added x | exec-started x | exit | delete", []Kind{LostExit}},
		{
			"P3: exit of an exec after init's", "create | start | exec-added x | exec-started x | exit | exit x",
			[]Kind{LostExit, OutOfOrder},
		},
		{"P4: an exec starts after init's exit", "create | start | exec-added x | exit | exec-started x", []Kind{OutOfOrder}},
		{"P5: OOM after the exit", "create | start | exit | oom", []Kind{OutOfOrder}},
		{"P5: OOM before the start", "create | oom", []Kind{OutOfOrder}},
		{"P5: no OOM before the exit", "hungry | create | start | exit-137 | delete", []Kind{OutOfOrder}},
		{"hunger", "hungry | create | start | oom | exit-137 | delete", nil},
		{"hunger, and a kill", "hungry | create | start | fed | exit-137 | delete", nil},
		{"containerd was away at the exit", "create | start | away | delete", nil},
		{"containerd was away at the create", "away | exit | delete", nil},
		{"containerd was away at the next create", "create | exit | delete | away | start | exit | delete", nil},
		{"containerd was away, and hears it again", "create | start | away | start | exit | delete", nil},
		{
			"containerd was away while execs ended", "create | start | exec-added x | exec-started x | away | exec-added x | exit | delete",
			nil,
		},
		{"after containerd was away", "create | away | start | start", []Kind{OutOfOrder}},
		{"the shim was killed", "create | start | exec-added x | exec-started x | killed | exit | delete", nil},
		{"it lives at the end", "create | start | alive", nil},
		{"the exit is missed at the end", "create | start | end", []Kind{LostExit}},
		{"the delete is missed at the end", "create | start | exit | end", []Kind{LostDelete}},
		{"nothing is missed at the end", "create | start | exit | delete | end", nil},
		{"P6: told, and Wait returns", "create | start | exit-told-earlier | began | waited", nil},
		{"P6: Wait returns, and the event comes", "create | start | began | waited | exit-told-earlier", nil},
		{"P6: Wait returns before it is told", "create | start | began | waited | exit-told-later", []Kind{OutOfOrder}},
		{"P6: the same, and the event is faster", "create | start | exit-told-later | began | waited", []Kind{OutOfOrder}},
		{"P6: the exit that Wait returned never comes", "create | began x | waited x | alive", []Kind{LostExit}},
		{"P6: the same, and containerd was away", "create | began x | waited x | away | alive", nil},
		{"P6: another status than Wait returned", "create | start | exit-137 | began | waited", []Kind{LostExit}},
		// The shim may find out that containerd is back before the campaign does, and tell the exits of what ended meanwhile.
		{"P6: an exec from before containerd was away", "create | start | exec-added x | exec-started x | began x | away | exit | waited x | alive", nil},
		{"P6: and one that began since, in another round", "create | start | away | exit | round | began y | round | waited y | alive", []Kind{LostExit}},
		{"a Pause and a Resume that nobody told", "create | start | frozen | frozen | exit", []Kind{OutOfOrder}},
		{"a Resume that nobody told", "create | start | paused | frozen | frozen | exit", []Kind{OutOfOrder}},
		{"a Pause and a Resume", "create | start | paused | resumed | frozen | frozen | exit", nil},
		{"Delete returned without any event", "deleted | end", []Kind{LostDelete}},
		{"Delete returned without an exit", "create | start | deleted | end", []Kind{LostDelete}},
		{"Delete returned without its delete", "create | start | exit | deleted | end", []Kind{LostDelete}},
		{"Delete returned, and containerd was away", "create | start | exit | deleted | away | end", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := newOrder()
			var found []Violation
			for word := range strings.SplitSeq(tt.events, " | ") {
				found = append(found, step(t, o, word)...)
			}
			found = append(o.take(), found...)
			var kinds []Kind
			for _, v := range found {
				kinds = append(kinds, v.Kind)
			}
			if fmt.Sprint(kinds) != fmt.Sprint(tt.want) {
				t.Errorf("%q: %v, want %v", tt.events, found, tt.want)
			}
		})
	}
}
