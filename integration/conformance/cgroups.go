// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// takeCgroups makes sure that nobody else uses the suite's cgroups, which namespaces do not separate. The function it
// returns removes them; containerd's, which the suite makes for a shim, only when the suite did.
func takeCgroups() (release func() error, err error) {
	lock, err := os.Open("/sys/fs/cgroup")
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s, is another run going on: %w", lock.Name(), err), lock.Close())
	}
	if used := harness.InCgroup("/testing"); len(used) > 0 {
		err := fmt.Errorf(
			"cgroup testing has processes, of an earlier run or of a containerd with the namespace testing: %v", used)
		return nil, errors.Join(err, lock.Close())
	}
	_, err = harness.CgroupFilePath("/containerd", "cgroup.procs", "")
	before := err == nil
	return func() error {
		err := harness.RemoveCgroups("/testing")
		if !before {
			err = errors.Join(err, harness.RemoveCgroups("/containerd"))
		}
		return errors.Join(err, lock.Close())
	}, nil
}
