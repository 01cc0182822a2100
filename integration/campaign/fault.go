// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// do does a step with all that happens at the same time. It returns when everything of it is over.
func (e *Env) do(ctx context.Context, s Step) (answers [2]string) {
	if e.trace != nil {
		began := time.Now()
		defer func() {
			fmt.Fprintf(e.trace, "%v: %s (%v)\n", s, result{answers: answers}, time.Since(began).Round(time.Millisecond))
		}()
	}
	e.count("steps")
	e.ending = s.endsShims()
	if s.Op == Pod || s.With == nil && s.Fault == nil { // a pod knows its own processes
		answers[0] = e.operate(ctx, s)
		return answers
	}
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() { // joined below
		defer close(done)
		if s.With != nil {
			answers[1] = e.operate(ctx, *s.With)
			return
		}
		answers[1] = e.fault(ctx, s, ended)
	}()
	answers[0] = e.operate(ctx, s)
	close(ended)
	<-done
	switch {
	case s.Fault == nil:
		return answers
	case s.Fault.Kind == KillShim && answers[1] == ok:
		answers[1] = e.settle(ctx, s)
	case s.Fault.Kind == KillContainerd:
		if err := e.restart(ctx); err != nil {
			answers[1] = "error: " + err.Error()
		}
	}
	if s.companion() == nil && answers[1] == ok {
		answers[1] = ""
	}
	return answers
}

// fault sends a signal some time after the beginning of the step, also if the step is over by then.
func (e *Env) fault(ctx context.Context, s Step, ended <-chan struct{}) string {
	f := *s.Fault
	p := e.places[s.Container]
	select {
	case <-time.After(f.After):
	case <-ctx.Done():
		return ok
	}
	switch f.Kind {
	case KillInit, StopInit:
		if f.Kind == KillInit {
			e.order.expectOOM(e.name, p.id, false)
		}
		e.signal(f, e.contained(p.pid))
		if f.Kind == KillInit { // on v1 the kernel does not end what is frozen
			return e.sleep(ctx, p, harness.Wake)
		}
	case KillExec:
		if s.Exec != noExec {
			e.signal(f, e.contained(e.pidOf(p, s.Exec)))
		}
	case KillContainerd:
		e.count("containerd killed")
		if err := e.daemon.Kill(); err != nil {
			return "error: kill containerd: " + err.Error()
		}
	case StopContainerd:
		e.signal(f, open(e.daemon.Pid(), func() bool { return true })) // our own child
	case KillShim, StopShim:
		e.signalShim(s, p, ended)
	case UpgradeShim:
		if s.Op != Batch {
			e.awaitShim(p, ended)
		}
		return e.upgrade(ctx, Step{Container: s.Container, Shared: s.Op == Batch})
	}
	return ok
}

// awaitShim returns when a place has a shim, or the step ends before.
func (e *Env) awaitShim(p *place, ended <-chan struct{}) {
	for len(e.alive(p)) == 0 {
		select {
		case <-ended:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// signalShim sends the signal to the shim of a place as soon as there is one, or to none if the step ends before.
func (e *Env) signalShim(s Step, p *place, ended <-chan struct{}) {
	for {
		var fds []int
		for _, pid := range e.alive(p) {
			fds = append(fds, e.openShim(pid))
		}
		if s.Fault.Kind == KillShim {
			e.excuse(s)
		}
		e.signal(*s.Fault, fds...)
		if len(fds) > 0 {
			return
		}
		select {
		case <-ended:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// excuse says that the shim of a step is about to be killed, and of which containers it is.
func (e *Env) excuse(s Step) {
	for _, i := range sharing(s.Container) {
		if id := e.idOf(e.places[i]); id != "" {
			e.order.excuse(e.name, id, s.Op == Create && i == s.Container)
		}
	}
}

// idOf is the id of the container in a place, which a step may be choosing.
func (e *Env) idOf(p *place) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return p.id
}

// signal does to processes what the fault says, and closes their descriptors.
func (e *Env) signal(f Fault, pidfds ...int) {
	first, what := unix.SIGKILL, "processes killed"
	if f.Kind == KillShim {
		what = "shims killed"
	}
	if f.For > 0 {
		first, what = unix.SIGSTOP, "stops"
	}
	for _, fd := range pidfds {
		if fd >= 0 && unix.PidfdSendSignal(fd, first, nil, 0) == nil { // or it has ended
			e.count(what)
		}
	}
	<-time.After(f.For)
	for _, fd := range pidfds {
		if fd < 0 {
			continue
		}
		if f.For > 0 {
			_ = unix.PidfdSendSignal(fd, unix.SIGCONT, nil, 0) // it may have been killed meanwhile
		}
		_ = unix.Close(fd)
	}
}

// open opens a process, if it is the right one: a number may stand for another process by now. It returns -1 if there
// is none.
func open(pid int, right func() bool) int {
	if pid <= 1 {
		return -1
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1
	}
	if !right() {
		_ = unix.Close(fd)
		return -1
	}
	return fd
}

// contained opens a process of a container of this worker.
func (e *Env) contained(pid int) int {
	return open(pid, func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		return err == nil && strings.Contains(string(text), "/"+e.name+"/")
	})
}

// openShim opens a shim of this worker's containerd.
func (e *Env) openShim(pid int) int {
	return open(pid, func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return err == nil && strings.Contains(string(text), e.daemon.Address)
	})
}

// allShims lists the shims of this worker's containerd, and those that are being started.
func (e *Env) allShims() []harness.Proc {
	return slices.DeleteFunc(harness.ShimsOf(e.daemon.Address, ""),
		func(p harness.Proc) bool { // one that cleans up after a shim, or checks whether it can succeed it
			return slices.Contains(p.Argv, "delete") || slices.Contains(p.Argv, "check-state")
		})
}

// shimID is the id of the container that a shim was started for.
func shimID(p harness.Proc) string {
	if i := slices.Index(p.Argv, "-id"); i >= 0 && i+1 < len(p.Argv) {
		return p.Argv[i+1]
	}
	return ""
}

// grouped reports whether the id of a container says that it was made in a place that shares a shim.
func grouped(id string) bool {
	var place, round, serial int
	n, err := fmt.Sscanf(id, "c%d-%d-%d", &place, &round, &serial)
	return err == nil && n == 3 && place >= firstGrouped
}

// settle returns when containerd has cleaned up after a shim that was killed. A shim that was not killed, since it was
// not there, or was gone before, has its containers removed, so that it makes no difference for the next steps.
func (e *Env) settle(ctx context.Context, s Step) string {
	if p := e.places[s.Container]; s.Op == Create {
		id := p.id
		if p.number >= firstGrouped {
			id = groupName
		}
		defer e.removeSocket(e.name, id)
	}
	for _, i := range sharing(s.Container) {
		p := e.places[i]
		if p.id == "" {
			continue
		}
		err := harness.PollFor(harness.Slow(20*time.Second), func() error {
			if state := e.state(ctx, p.id, ""); state != notFound {
				if len(e.alive(p)) > 0 { // it was not killed
					return errors.New(e.clear(ctx, p))
				}
				return fmt.Errorf("the shim of %s is dead, and its state is %q", p.id, state)
			}
			// containerd says so as soon as nobody answers, and then cleans up. It has forgotten the task at last.
			if answer := e.pids(ctx, p.id); answer != notFound {
				return fmt.Errorf("the shim of %s is dead, and Pids says %q", p.id, answer)
			}
			// Of a Create that has failed it has forgotten the task before. Until it has cleaned up, the id is in use.
			if _, err := os.Stat(e.bundle(p.id)); !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("the shim of %s is dead, and its bundle is still there: %w", p.id, err)
			}
			return nil
		})
		if err != nil {
			return "error: " + err.Error()
		}
		if err := e.forgetRecord(e.namespaced(ctx), p.id); err != nil {
			return "error: forget: " + err.Error()
		}
		p.closeStreams()
	}
	return ok
}

// removeSocket removes the socket of a shim that was killed after it had made it and before it told containerd where it
// is: nobody else can know of it, until the same id is used again.
func (e *Env) removeSocket(namespace, id string) {
	if harness.PodsPerShim() != "" && id == groupName { // it has a name that nobody can tell
		e.daemon.RemoveDeadSockets()
	}
	_ = os.Remove(e.daemon.ShimSocket(namespace, id)) // most often it is gone
}

// alive lists the shims of a place that live.
func (e *Env) alive(p *place) []int {
	var pids []int
	own := e.idOf(p)
	for _, shim := range e.allShims() {
		id := shimID(shim)
		if (p.number < firstGrouped && id == own || p.number >= firstGrouped && grouped(id)) &&
			harness.Alive(shim.Pid) {
			pids = append(pids, shim.Pid)
		}
	}
	return pids
}

// restartGently ends containerd as a service manager does and starts it again.
func (e *Env) restartGently(ctx context.Context) string {
	e.count("containerd restarted")
	if err := e.daemon.Stop(); err != nil {
		return "error: stop containerd: " + err.Error()
	}
	if err := e.restart(ctx); err != nil {
		return "error: " + err.Error()
	}
	return ok
}
