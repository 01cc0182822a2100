// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"sandbox.internal/shim/pkg/inspect"
)

// Inspect returns all that is known about the container, with at most maxExecs of its execs. It never blocks.
func (c *Task) Inspect(maxExecs int) inspect.ContainerInfo {
	answer := c.Container.Inspect(maxExecs)
	answer.Settings = c.settings.List(c.annotations, c.options)
	answer.Annotations = c.annotations
	c.inspectParts(&answer)
	if s := c.CPUSet(); s != nil {
		answer.CPUSet = &inspect.CPUSet{
			Source: s.Source, CPUs: s.CPUs.String(), Mems: s.Mems.String(), Writes: s.Writes, Pinned: s.Pinned,
		}
		if s.Err != nil {
			answer.CPUSet.Error = s.Err.Error()
		}
	}
	return answer
}

// Notified returns what init reported of its readiness, or nil if Start does not wait for that.
func (c *Task) Notified() *inspect.Notify {
	var answer inspect.ContainerInfo
	c.inspectParts(&answer)
	return answer.Notify
}

func (c *Task) inspectParts(answer *inspect.ContainerInfo) {
	for _, p := range c.parts {
		if p.Inspect != nil {
			p.Inspect(answer)
		}
	}
}
