// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/launcher/native"
)

// dropBounding follows capabilities/capabilities.go, ApplyBoundingSet.
func (c *command) dropBounding(r *native.Request) {
	for i := 0; i <= c.Capabilities.Last; i++ {
		if c.Capabilities.Bounding>>i&1 == 0 {
			// EINVAL: the kernel does not know the capability.
			r.Call(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, i).Tolerate(unix.EINVAL).OnError("unable to apply bounding set")
		}
	}
}

// setCapabilities follows capabilities/capabilities.go, ApplyCaps, except for the bounding set.
func (c *command) setCapabilities(r *native.Request) {
	header := packed(unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3})
	var sets []byte
	for _, shift := range []int{0, 32} {
		sets = append(sets, packed(unix.CapUserData{
			Effective:   uint32(c.Capabilities.Effective >> shift),
			Permitted:   uint32(c.Capabilities.Permitted >> shift),
			Inheritable: uint32(c.Capabilities.Inheritable >> shift),
		})...)
	}
	r.Call(unix.SYS_CAPSET, header, sets).OnError("unable to apply caps: can't apply capabilities")
	r.Call(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL).Tolerate(unix.EINVAL).
		OnError("unable to apply caps")
	for i := 0; i <= c.Capabilities.Last; i++ {
		if c.Capabilities.Ambient>>i&1 == 1 {
			r.Call(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, i).IgnoreErrors()
		}
	}
}
