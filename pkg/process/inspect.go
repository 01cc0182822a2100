// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"cmp"
	"slices"

	"sandbox.internal/shim/pkg/inspect"
)

// Inspect returns what this package knows about the container, with at most maxExecs of its execs. It never blocks.
func (c *Container) Inspect(maxExecs int) inspect.ContainerInfo {
	s := c.init.Status()
	answer := inspect.ContainerInfo{
		ID: c.ID(), Bundle: s.Bundle, State: s.State.String(), Pid: s.Pid, Exit: shownExit(s),
		Launch: c.runtime.Launch(), Verdicts: c.Verdicts(), Execs: c.inspectExecs(maxExecs),
	}
	c.mu.Lock()
	watch := c.oom
	c.mu.Unlock()
	if watch != nil { // else it is being restored
		answer.OOMLimit = watch.Limit()
	}
	if group := c.Cgroup(); group.Exists() {
		answer.Cgroup = group.String()
	}
	return answer
}

func (c *Container) inspectExecs(most int) inspect.Execs {
	all := c.allExecs()
	slices.SortFunc(all, func(a, b *Process) int { return cmp.Compare(a.execID, b.execID) })
	execs := inspect.Execs{Started: c.execsStarted.Load(), Known: len(all)}
	for _, p := range all[:min(len(all), most)] {
		s := p.Status()
		one := inspect.Exec{ID: s.ID, State: s.State.String(), Pid: s.Pid, Exit: shownExit(s)}
		if group := p.execCgroup(); group != nil {
			used := group.Usage()
			one.CPU, one.Memory = used.CPU, used.Memory
		}
		execs.List = append(execs.List, one)
	}
	return execs
}

func shownExit(s Status) *inspect.Exit {
	if s.State != Stopped {
		return nil
	}
	return &inspect.Exit{Status: s.Exit.Status, At: s.Exit.At}
}
