// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// sweepLimit is how many calls of one kind are made to fail in an operation; more are the same in a loop.
const sweepLimit = 200

// sweepPatience is how long an operation may take. The shim bounds most of what it waits for by more.
const sweepPatience = 15 * time.Second

// chosen are those of all that the variable lists, or else the short list; "all" is all.
func chosen(t *testing.T, variable string, all, short []string) []string {
	t.Helper()
	text := os.Getenv(variable)
	switch text {
	case "":
		return short
	case "all":
		return all
	}
	list := strings.Split(text, ",")
	for _, one := range list {
		if !slices.Contains(all, one) {
			t.Fatalf("%s=%s: %q is none of %v", variable, text, one, all)
		}
	}
	return list
}

// In each operation the first system call of a kind fails, then the second, and so on: after each nothing is left,
// nobody else is harmed, the shim lives, and the error says what failed. strace counts the calls of each thread by
// themselves. SHIM_SWEEP_OPS, SHIM_SWEEP_CALLS and SHIM_SWEEP_ERRORS choose; make sweep runs all. Calls of different
// kinds are made to fail at the same time, in containerds of their own, as many as -parallel says.
func TestSweep(t *testing.T) {
	harness.OursOnly(t, "what is left after a system call fails")
	var names []string
	for _, o := range sweepOps() {
		names = append(names, o.name)
	}
	ops := chosen(t, "SHIM_SWEEP_OPS", names, []string{"create", "exec", "kill", "delete"})
	errs := chosen(t, "SHIM_SWEEP_ERRORS", sweepErrors, []string{"ENOMEM"})
	kinds := kindsToFail(t)
	s := newSweep(t, os.Getenv("SHIM_SWEEP_RESULTS"))
	for _, o := range sweepOps() {
		if !slices.Contains(ops, o.name) || s.has(o.name, errs, kinds) {
			continue
		}
		var made map[string]int
		t.Run(o.name+"/calls", func(t *testing.T) { made = callsOf(t, o, sweepCalls) })
		for _, e := range errs {
			t.Run(o.name+"/"+e, func(t *testing.T) {
				for _, c := range kinds(o.name, e) {
					if k := (kind{o.name, e, c}); made[c] > 0 && !s.done(k) {
						t.Run(c, func(t *testing.T) {
							t.Parallel()
							s.one(t, o, k)
						})
					} else if !s.done(k) {
						s.add(result{kind: k}) // the operation makes no such call
					}
				}
			})
			got := s.sum(o.name, e)
			t.Logf("%s %s: %s", o.name, e, got)
			fmt.Fprintf(os.Stderr, "sweep: %s: %s %s: %s\n", time.Now().UTC().Format(time.TimeOnly), o.name, e, got)
		}
	}
	s.report(t, ops, errs)
}

// kindsToFail returns the calls that are made to fail in an operation with an error: those that SHIM_SWEEP_CALLS lists,
// "all", "possible" for those that may return the error by their manual pages, or without the variable a few.
func kindsToFail(t *testing.T) func(op, errno string) []string {
	t.Helper()
	const variable = "SHIM_SWEEP_CALLS"
	if os.Getenv(variable) == "possible" {
		return func(_, errno string) []string { return possible(errno) }
	}
	short := []string{"mkdirat", "pipe2", "memfd_create", "socketpair", "mount", "unlinkat", "write", "ppoll", "clone"}
	calls := chosen(t, variable, sweepCalls, short)
	return func(op, _ string) []string {
		if len(calls) == len(short) && op == "create" { // which writes much
			return slices.DeleteFunc(slices.Clone(calls), func(c string) bool { return c == "write" })
		}
		return calls
	}
}

// callsOf lists the calls that an operation makes, by their number.
func callsOf(t *testing.T, o sweepOp, calls []string) map[string]int {
	t.Helper()
	w := newWorld(newFake(t))
	w.begin(o)
	trace := harness.Trace(t, calls...)
	detach := trace.Into(w.target().Pid)
	err := o.do(w)
	detach()
	w.Must(err, o.name)
	w.Must(w.finish(), "finish")
	w.end()
	made := trace.Calls()
	t.Logf("%v", made)
	if len(made) == 0 && len(calls) == len(sweepCalls) {
		t.Errorf("%s makes no system call", o.name)
	}
	return made
}

// one makes the calls of one kind fail, one after the other.
func (s *sweep) one(t *testing.T, o sweepOp, k kind) {
	t.Helper()
	c := &result{kind: k}
	defer func() {
		if t.Failed() && len(c.Bad) == 0 {
			c.Bad = append(c.Bad, fmt.Sprintf("%s, %s, %s: something is left, or the run could not go on: see the log", k.Op, k.Call, k.Err))
		}
		s.add(*c)
	}()
	w := newWorld(newFake(t))
	state := regexp.MustCompile(`^(process \d+) \S+ \(\w+\)`)
	left := func() []string {
		all := w.Scope().Leaks()
		for i, leak := range all {
			all[i] = state.ReplaceAllString(leak, "$1")
		}
		return all
	}
	before := left()
	for n := 1; ; n++ {
		if n > sweepLimit {
			t.Logf("ended after %d", sweepLimit)
			break
		}
		fault := harness.Fault{Call: k.Call, Err: k.Err, When: fmt.Sprint(n)}
		before = harness.CheckSince(t, before, left)
		switch s.fail(t, w, o, fault, c) {
		case hit:
		case missed:
			w.end()
			return
		case useless:
			return
		case dead:
			w = newWorld(newFake(t))
			before = left()
		}
	}
	w.end()
}

// after is what can be done after a run.
type after int

const (
	hit     after = iota // the next call
	missed               // nothing: there was no such call any more
	useless              // nothing: what is there is not as it was
	dead                 // the next call, in a world of its own
)

// fail makes a call of an operation fail.
func (s *sweep) fail(t *testing.T, w *world, o sweepOp, fault harness.Fault, c *result) after {
	t.Helper()
	w.begin(o)
	faults := harness.Inject(t, fault)
	detach := faults.Into(w.target().Pid)
	began := time.Now()
	err := o.do(w)
	took := time.Since(began)
	detach()
	injected := faults.Injected()
	wrong := func(format string, args ...any) {
		text := fmt.Sprintf("%s, %v: ", o.name, fault) + fmt.Sprintf(format, args...) + "\n\t" +
			strings.Join(injected, "\n\t")
		c.Bad = append(c.Bad, text)
		t.Error(text)
	}
	if len(injected) > 0 {
		c.Runs++
	}
	if !harness.Alive(w.target().Pid) {
		died(w, c, wrong)
		return dead
	}
	switch {
	case took > sweepPatience && slices.ContainsFunc(injected, waitsForEver):
		c.Runtime++
		t.Logf("%v: Go's runtime or package syscall waits for ever", fault)
		w.Must(unix.Kill(w.target().Pid, unix.SIGKILL), "kill the shim that waits")
		removeDead(w)
		return dead
	case took > sweepPatience:
		wrong("hangs: %v", err)
	case err != nil && lost(err):
		c.Lost++
	case err != nil:
		c.Failed++
		if len(injected) == 0 {
			wrong("fails, though no call did: %v", err)
		} else if !saysWhat(err, w.bundle.ID, fault.Err) {
			wrong("the error does not say what failed: %v", err)
		}
	}
	if text := w.target().Log(); strings.Contains(text, "panic:") {
		wrong("panic: %s", text)
	}
	if finishErr := w.finish(); finishErr != nil {
		wrong("%v; the error was %v", finishErr, err)
		return useless
	}
	w.redial(w.shim)
	if err := w.bystanders(); err != nil {
		wrong("others are harmed: %v", err)
		return useless
	}
	t.Logf("%v: %v: %v", fault, took.Round(time.Millisecond), err)
	if len(injected) == 0 {
		return missed
	}
	return hit
}

// died tells the end of Go's runtime from ours, and removes what the dead shim had.
func died(w *world, c *result, wrong func(string, ...any)) {
	text := w.target().Log()
	if harness.GoRuntimeDied(text) {
		c.Runtime++
	} else {
		wrong("the shim died: %s", text)
	}
	removeDead(w)
}

// removeDead removes what a dead shim had, and ends the others.
func removeDead(w *world) {
	if w.pod == nil {
		_, err := w.DeleteCommand(w.home)
		w.Must(err, "delete command after the shim died")
		w.Remove(w.home)
	} else {
		endAll(w.Fake, w.shim, w.home)
	}
	_, err := w.DeleteCommand(w.bundle)
	w.Must(err, "delete command after the shim died")
	w.Remove(w.bundle)
	endAll(w.Fake, w.other, w.stays)
}

// saysWhat reports whether an error has words beside the id, the kernel's and the class.
func saysWhat(err error, id, errno string) bool {
	text := err.Error()
	for _, known := range []string{
		"container", "sandbox", "exec", id, `"x"`, errnos[errno].Error(), "resource exhausted", "internal", "unknown", "unavailable",
		"failed precondition", "invalid argument",
	} {
		text = strings.ReplaceAll(text, known, "")
	}
	return regexp.MustCompile(`[a-z]{3}`).MatchString(text)
}

var errnos = map[string]unix.Errno{
	"ENOMEM": unix.ENOMEM, "EMFILE": unix.EMFILE, "ENFILE": unix.ENFILE, "ENOSPC": unix.ENOSPC, "EIO": unix.EIO,
	"EINTR": unix.EINTR, "EAGAIN": unix.EAGAIN,
}
