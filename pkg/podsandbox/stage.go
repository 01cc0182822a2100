// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package podsandbox

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// Stage is where a pod is in its life. Each leads to the next; Created leads to Stopping as well.
type Stage int

// The stages. Containers can be created while the pod is Running.
const (
	Creating Stage = iota // until Create has succeeded
	Created
	Running
	Stopping // also after a Stop that failed
	Stopped
)

var stageNames = [...]string{"creating", "created", "running", "stopping", "stopped"}

func (s Stage) String() string { return stageNames[s] }

// setStageLocked changes the stage, and whether containers can be created.
func (c *Controller) setStageLocked(p *sandbox, stage Stage) {
	p.stage = stage
	if stage == Running {
		c.tasks.AdmitContainers(p.pod.Adapt)
	} else {
		c.tasks.RefuseContainers(p.refuse("create a container"))
	}
}

// refuse is the error of an operation that the stage does not allow.
func (p *sandbox) refuse(op string) error {
	return fmt.Errorf("sandbox %q: %s while %v: %w", p.id, op, p.stage, errdefs.ErrFailedPrecondition)
}
