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

// askAll asks the shims of containers of which which is true, and of sandboxes, where they were not asked yet, and
// containerd about what shims of others run. The other shims of which counted is true are asked for their counters. All
// of that has one deadline.
func (n *Node) askAll(ctx context.Context, which func(*container) bool, counted func(address string) bool) {
	ctx, cancel := context.WithTimeout(ctx, n.config.Timeout)
	defer cancel()
	var group errgroup.Group
	group.SetLimit(atOnce)
	of := map[string][]*container{}
	for _, c := range n.containers {
		of[c.address] = append(of[c.address], c)
	}
	var told, recounted []*shimState
	for address, known := range n.shims {
		if !known.other && known.Error == "" && counted(address) {
			recounted = append(recounted, known)
			group.Go(func() error { known.count(ctx); return nil })
		}
	}
	ask := func(k key, address, runtime string) {
		if address == "" || n.shims[address] != nil {
			return
		}
		known := &shimState{Shim: Shim{Runtime: runtime, Address: address}, asked: time.Now()}
		n.shims[address] = known
		told = append(told, known)
		group.Go(func() error { n.askShim(ctx, known, k, of[address]); return nil })
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
	for _, known := range told {
		known.spread(of[known.Address])
	}
	for _, known := range append(told, recounted...) {
		known.spreadCounters(of[known.Address])
	}
	for _, c := range of[""] { // no bundle, so no task
		c.State, c.Pid, c.Execs, c.Error = NoTask, 0, 0, ""
	}
}

// askShim asks one shim, or containerd about its containers if it is another's. Only the deadline ends what hangs.
func (n *Node) askShim(ctx context.Context, known *shimState, k key, containers []*container) {
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
		if p, err := measure.ReadProcess(client.Peer); err == nil && strings.HasPrefix(p.Name, "containerd-shim") {
			known.Pid = client.Peer // for one that does not answer
		}
		known.answer, err = client.Inspect(ctx, "")
		if known.other = errdefs.IsNotImplemented(err); known.other {
			known.Pid, _, err = client.Pid(ctx, k.id)
		} else if err == nil {
			known.Pid, known.Version = known.answer.Shim.Pid, known.answer.Shim.Version
			known.histograms, known.execs, err = client.Histograms(ctx)
		}
		return err
	}()
	switch {
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

// spread hands what a shim has answered to its containers.
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
