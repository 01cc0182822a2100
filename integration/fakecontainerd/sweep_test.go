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
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// sweepLimit is how many calls of one kind are made to fail in an operation; more are the same in a loop.
const sweepLimit = 200

// sweepPatience is how long an operation may take. The shim bounds most of what it waits for by more.
const sweepPatience = 15 * time.Second

// cell counts the runs of an operation with an error.
type cell struct{ runs, failed, lost, runtime, bad int }

// sweep is the whole of it.
type sweep struct {
	*testing.T
	cells map[[2]string]*cell // by operation and error
	bad   []string
}

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
// themselves. SHIM_SWEEP_OPS, SHIM_SWEEP_CALLS and SHIM_SWEEP_ERRORS choose; make sweep runs all.
func TestSweep(t *testing.T) {
	harness.OursOnly(t, "what is left after a system call fails")
	var names []string
	for _, o := range sweepOps() {
		names = append(names, o.name)
	}
	ops := chosen(t, "SHIM_SWEEP_OPS", names, []string{"create", "exec", "kill", "delete"})
	short := []string{"mkdirat", "pipe2", "memfd_create", "socketpair", "mount", "unlinkat", "write", "ppoll", "clone"}
	calls := chosen(t, "SHIM_SWEEP_CALLS", sweepCalls, short)
	errs := chosen(t, "SHIM_SWEEP_ERRORS", sweepErrors, []string{"ENOMEM"})
	s := &sweep{T: t, cells: map[[2]string]*cell{}}
	for _, o := range sweepOps() {
		if !slices.Contains(ops, o.name) {
			continue
		}
		var made map[string]int
		t.Run(o.name+"/calls", func(t *testing.T) { made = callsOf(t, o, calls) })
		for _, e := range errs {
			s.cells[[2]string{o.name, e}] = &cell{}
			for _, c := range calls {
				tooMany := len(calls) == len(short) && o.name == "create" && c == "write"
				if made[c] > 0 && !tooMany {
					t.Run(strings.Join([]string{o.name, e, c}, "/"), func(t *testing.T) { s.one(t, o, c, e) })
				}
			}
			got := *s.cells[[2]string{o.name, e}]
			t.Logf("%s %s: %s", o.name, e, got)
			fmt.Fprintf(os.Stderr, "sweep: %s: %s %s: %s\n", time.Now().UTC().Format(time.TimeOnly), o.name, e, got)
		}
	}
	s.report(ops, errs)
}

func (c cell) String() string {
	return fmt.Sprintf("%d runs, %d failed, %d lost the connection, %d ended Go's runtime or hung there, %d are wrong",
		c.runs, c.failed, c.lost, c.runtime, c.bad)
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
func (s *sweep) one(t *testing.T, o sweepOp, call, errno string) {
	t.Helper()
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
	c := s.cells[[2]string{o.name, errno}]
	for n := 1; ; n++ {
		if n > sweepLimit {
			t.Logf("ended after %d", sweepLimit)
			break
		}
		w.begin(o)
		fault := harness.Fault{Call: call, Err: errno, When: fmt.Sprint(n)}
		faults := harness.Inject(t, fault)
		detach := faults.Into(w.target().Pid)
		began := time.Now()
		err := o.do(w)
		took := time.Since(began)
		detach()
		injected := faults.Injected()
		hit := len(injected) > 0
		wrong := func(format string, args ...any) {
			c.bad++
			text := fmt.Sprintf("%s, %v: ", o.name, fault) + fmt.Sprintf(format, args...) + "\n\t" +
				strings.Join(injected, "\n\t")
			s.bad = append(s.bad, text)
			t.Error(text)
		}
		if hit {
			c.runs++
		}
		if !harness.Alive(w.target().Pid) {
			s.died(w, c, wrong)
			return // the rest would be of a new world: it ends here
		}
		switch {
		case took > sweepPatience && slices.ContainsFunc(injected, forkPipe.MatchString):
			c.runtime++
			t.Logf("ended after %d: package syscall waits for ever", n)
			w.Must(unix.Kill(w.target().Pid, unix.SIGKILL), "kill the shim that waits")
			s.removeDead(w)
			return
		case took > sweepPatience:
			wrong("hangs: %v", err)
		case err != nil && lost(err):
			c.lost++
		case err != nil:
			c.failed++
			if !hit {
				wrong("fails, though no call did: %v", err)
			} else if !saysWhat(err, w.bundle.ID, errno) {
				wrong("the error does not say what failed: %v", err)
			}
		}
		if text := w.target().Log(); strings.Contains(text, "panic:") {
			wrong("panic: %s", text)
		}
		if err := w.finish(); err != nil {
			wrong("%v; the error was %v", err, err)
			return
		}
		before = harness.CheckSince(t, before, left)
		w.redial(w.shim)
		if err := w.bystanders(); err != nil {
			wrong("others are harmed: %v", err)
			return
		}
		t.Logf("%v: %v: %v", fault, took.Round(time.Millisecond), err)
		if !hit {
			break
		}
	}
	w.end()
}

// died tells the end of Go's runtime from ours, and removes what the dead shim had.
func (s *sweep) died(w *world, c *cell, wrong func(string, ...any)) {
	text := w.target().Log()
	if slices.ContainsFunc(runtimeDied, func(words string) bool { return strings.Contains(text, words) }) {
		c.runtime++
	} else {
		wrong("the shim died: %s", text)
	}
	s.removeDead(w)
}

// removeDead removes what a dead shim had, and ends the others.
func (s *sweep) removeDead(w *world) {
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

// report writes the table, to the log and to the file SHIM_SWEEP_TABLE.
func (s *sweep) report(ops, errs []string) {
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "operation\t%s\n", strings.Join(errs, "\t"))
	for _, o := range ops {
		row := []string{o}
		for _, e := range errs {
			c := s.cells[[2]string{o, e}]
			row = append(row, fmt.Sprintf("%d/%d/%d", c.runs, c.failed+c.lost, c.bad))
		}
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	_ = table.Flush() // into memory
	b.WriteString("\ncalls that failed / operations that failed by it / shims that died, hung or left something, or said nothing of the step\n")
	for _, text := range s.bad {
		b.WriteString("\n" + text + "\n")
	}
	s.Log("\n" + b.String())
	if name := os.Getenv("SHIM_SWEEP_TABLE"); name != "" {
		if err := os.WriteFile(name, []byte(b.String()), 0o644); err != nil {
			s.Error(err)
		}
	}
}
