// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

// Host is what the streams of all processes of a shim share. It does not
// change after NewHost.
type Host struct {
	Namespace      string          // containerd's
	Children       Children        // told of logging binaries
	StreamRegistry *StreamRegistry // where streaming clients meet their streams
	bounds         bounds          // of logging binaries
}

// NewHost makes a Host with an empty StreamRegistry.
func NewHost(namespace string, children Children) *Host {
	return &Host{Namespace: namespace, Children: children, StreamRegistry: NewStreamRegistry(), bounds: loggerBounds()}
}

// Children keeps the reaper of orphans away from a child that has a waiter. reaper.Reaper is one, and documents it.
type Children interface {
	Suspend() (resume func())
	Register(pid int) bool
	Unregister(pid int)
}
