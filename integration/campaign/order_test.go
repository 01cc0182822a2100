// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/api/events"
)

// parse makes events of text such as "create | start | exec-added x | exit 137", of the container c.
func parse(tb testing.TB, text string) []any {
	tb.Helper()
	var list []any
	for word := range strings.SplitSeq(text, " | ") {
		kind, id, _ := strings.Cut(word, " ")
		switch kind {
		case "create":
			list = append(list, &events.TaskCreate{ContainerID: "c"})
		case "start":
			list = append(list, &events.TaskStart{ContainerID: "c"})
		case "exec-added":
			list = append(list, &events.TaskExecAdded{ContainerID: "c", ExecID: id})
		case "exec-started":
			list = append(list, &events.TaskExecStarted{ContainerID: "c", ExecID: id})
		case "exit":
			if id == "" {
				id = "c"
			}
			list = append(list, &events.TaskExit{ContainerID: "c", ID: id})
		case "paused":
			list = append(list, &events.TaskPaused{ContainerID: "c"})
		case "resumed":
			list = append(list, &events.TaskResumed{ContainerID: "c"})
		case "oom":
			list = append(list, &events.TaskOOM{ContainerID: "c"})
		case "delete":
			list = append(list, &events.TaskDelete{ContainerID: "c"})
		case "exit-137":
			list = append(list, &events.TaskExit{ContainerID: "c", ID: "c", ExitStatus: 137})
		case "away", "killed", "hungry", "fed":
			list = append(list, kind)
		default:
			tb.Fatalf("%q in %q", word, text)
		}
	}
	return list
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
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := newOrder()
			for _, e := range parse(t, tt.events) {
				switch e {
				case "away":
					o.interrupted("ns", "c")
				case "hungry", "fed":
					o.expectOOM("ns", "c", e == "hungry")
				case "killed":
					o.excuse("ns", "c", false)
				default:
					o.add("ns", e, time.Now())
				}
			}
			found := o.take()
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

func TestOrder_ALostExitIsMissedAtTheEnd(t *testing.T) {
	o := newOrder()
	for _, e := range parse(t, "create | start") {
		o.add("ns", e, time.Now())
	}
	nobody := func(string) bool { return false }
	if left := o.unfinished(nobody); len(left) != 1 || left[0].Kind != LostExit {
		t.Errorf("unfinished = %q, want the container", left)
	}
	if left := o.unfinished(func(key string) bool { return key == "ns/c" }); len(left) != 0 {
		t.Errorf("unfinished = %q, though it lives", left)
	}
	o.add("ns", parse(t, "exit")[0], time.Now())
	if left := o.unfinished(nobody); len(left) != 1 || left[0].Kind != LostDelete {
		t.Errorf("unfinished = %q after its exit, want that its delete is lost", left)
	}
	o.add("ns", parse(t, "delete")[0], time.Now())
	if left := o.unfinished(nobody); len(left) != 0 {
		t.Errorf("unfinished = %q after its delete", left)
	}
}

// Wait may return as soon as the exit is in the shim's queue, and not before. The event may come earlier or later.
func TestOrder_P6WaitReturnsAfterTheExitWasTold(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before bool          // the event comes before Wait returns
		told   time.Duration // from the return of Wait on
		want   int
	}{
		{"told, and Wait returns", true, -time.Millisecond, 0},
		{"Wait returns, and the event comes", false, -time.Millisecond, 0},
		{"Wait returns before it is told", false, time.Second, 1},
		{"the same, and the event is faster", true, time.Second, 1},
	} {
		o := newOrder()
		for _, e := range parse(t, "create | start") {
			o.add("ns", e, time.Now())
		}
		exit := func() { o.add("ns", &events.TaskExit{ContainerID: "c", ID: "c", Pid: 7}, time.Now().Add(tt.told)) }
		if tt.before {
			exit()
		}
		o.began("ns", "c", "", 7)
		o.waited("ns", "c", "", 7, 0)
		if !tt.before {
			exit()
		}
		if found := o.take(); len(found) != tt.want {
			t.Errorf("%s: %v, want %d", tt.name, found, tt.want)
		}
	}
	o := newOrder()
	o.add("ns", parse(t, "create")[0], time.Now())
	o.began("ns", "c", "x", 9)
	o.waited("ns", "c", "x", 9, 0)
	if left := o.exits.missing(); len(left) != 1 || left[0].Kind != LostExit {
		t.Errorf("missing = %v, want the exit that Wait has returned", left)
	}
	o.interrupted("ns", "c")
	if left := o.exits.missing(); len(left) != 0 {
		t.Errorf("missing = %v, though containerd was away", left)
	}
}

// The shim may find out that containerd is back before the campaign does, and tell the exits of what ended meanwhile.
func TestOrder_ExitOfAnExecFromBeforeContainerdWasAwayMayBeMissed(t *testing.T) {
	o := newOrder()
	for _, e := range parse(t, "create | start | exec-added x | exec-started x") {
		o.add("ns", e, time.Now())
	}
	o.began("ns", "c", "x", 9)
	o.interrupted("ns", "c")
	o.add("ns", parse(t, "exit")[0], time.Now()) // of init: from now on nothing else may be missed
	o.waited("ns", "c", "x", 9, 137)
	if left := o.exits.missing(); len(left) != 0 {
		t.Errorf("missing = %v, though containerd was away when x ended", left)
	}
	o.forget(func(string) bool { return true })
	o.began("ns", "c", "y", 10)
	o.forget(func(string) bool { return true })
	o.waited("ns", "c", "y", 10, 137)
	if left := o.exits.missing(); len(left) != 1 {
		t.Errorf("missing = %v, want the exit of y, which began since", left)
	}
}

func TestOrder_ExitHasTheStatusThatWaitReturns(t *testing.T) {
	o := newOrder()
	for _, e := range parse(t, "create | start") {
		o.add("ns", e, time.Now())
	}
	o.add("ns", &events.TaskExit{ContainerID: "c", ID: "c", Pid: 7, ExitStatus: 3}, time.Now())
	o.began("ns", "c", "", 7)
	o.waited("ns", "c", "", 7, 4)
	if found := o.take(); len(found) != 1 || found[0].Kind != LostExit {
		t.Errorf("%v, want that the exit was told with another status", found)
	}
}

func TestOrder_PauseAndResumeAreToldBeforeTheExit(t *testing.T) {
	for text, want := range map[string]int{
		"create | start | exit": 1, "create | start | paused | exit": 1, "create | start | paused | resumed | exit": 0,
	} {
		o := newOrder()
		all := parse(t, text)
		for i, e := range all {
			if i == len(all)-1 {
				o.frozen("ns/c")
				o.frozen("ns/c")
			}
			o.add("ns", e, time.Now())
		}
		if found := o.take(); len(found) != want {
			t.Errorf("%s: %v, want %d", text, found, want)
		}
	}
}

// Not even of a container without any event.
func TestOrder_DeleteThatReturnedMustBeTold(t *testing.T) {
	dead := func(string) bool { return false }
	for _, text := range []string{"", "create | start", "create | start | exit"} {
		o := newOrder()
		if text != "" {
			for _, e := range parse(t, text) {
				o.add("ns", e, time.Now())
			}
		}
		o.owe("ns/c")
		found := o.unfinished(dead)
		if len(found) == 0 || found[0].Kind != LostDelete {
			t.Errorf("after %q: %v, want a lost delete", text, found)
		}
		o.interrupted("ns", "c")
		if found := o.unfinished(dead); len(found) != 0 {
			t.Errorf("after %q: %v, though containerd was away", text, found)
		}
	}
}

func TestOrder_P7DeleteReturnsAfterItsEvents(t *testing.T) {
	for _, tt := range []struct {
		events string
		want   int
	}{
		{"create | start | exit | delete", 0},
		{"create | start | exit", 1},
		{"create | start", 1},
	} {
		o := newOrder()
		for _, e := range parse(t, tt.events) {
			o.add("ns", e, time.Now())
		}
		o.delivered("ns/c")
		if found := o.take(); len(found) != tt.want {
			t.Errorf("%s, and Delete has returned: %v, want %d", tt.events, found, tt.want)
		}
	}
}
