// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/cmd/sandboxctl/measure"
	"sandbox.internal/shim/cmd/sandboxctl/shim"
	"sandbox.internal/shim/pkg/inspect"
)

// askShims asks all shims at the same time, with one deadline.
func (n *Node) askShims(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, n.config.Timeout)
	defer cancel()
	var work sync.WaitGroup
	for _, s := range n.shims {
		work.Go(func() { n.askShim(ctx, s) })
	}
	work.Wait()
}

// askShim asks one shim, or containerd about its containers if it is another runtime's. Only the deadline ends a call
// that hangs.
func (n *Node) askShim(ctx context.Context, s *shimState) {
	if s.Error == "" && s.Address != "" {
		switch err := s.inspect(ctx); {
		case errors.Is(err, context.DeadlineExceeded):
			s.Error = fmt.Sprintf("the shim does not answer within %v", n.config.Timeout)
		case err != nil:
			s.Error = err.Error()
		}
	}
	if s.Error != "" && n.isGone(s) {
		s.Shim = Shim{Runtime: s.Runtime}
		return
	}
	for _, c := range s.containers {
		i := slices.IndexFunc(s.answer.Containers, func(a inspect.Container) bool { return a.ID == c.ID })
		switch {
		case s.Error != "":
			c.State, c.Error = Dead, s.Error
		case s.other:
			n.askTask(ctx, &c.Container)
		case i >= 0: // else it was deleted, or is being created
			c.take(&s.answer.Containers[i])
		}
	}
}

func (s *shimState) inspect(ctx context.Context) error {
	client, err := shim.Dial(ctx, s.address)
	if err != nil {
		return err
	}
	defer client.Close()
	if p, err := measure.ReadProcess("/", client.Peer); err == nil && strings.HasPrefix(p.Name, "containerd-shim") {
		s.Pid = client.Peer // for one that does not answer
	}
	s.answer, err = client.Inspect(ctx, "")
	if s.other = errdefs.IsNotImplemented(err); s.other {
		s.Pid, _, err = client.Pid(ctx, s.keys[0].id)
	} else if err == nil {
		s.Pid, s.Version = s.answer.Shim.Pid, s.answer.Shim.Version
	}
	return err
}

func (c *container) take(a *inspect.Container) {
	c.State, c.Pid, c.cgroup = State(a.State), a.Pid, a.Cgroup
	c.Execs, c.ExecsStarted, c.ExecsKnown = a.Execs.Known, a.Execs.Started, true
	if a.Exit != nil {
		c.ExitStatus = uint32(a.Exit.Status)
	}
	if s := a.CPUSet; s != nil {
		c.CPUSet = &CPUSet{
			Source: s.Source, CPUs: s.CPUs, Mems: s.Mems, Pinned: s.Pinned, Writes: s.Writes, Error: s.Error,
		}
	}
}
