// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// bads are the successors that fail, by what harness calls them, and the class of what the shim then answers.
var bads = map[string]error{"refuses": errdefs.ErrFailedPrecondition, "gives way": errdefs.ErrInternal}

// install has containerd's shims be copies that releases replace.
func (e *Env) install(dir string) (err error) {
	if e.daemon.Env.Runtime != harness.Ours {
		return nil
	}
	e.installed, err = harness.InstallIn(dir, e.daemon.Env.Shim)
	e.daemon.Env.Shim = e.installed.Path
	return err
}

// endsShims reports whether shims may end in the step, as they do after their last container, or with its Create.
func (s Step) endsShims() bool {
	ends := func(op Op) bool { return slices.Contains([]Op{Create, Delete, Remove, Batch, Pod}, op) }
	return ends(s.Op) || s.With != nil && ends(s.With.Op) ||
		s.Fault != nil && (s.Fault.Kind == KillShim || s.Fault.Kind == KillContainerd)
}

// upgrade installs the next release and asks shims to become it: that of the step's place, or all that live. bad is
// installed instead, unless it is empty.
func (e *Env) upgrade(ctx context.Context, s Step) string {
	return e.upgradeAmong(ctx, s.Bad, func(shim harness.Proc) bool {
		return s.Shared || slices.Contains(e.alive(e.places[s.Container]), shim.Pid)
	})
}

// upgradeAmong asks the shims that are chosen, all at the same time.
func (e *Env) upgradeAmong(ctx context.Context, bad string, chosen func(harness.Proc) bool) string {
	if e.installed == nil { // the shims of others cannot do it
		return ok
	}
	shims := slices.DeleteFunc(e.allShims(), func(p harness.Proc) bool { return !chosen(p) })
	starting := harness.Children(e.daemon.Pid()) // commands, which have the arguments of the shims that they start
	shims = slices.DeleteFunc(shims, func(p harness.Proc) bool {
		return !harness.Alive(p.Pid) || slices.ContainsFunc(starting, func(s harness.Proc) bool { return s.Pid == p.Pid })
	})
	if len(shims) == 0 {
		return ok
	}
	install := e.installed.Next
	if bad != "" {
		install = func() error { return e.installed.Spoil(bad) }
	}
	if err := install(); err != nil {
		return "error: install: " + err.Error()
	}
	errs := make([]error, len(shims))
	var all sync.WaitGroup
	for i, shim := range shims {
		all.Go(func() {
			if errs[i] = e.ask(ctx, shim, bad); errs[i] != nil {
				errs[i] = fmt.Errorf("upgrade of shim %d, %q: %w", shim.Pid, shimID(shim), errs[i])
			}
		})
	}
	all.Wait()
	err := errors.Join(errs...)
	if bad != "" {
		err = errors.Join(err, e.installed.Next())
	}
	if err != nil {
		return "error: " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return ok
}

// socket is that of a shim.
func (e *Env) socket(shim harness.Proc) string {
	if harness.PodsPerShim() != "" {
		return e.daemon.SocketOf(shim.Pid)
	}
	group := shimID(shim)
	if grouped(group) {
		group = groupName
	}
	return e.daemon.ShimSocket(shim.Argv[slices.Index(shim.Argv, "-namespace")+1], group)
}

// sleep puts a container to sleep, or wakes it, by its shim, which may be ending. It changes nothing for others.
func (e *Env) sleep(ctx context.Context, p *place, how func(ctx context.Context, address, id string) error) string {
	if e.installed == nil { // the shims of others cannot do it
		return ok
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	alive := e.alive(p)
	for _, shim := range e.allShims() {
		if !slices.Contains(alive, shim.Pid) {
			continue
		}
		switch err := how(ctx, e.socket(shim), e.idOf(p)); {
		case err == nil:
			e.count("sleeps and wakes by hand")
		case errdefs.IsFailedPrecondition(err), errdefs.IsNotFound(err):
			e.count("sleeps refused")
		case harness.Alive(shim.Pid) && !e.ending:
			return "error: " + err.Error()
		}
	}
	return ok
}

// ask asks a shim for the installed program. It may refuse if something is under way, and may be ending.
func (e *Env) ask(ctx context.Context, shim harness.Proc, bad string) error {
	busy := len(harness.Children(shim.Pid)) > 0 // a shim without children may be one that ends
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	var upgraded bool
	var err error
	_ = harness.Poll(func() error { // a shim may be so young that it has no socket
		_, upgraded, err = harness.Upgrade(ctx, e.socket(shim), false)
		if e.ending && harness.Alive(shim.Pid) && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED)) {
			return err
		}
		return nil
	})
	switch {
	case err == nil && upgraded && bad == "":
		e.count("upgrades")
		return e.became(shim)
	case err == nil:
		return fmt.Errorf("upgraded is %t, and the program is %q", upgraded, bad)
	case errdefs.IsUnavailable(err):
		e.count("upgrades refused")
		return nil
	case bad != "" && errors.Is(err, bads[bad]):
		e.count("upgrades to bad programs")
		return nil
	case busy && !e.ending:
		return err
	}
	if alive := harness.PollFor(harness.Slow(5*time.Second), func() error {
		if harness.Alive(shim.Pid) {
			return errors.New("it lives")
		}
		return nil
	}); alive != nil {
		return fmt.Errorf("%w, and %w", err, alive)
	}
	return nil
}

// became returns an error unless the shim lives and runs the program that is installed.
func (e *Env) became(shim harness.Proc) error {
	program, err := os.Stat("/proc/" + strconv.Itoa(shim.Pid) + "/exe")
	installed, e2 := os.Stat(e.installed.Path)
	switch {
	case e.ending && err != nil:
		return nil
	case errors.Join(err, e2) != nil:
		return errors.Join(err, e2)
	case !os.SameFile(program, installed):
		return errors.New("it does not run the installed program")
	}
	return nil
}
