// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/reaper"
)

func TestStartWithoutPermissionToRunTheProgram(t *testing.T) {
	fd, err := unix.MemfdCreate("not executable", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "not executable")
	defer file.Close()
	if err := file.Chmod(0); err != nil {
		t.Fatal(err)
	}
	if p, err := (&Launcher{file: file, reaper: reaper.New()}).Start(t.Context(), &Command{Args: []string{"true"}, Init: file}); !errors.Is(err, ErrNotStarted) {
		t.Errorf("Start = %v, %v, want %v", p, err, ErrNotStarted)
	}
}

func child(t *testing.T, args ...string) *os.Process {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // dead already is as good
		_ = cmd.Wait()         // so is waited for
	})
	return cmd.Process
}

func TestFollow(t *testing.T) {
	r := (&Command{Args: []string{"true"}, Unified: "/x"}).steps()
	var forks []uint32
	for i, s := range r.steps {
		if s.fork() {
			forks = append(forks, uint32(i))
		}
	}
	if len(forks) != 2 {
		t.Fatalf("forks at %v, want two", forks)
	}
	first, second, third := child(t, "true"), child(t, "true"), child(t, "sleep", "1000")
	reaper := reaper.New()
	defer reaper.Suspend()() // the test waits for the children
	a := &attempt{command: &Command{}, reaper: reaper, current: first}
	refused := func(pid int, step uint32, want string) {
		t.Helper()
		before := a.current
		if err := a.follow(r, pid, step); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("follow of process %d at step %d = %v, want that it %s", pid, step, err, want)
		}
		if a.current != before {
			t.Errorf("the refused process %d is the current one", pid)
		}
	}
	refused(1, forks[0], "must be a child of ours")
	refused(os.Getpid(), forks[0], "must be a child of ours")
	refused(1<<30, forks[0], "must be a child of ours")
	reaper.Register(second.Pid)
	refused(second.Pid, forks[0], "without an owner")
	reaper.Unregister(second.Pid)
	refused(second.Pid, forks[0]+1, "must be a fork")
	refused(second.Pid, uint32(len(r.steps)), "must be a fork")

	// What the later of two processes tells may come before.
	if err := a.follow(r, third.Pid, forks[1]); err != nil || a.current.Pid != third.Pid {
		t.Errorf("follow = %v and process %d is the current one, want %d", err, a.current.Pid, third.Pid)
	}
	if err := a.follow(r, second.Pid, forks[0]); err != nil || a.current.Pid != third.Pid {
		t.Errorf("follow = %v and process %d is the current one, want still %d", err, a.current.Pid, third.Pid)
	}
	for name, p := range map[string]*os.Process{"first": first, "second": second} {
		if err := isChild(p); err == nil {
			t.Errorf("the %s process can be waited for, want that follow did", name)
		}
	}
	refused(first.Pid, forks[1], "not told of")
}

// The process that ends may be frozen right before it does.
func TestInterruptWhileAProcessIsToEnd(t *testing.T) {
	r := (&Command{Args: []string{"true"}}).steps()
	fork := 0
	for !r.steps[fork].fork() {
		fork++
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	first, second := child(t, "sleep", "1000"), child(t, "sleep", "1000")
	a := &attempt{command: &Command{}, reaper: reaper.New(), current: first, socket: os.NewFile(uintptr(pair[0]), "socket")}
	defer a.close()
	defer unix.Close(pair[1])
	followed := make(chan error, 1)
	go func() { followed <- a.follow(r, second.Pid, uint32(fork)) }() // ends with first
	for following := false; !following; {
		select {
		case err := <-followed:
			t.Fatalf("follow = %v, want that it waits", err)
		default:
		}
		a.mu.Lock()
		following = a.ends != nil
		a.mu.Unlock()
	}
	a.interrupt()
	select {
	case err := <-followed:
		if err != nil {
			t.Errorf("follow = %v, want success", err)
		}
	case <-time.After(20 * time.Second):
		_ = first.Kill() // lets follow end
		t.Fatalf("follow did not end within 20 s: %v", <-followed)
	}
	if err := awaitDeath(second, time.Now().Add(20*time.Second)); err != nil {
		t.Errorf("wait for the second process = %v, want its end", err)
	}
}

// A change of credentials makes a process dumpable where fs.suid_dumpable is not 0.
func TestNoDumpableProcessGoesOn(t *testing.T) {
	for _, c := range []*Command{
		{Args: []string{"true"}, Unified: "/x", Namespaces: unix.CLONE_NEWNS},
		{Args: []string{"true"}, Unified: "/x", Namespaces: unix.CLONE_NEWNS | unix.CLONE_NEWUSER},
		{Args: []string{"true"}, Terminal: &Terminal{}, Namespaces: unix.CLONE_NEWNS | unix.CLONE_NEWUSER},
	} {
		r := c.steps()
		dumpable := true
		for i, s := range r.steps {
			switch {
			case s.fork() && dumpable:
				t.Errorf("%+v: dumpable at the fork of step %d", c, i)
			case s.call == unix.SYS_PRCTL && s.args[0].value == unix.PR_SET_DUMPABLE:
				dumpable = false
			case s.call == unix.SYS_SETNS || s.call == unix.SYS_SETRESUID || s.call == unix.SYS_SETUID || s.call == unix.SYS_SETGID:
				dumpable = dumpable || c.Namespaces&unix.CLONE_NEWUSER != 0 || s.call != unix.SYS_SETNS
			}
		}
		if dumpable {
			t.Errorf("%+v: dumpable at the end", c)
		}
	}
}
