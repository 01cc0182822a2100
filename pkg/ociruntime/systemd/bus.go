// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"sync"
	"sync/atomic"
	_ "unsafe" // for go:linkname

	"github.com/coreos/go-systemd/v22/dbus"
	_ "github.com/opencontainers/cgroups/systemd" // which has the connection
)

// libcontainer offers no way to close its connection (cgroups v0.1.0 systemd/dbus.go), which libcontainerMu guards.
//
//go:linkname libcontainerConn github.com/opencontainers/cgroups/systemd.dbusC
var libcontainerConn *dbus.Conn

//go:linkname libcontainerMu github.com/opencontainers/cgroups/systemd.dbusMu
var libcontainerMu sync.RWMutex

// users is the number of those of libcontainer's connection.
var users atomic.Int64

// Connected is called before libcontainer may talk to systemd, and release afterwards, once: the last release closes
// the connection that libcontainer has opened. A connection takes two of the 256 sockets that the system bus has for
// all programs of root (max_connections_per_user in dbus-daemon(1)), and wakes the shim whenever systemd finishes a
// job.
func Connected() (release func()) {
	users.Add(1)
	return func() { closeUnused(&libcontainerMu, &libcontainerConn) }
}

// closeUnused takes a user from a connection, which mu guards, and closes the connection after the last one.
func closeUnused(mu *sync.RWMutex, conn **dbus.Conn) {
	mu.Lock()
	defer mu.Unlock()
	if users.Add(-1) == 0 && *conn != nil {
		(*conn).Close()
		*conn = nil
	}
}
