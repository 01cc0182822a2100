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

	"sandbox.internal/shim/cmd/sandboxctl/measure"
	"sandbox.internal/shim/cmd/sandboxctl/shim"
	"sandbox.internal/shim/pkg/inspect"
)

// askAll asks the shims of containers for which which is true, and of sandboxes, if they were not asked yet, and
// containerd about containers of other runtimes' shims. The other shims for which counted is true are asked for their
// counters. All of that has one deadline.
func (n *Node) askAll(ctx context.Context, which func(*container) bool, counted func(address string) bool) {
	ctx, cancel := context.WithTimeout(ctx, n.config.Timeout)
	defer cancel()
	var group errgroup.Group
	group.SetLimit(atOnce)
	of, keys := map[string][]*container{}, map[string][]key{}
	for k, c := range n.containers {
		of[c.address], keys[c.address] = append(of[c.address], c), append(keys[c.address], k)
	}
	for k, s := range n.sandboxes {
		keys[s.address] = append(keys[s.address], k)
	}
	var told, recounted []*shimState
	for address, known := range n.shims {
		if !known.other && known.Error == "" && counted(address) {
			recounted = append(recounted, known)
			group.Go(func() error { known.count(ctx); return nil })
		}
	}
	ask := func(address, runtime string) {
		if address == "" || n.shims[address] != nil {
			return
		}
		known := &shimState{Shim: Shim{Runtime: runtime, Address: address}, asked: time.Now()}
		n.shims[address] = known
		told = append(told, known)
		group.Go(func() error { n.askShim(ctx, known, keys[address], of[address]); return nil })
	}
	for _, c := range n.containers {
		if which(c) {
			ask(c.address, c.Runtime)
		}
	}
	for _, s := range n.sandboxes {
		ask(s.address, s.runtime)
	}
	_ = group.Wait() // what a shim does not answer is in its Error
	for _, known := range told {
		known.spread(of[known.Address])
		if known.gone {
			n.forgetShim(known.Address, of[known.Address])
		}
	}
	for _, known := range append(told, recounted...) {
		known.spreadCounters(of[known.Address])
	}
	for _, c := range of[""] { // no bundle, so no task
		c.State, c.Pid, c.Execs, c.Error = NoTask, 0, 0, ""
	}
}

// forgetShim forgets a shim none of whose containers has a bundle any more: nobody has its address.
func (n *Node) forgetShim(address string, containers []*container) {
	delete(n.shims, address)
	for _, c := range containers {
		c.address = ""
	}
	for _, s := range n.sandboxes {
		if s.address == address {
			s.address = ""
		}
	}
}

// askShim asks one shim, or containerd about its containers if it is another runtime's. Only the deadline ends a call
// that hangs. The shim is found by the first of keys, its containers and sandbox, whose bundle has not gone meanwhile.
func (n *Node) askShim(ctx context.Context, known *shimState, keys []key, containers []*container) {
	err := func() error {
		var k key
		var err error
		for _, k = range keys {
			known.address, err = shim.Find(n.config.State, k.namespace, k.id)
			if !errors.Is(err, shim.ErrNoBundle) {
				break
			}
		}
		if errdefs.IsNotImplemented(err) {
			known.other = true
			return nil
		}
		if err != nil {
			return err
		}
		client, err := shim.Dial(ctx, known.address)
		if err != nil {
			return err
		}
		defer client.Close()
		if p, err := measure.ReadProcess(client.Peer); err == nil && strings.HasPrefix(p.Name, "containerd-shim") {
			known.Pid = client.Peer // for one that does not answer
		}
		known.answer, err = client.Inspect(ctx, "")
		if known.other = errdefs.IsNotImplemented(err); known.other {
			known.Pid, _, err = client.Pid(ctx, k.id)
		} else if err == nil {
			known.Pid, known.Version = known.answer.Shim.Pid, known.answer.Shim.Version
			known.execs, err = client.Execs(ctx)
		}
		return err
	}()
	switch {
	case errors.Is(err, shim.ErrNoBundle):
		known.gone = true
	case errors.Is(err, context.DeadlineExceeded):
		known.Error = fmt.Sprintf("the shim does not answer within %v", n.config.Timeout)
	case err != nil:
		known.Error = err.Error()
	case known.other:
		for _, c := range containers {
			n.askTask(ctx, &c.Container)
		}
	}
}

// spread applies what a shim has answered to its containers.
func (s *shimState) spread(containers []*container) {
	if s.other && s.Error == "" { // containerd was asked
		return
	}
	answered := map[string]*inspect.Container{}
	for i := range s.answer.Containers {
		answered[s.answer.Containers[i].ID] = &s.answer.Containers[i]
	}
	for _, c := range containers {
		switch a := answered[c.ID]; {
		case s.Error != "":
			c.State, c.Error = Dead, s.Error
		case a != nil:
			c.take(a)
		default: // it was deleted, or is being created
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
	c.CPUSet = nil
	if s := a.CPUSet; s != nil {
		c.CPUSet = &CPUSet{
			Source: s.Source, CPUs: s.CPUs, Mems: s.Mems, Pinned: s.Pinned, Writes: s.Writes, Error: s.Error,
		}
	}
}
