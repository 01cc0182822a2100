// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"sandbox.internal/shim/cmd/sandboxctl/shim"
	"sandbox.internal/shim/pkg/inspect"
)

// askAll asks the shims of containers of which which is true, and of sandboxes, where they were not asked yet; and
// containerd about what shims of others run.
func (n *Node) askAll(ctx context.Context, which func(*container) bool) {
	var group errgroup.Group
	group.SetLimit(atOnce)
	var asked []*shimState
	ask := func(k key, address, runtime string) {
		if address == "" || n.shims[address] != nil {
			return
		}
		known := &shimState{Shim: Shim{Runtime: runtime, Address: address}, asked: time.Now()}
		n.shims[address] = known
		asked = append(asked, known)
		group.Go(func() error { n.askShim(ctx, known, k); return nil })
	}
	for k, c := range n.containers {
		if which(c) {
			ask(k, c.address, c.Runtime)
		}
	}
	for k, s := range n.sandboxes {
		ask(k, s.address, s.runtime)
	}
	_ = group.Wait() // what a shim does not answer is in its Error
	for _, known := range asked {
		n.spread(known)
	}
	var rest errgroup.Group
	rest.SetLimit(atOnce)
	for _, c := range n.containers {
		known := n.shims[c.address]
		switch {
		case !which(c):
		case known == nil: // no bundle, so no task
			c.State, c.Pid, c.Execs, c.Error = NoTask, 0, 0, ""
		case known.Error != "": // which says more than containerd, and waiting for that takes as long again
			c.State, c.Error = Dead, known.Error
		case known.other:
			rest.Go(func() error { n.askTask(ctx, &c.Container); return nil })
		}
	}
	_ = rest.Wait() // as above
}

// askShim asks one shim. Only the deadline ends what hangs.
func (n *Node) askShim(ctx context.Context, known *shimState, k key) {
	ctx, cancel := context.WithTimeout(ctx, n.config.Timeout)
	defer cancel()
	err := func() error {
		var err error
		if known.address, err = shim.Find(n.config.State, k.namespace, k.id); err != nil {
			return err
		}
		client, err := shim.Dial(ctx, known.address)
		if err != nil {
			return err
		}
		defer client.Close()
		if p, err := readProc(client.Peer); err == nil && strings.HasPrefix(p.name, "containerd-shim") {
			known.Pid = client.Peer // for one that does not answer
		}
		known.answer, err = client.Inspect(ctx, "")
		if known.other = errdefs.IsNotImplemented(err); known.other {
			known.Pid, _, err = client.Pid(ctx, k.id)
		} else if err == nil {
			known.Pid, known.Version = known.answer.Shim.Pid, known.answer.Shim.Version
		}
		return err
	}()
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		known.Error = fmt.Sprintf("the shim does not answer within %v", n.config.Timeout)
	case err != nil:
		known.Error = err.Error()
	}
}

// spread hands what a shim has answered to its containers.
func (n *Node) spread(known *shimState) {
	answered := map[string]*inspect.Container{}
	for i := range known.answer.Containers {
		answered[known.answer.Containers[i].ID] = &known.answer.Containers[i]
	}
	for _, c := range n.containers {
		if c.address != known.Address || known.other || known.Error != "" {
			continue
		}
		if a := answered[c.ID]; a != nil {
			c.take(a)
		} else { // it was deleted, or is being created
			c.State, c.Pid, c.Execs, c.Error = NoTask, 0, 0, ""
		}
	}
}

func (c *container) take(a *inspect.Container) {
	c.State, c.Pid, c.cgroup, c.Error = State(a.State), a.Pid, a.Cgroup, ""
	c.ExitStatus = 0
	if a.Exit != nil {
		c.ExitStatus = uint32(a.Exit.Status)
	}
	if c.groupPid != c.Pid {
		c.ExecsStarted = 0 // of the task before
	}
	// Events are told later than the shim has counted, and may have been counted again.
	c.ExecsKnown, c.ExecsStarted = true, max(c.ExecsStarted, a.Execs.Started)
	c.Execs = 0
	for _, e := range a.Execs.List {
		if e.State == string(Running) || e.State == string(Paused) {
			c.Execs++
		}
	}
	c.CPUSet = nil
	if s := a.CPUSet; s != nil {
		c.CPUSet = &CPUSet{
			Source: s.Source, CPUs: s.CPUs, Mems: s.Mems, Pinned: s.Pinned, Writes: s.Writes, Error: s.Error,
		}
	}
}
