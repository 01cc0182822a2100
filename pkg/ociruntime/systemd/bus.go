// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"sync"
	_ "unsafe" // for go:linkname

	"github.com/coreos/go-systemd/v22/dbus"
	_ "github.com/opencontainers/cgroups/systemd" // which has the connection
)

// libcontainer keeps its connection for as long as the program runs, which for runc is milliseconds, and offers no way
// to close it (cgroups v0.1.0 systemd/dbus.go). libcontainerMu guards it.
//
//go:linkname libcontainerConn github.com/opencontainers/cgroups/systemd.dbusC
var libcontainerConn *dbus.Conn

//go:linkname libcontainerMu github.com/opencontainers/cgroups/systemd.dbusMu
var libcontainerMu sync.RWMutex

// closeConn closes a connection that mu guards. Its owner makes another when it needs one.
func closeConn(mu *sync.RWMutex, conn **dbus.Conn) {
	mu.Lock()
	defer mu.Unlock()
	if *conn != nil {
		(*conn).Close()
		*conn = nil
	}
}

// users counts the users of a connection.
type users struct {
	mu sync.Mutex
	// +checklocks:mu
	count int
	// +checklocks:mu
	last func() // called when none is left
}

var connected = users{last: func() { closeConn(&libcontainerMu, &libcontainerConn) }}

// Connected is called before libcontainer may talk to systemd, and release afterwards: the last release closes the
// connection that libcontainer has opened. A connection takes two sockets of the system bus, which has 256 for all
// programs of a user (max_connections_per_user in dbus-daemon(1)): if they were kept, those of 128 shims would lock out
// all of root's programs. They would also wake each shim whenever systemd finishes a job.
func Connected() (release func()) { return connected.begin() }

func (u *users) begin() (end func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.count++
	return sync.OnceFunc(u.end)
}

func (u *users) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.count--; u.count == 0 {
		u.last()
	}
}
