// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

// Host is what the streams of all processes of a shim share. It does not
// change after NewHost.
type Host struct {
	Namespace string    // containerd's
	Children  Children  // told of logging binaries
	Exchange  *Exchange // where streaming clients meet their streams
	bounds    bounds    // of logging binaries
}

// NewHost makes a Host with an empty Exchange.
func NewHost(namespace string, children Children) *Host {
	return &Host{Namespace: namespace, Children: children, Exchange: NewExchange(), bounds: loggerBounds()}
}

// Children keeps who reaps orphans from collecting a child that has a waiter.
// It is what orphan.Reaper offers, and documented there.
type Children interface {
	Hold() (release func())
	Own(pid int)
	Disown(pid int)
}
