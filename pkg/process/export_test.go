// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/limit"
)

const (
	ExecExitTimeout  = execExitTimeout
	RemainingTimeout = remainingTimeout
	UnknownStatus    = unknownStatus
	UnreadTimeout    = unreadTimeout
)

var ErrEndedByKill = errEndedByKill

func (c *Container) OOMKilled() { c.oomKilled() }

func (p *Process) Limits() *limit.Limits { return p.limits }

func (p *Process) Spec() *specs.Process { return p.spec }

func (p *Process) LockOps() { p.opLock <- struct{}{} }

func (p *Process) UnlockOps() { p.unlockOp() }
