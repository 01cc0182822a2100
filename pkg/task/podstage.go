// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// PodStage is where the pod of a sandbox is in its life.
type PodStage int

// The stages.
const (
	PodCreating PodStage = iota // what its containers share is being made
	PodCreated
	PodStarted
	PodStopping // containers are being ended; after a failure it can be tried again
	PodStopped
)

var podStageNames = [...]string{"creating", "created", "running", "stopping", "stopped"}

func (s PodStage) String() string { return podStageNames[s] }

// podOp is what is asked of a pod.
type podOp int

const (
	podStart podOp = iota
	podStop
	podAdmit // a container
)

var podOpNames = [...]string{"start", "stop", "create a container"}

func (o podOp) String() string { return podOpNames[o] }

type podStep struct {
	from PodStage
	op   podOp
}

// podTable lists every legal step; one that is missing is refused. To what leads
// nowhere else all stages answer: status, wait, metrics. After ShutdownPod there
// is no pod, and nothing is found.
var podTable = map[podStep]PodStage{
	{PodCreated, podStart}: PodStarted, {PodCreated, podStop}: PodStopped,

	{PodStarted, podAdmit}: PodStarted, {PodStarted, podStop}: PodStopped,

	{PodStopping, podStop}: PodStopped, // joins one that is under way

	{PodStopped, podStop}: PodStopped,
}

// next is the stage that op leads to.
func (s PodStage) next(op podOp) (PodStage, error) {
	if to, ok := podTable[podStep{s, op}]; ok {
		return to, nil
	}
	return s, fmt.Errorf("%v while %v: %w", op, s, errdefs.ErrFailedPrecondition)
}
