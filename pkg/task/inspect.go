// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/settings"
)

// Inspect returns all that is known about the container, with at most maxExecs of its execs. It never blocks.
func (c *Container) Inspect(maxExecs int) inspect.ContainerInfo {
	answer := c.Container.Inspect(maxExecs)
	answer.Settings = settings.List(c.annotations, c.options)
	answer.Annotations = c.annotations
	answer.HostRootfs = c.host.Inspect()
	if s := c.CPUSet(); s != nil {
		answer.CPUSet = &inspect.CPUSet{
			Source: s.Source, CPUs: s.CPUs.String(), Mems: s.Mems.String(), Writes: s.Writes, Pinned: s.Pinned,
		}
		if s.Err != nil {
			answer.CPUSet.Error = s.Err.Error()
		}
	}
	if s := c.Notified(); s != nil {
		answer.Notify = &inspect.Notify{Ready: s.Ready, Status: s.Status, Errno: s.Errno}
	}
	return answer
}
