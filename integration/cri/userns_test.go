// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Users of a pod are these of the machine.
const (
	firstUser = 200000
	users     = 65536
)

func mapping() []*runtimeapi.IDMapping {
	return []*runtimeapi.IDMapping{{HostId: firstUser, ContainerId: 0, Length: users}}
}

// ownUsers gives a pod a user namespace, as hostUsers: false does.
func ownUsers(c *runtimeapi.PodSandboxConfig) {
	c.GetLinux().GetSecurityContext().GetNamespaceOptions().UsernsOptions = &runtimeapi.UserNamespace{
		Mode: runtimeapi.NamespaceMode_POD, Uids: mapping(), Gids: mapping(),
	}
}

func TestUserNamespace_PodHasUsersOfItsOwn(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p", ownUsers)
		a, b := p.run("a", forever), p.run("b", forever)
		for _, file := range []string{"uid_map", "gid_map"} {
			if got := strings.Join(strings.Fields(a.exec("cat", "/proc/self/"+file)),
				" "); got != fmt.Sprintf("0 %d %d", firstUser, users) {
				e.Errorf("%s = %s, want 0 %d %d", file, got, firstUser, users)
			}
		}
		var st unix.Stat_t
		e.must(unix.Stat(fmt.Sprintf("/proc/%d", a.pid()), &st), "owner of the process")
		if st.Uid != firstUser || st.Gid != firstUser {
			e.Errorf("the container's root is %d:%d, want %d", st.Uid, st.Gid, firstUser)
		}
		if e.namespace(a.pid(), "user") != e.namespace(b.pid(), "user") {
			e.Error("a and b have different user namespaces")
		}
		a.wantExec("0", "stat", "-c", "%u", "/bin/busybox")
		a.wantExec("0", "stat", "-c", "%u", "/etc/hosts")
		a.wantExec("0", "stat", "-c", "%u", "/dev/mqueue") // of the IPC namespace
		a.exec("sh", "-c", "echo text >/root/file && chown 1000:1000 /root/file")
		a.wantExec("1000", "stat", "-c", "%u", "/root/file")
		a.exec("sh", "-c", "echo shared >/dev/shm/file")
		b.wantExec("shared", "cat", "/dev/shm/file")
		// It is root of its own network and name, not of the machine.
		a.exec("ip", "link", "show", "eth0")
		a.wantExec("refused", "sh", "-c", "echo x 2>/dev/null >/proc/sys/kernel/core_pattern || echo refused")
		a.wantExec("p", "hostname")
		p.remove()
	})
}

func TestUserNamespace_PodMayShareItsPIDs(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p", ownUsers, in(func(o *runtimeapi.NamespaceOption) { o.Pid = runtimeapi.NamespaceMode_POD }))
		a, b := p.run("a", forever), p.run("b", forever)
		if e.namespace(a.pid(), "pid") != e.namespace(b.pid(), "pid") {
			e.Error("a and b have different pid namespaces")
		}
		a.wantExec("0", "id", "-u")
		p.remove()
	})
}

func TestUserNamespace_VolumesAreMapped(t *testing.T) {
	eachWay(t, func(e *env) {
		dir := e.volume()
		for name, owner := range map[string]int{"roots": 0, "testers": 1000} {
			path := filepath.Join(dir, name)
			e.must(os.WriteFile(path, []byte(name), 0o600), "write")
			e.must(os.Chown(path, owner, owner), "chown")
		}
		mapped := func(m *runtimeapi.Mount) { m.UidMappings, m.GidMappings = mapping(), mapping() }
		p := e.pod("p", ownUsers)
		c, err := p.tryCreate("c", forever, mounted(dir, "/mapped", mapped), mounted(dir, "/plain"))
		e.must(err, "create")
		c.start()
		c.wantExec("roots", "cat", "/mapped/roots")
		c.wantExec("1000", "stat", "-c", "%u", "/mapped/testers")
		c.wantExec("65534", "stat", "-c", "%u", "/plain/roots")
		c.exec("sh", "-c", "echo new >/mapped/new")
		var st unix.Stat_t
		e.must(unix.Stat(filepath.Join(dir, "new"), &st), "owner of the new file")
		if st.Uid != 0 || st.Gid != 0 {
			e.Errorf("a file of the container's root belongs to %d:%d, want 0:0", st.Uid, st.Gid)
		}
		p.remove()
	})
}
