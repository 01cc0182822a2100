// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package hostrootfs

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/user"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/settings"
)

// The host's database of users: passwd(5), group(5).
const passwdFile, groupFile = "/etc/passwd", "/etc/group"

// hostUser is a user of the host, as whom processes of the container run.
type hostUser struct {
	setting settings.Value
	user    specs.User
	home    string
}

// findUser looks up a user or user:group, by name or number. A client of containerd can look only into an image.
func findUser(setting settings.Value, passwd, group string) (*hostUser, error) {
	const unknown = -1
	found, err := user.GetExecUserPath(setting.Text, &user.ExecUser{Uid: unknown, Gid: unknown}, passwd, group)
	switch {
	case err != nil:
	case found.Uid == unknown:
		err = errors.New("must be the name or number of a user of the host, or user:group")
	case found.Gid == unknown:
		err = errors.New("the user is not in " + passwd + ", so give the group as well, as user:group")
	}
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w: %w", setting.Key, setting.Text, err, errdefs.ErrInvalidArgument)
	}
	u := specs.User{UID: uint32(found.Uid), GID: uint32(found.Gid)}
	for _, gid := range found.Sgids {
		u.AdditionalGids = append(u.AdditionalGids, uint32(gid))
	}
	return &hostUser{setting: setting, user: u, home: found.Home}, nil
}

// check refuses a configuration that has a user of its own, or users that are not the host's.
func (u *hostUser) check(spec *specs.Spec) error {
	ofUsers := func(n specs.LinuxNamespace) bool { return n.Type == specs.UserNamespace }
	switch {
	case u == nil:
		return nil
	case !isRoot(spec.Process):
		return fmt.Errorf("%s %q: process.user names user %d; only one of them can be set: %w",
			u.setting.Key, u.setting.Text, spec.Process.User.UID, errdefs.ErrInvalidArgument)
	case slices.ContainsFunc(spec.Linux.Namespaces, ofUsers):
		return fmt.Errorf("%s %q: not possible in a user namespace, whose users are not the host's: %w",
			u.setting.Key, u.setting.Text, errdefs.ErrInvalidArgument)
	}
	return nil
}

// isRoot does not look at groups: an exec as root with another group is root.
func isRoot(p *specs.Process) bool { return p.User.UID == 0 }

// setUser makes a process that names root, as configurations do by default, one of the user of host-rootfs.user, with
// the user's groups and, unless it has another, home directory. No process of the container may become another user,
// unless the setting names root. setUser replaces what it changes.
func (h *Rootfs) setUser(p *specs.Process) {
	if h.user == nil {
		return
	}
	if h.user.user.UID != 0 {
		confine(p)
	}
	if !isRoot(p) {
		return
	}
	umask := p.User.Umask
	p.User = h.user.user
	p.User.Umask = umask
	hasHome := slices.ContainsFunc(p.Env, func(e string) bool { return strings.HasPrefix(e, "HOME=") })
	if h.user.home != "" && !hasHome {
		p.Env = append(slices.Clone(p.Env), "HOME="+h.user.home)
	}
}

// confine takes from a process what could make it root among the files of the host: what it executes runs as its user,
// even if it is setuid. Without ambient and inheritable capabilities no program gets any, unless it has file
// capabilities: with no_new_privs these give what was permitted before (cap_bprm_creds_from_file in the kernel's
// security/commoncap.c), so nothing is. The bounding set stays, or the kernel would refuse to execute such a program.
// An exec without capabilities of its own has those of the container, from which they are taken too.
func confine(p *specs.Process) {
	p.NoNewPrivileges = true
	if c := p.Capabilities; c != nil {
		p.Capabilities = &specs.LinuxCapabilities{Bounding: c.Bounding}
	}
}
