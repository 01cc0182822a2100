// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/options"
)

// execCgroupOf tells whether each exec gets a cgroup of its own, and for how
// long one may run; 0: for ever.
func execCgroupOf(spec *specs.Spec, o options.Options) (on bool, timeout time.Duration, err error) {
	on, asked, err := switchOf(spec, annotationExecCgroup, "ExecCgroup", o.ExecCgroup)
	if err != nil {
		return false, 0, err
	}
	timeout, s, err := timeoutOf(spec, annotationExecTimeout, "ExecTimeout", o.ExecTimeout)
	switch {
	case err != nil:
		return false, 0, err
	case !on && timeout > 0 && (s.here || !asked.here):
		return false, 0, s.needs(annotationExecCgroup, "ExecCgroup")
	case !on:
		return false, 0, nil
	}
	return on, timeout, nil
}
