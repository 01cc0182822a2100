// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package hostrootfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/settings"
)

func findTestUser(t *testing.T, text string) (*hostUser, error) {
	t.Helper()
	dir := t.TempDir()
	passwd, group := filepath.Join(dir, "passwd"), filepath.Join(dir, "group")
	for file, content := range map[string]string{
		passwd: "root:x:0:0::/root:/bin/sh\nbuild:x:1001:1002:Build:/home/build:/bin/sh\nhomeless:x:1003:1003:::\n",
		group:  "root:x:0:\nbuild:x:1002:\ndisk:x:6:build,homeless\nkvm:x:7:build\n",
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return findUser(settings.Value{Key: "the key", Text: text}, passwd, group)
}

func TestFindUser(t *testing.T) {
	for text, want := range map[string]struct {
		user specs.User
		home string
	}{
		"build":       {specs.User{UID: 1001, GID: 1002, AdditionalGids: []uint32{6, 7}}, "/home/build"},
		"1001":        {specs.User{UID: 1001, GID: 1002, AdditionalGids: []uint32{6, 7}}, "/home/build"},
		"build:kvm":   {specs.User{UID: 1001, GID: 7}, "/home/build"},
		"homeless":    {specs.User{UID: 1003, GID: 1003, AdditionalGids: []uint32{6}}, ""},
		"4711:build":  {specs.User{UID: 4711, GID: 1002}, ""},
		"root":        {specs.User{}, "/root"},
		"build:12345": {specs.User{UID: 1001, GID: 12345}, "/home/build"},
	} {
		got, err := findTestUser(t, text)
		if err != nil {
			t.Errorf("findUser(%q) = %v", text, err)
			continue
		}
		if diff := cmp.Diff(want.user, got.user); diff != "" || got.home != want.home {
			t.Errorf("findUser(%q): home %q, want %q (-want +got):\n%s", text, got.home, want.home, diff)
		}
	}
	for _, text := range []string{"nobody-of-this-name", "build:none", "-1", "99999999999", "4711", ":", ":kvm"} {
		if _, err := findTestUser(t, text); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), `the key "`+text+`"`) {
			t.Errorf("findUser(%q) = %v, want an invalid argument with key and value", text, err)
		}
	}
}

func TestUser_OfAProcess(t *testing.T) {
	u, err := findTestUser(t, "build")
	if err != nil {
		t.Fatal(err)
	}
	h := Rootfs{user: u}
	umask := uint32(0o77)
	build := specs.User{UID: 1001, GID: 1002, AdditionalGids: []uint32{6, 7}}
	withUmask := build
	withUmask.Umask = &umask
	kill := []string{"CAP_KILL"}
	confined := func(p specs.Process) specs.Process {
		p.NoNewPrivileges = true // without capabilities it has those of the container
		return p
	}
	for _, tc := range []struct {
		name     string
		in, want specs.Process
	}{
		{"root", specs.Process{}, confined(specs.Process{User: build, Env: []string{"HOME=/home/build"}})},
		{
			"root with groups and a home",
			specs.Process{User: specs.User{AdditionalGids: []uint32{1}, Umask: &umask}, Env: []string{"HOME=/x"}},
			confined(specs.Process{User: withUmask, Env: []string{"HOME=/x"}}),
		},
		{"another user", specs.Process{User: specs.User{UID: 5}}, confined(specs.Process{User: specs.User{UID: 5}})},
		{
			"root with another group",
			specs.Process{User: specs.User{GID: 5}},
			confined(specs.Process{User: build, Env: []string{"HOME=/home/build"}}),
		},
		{
			"root with capabilities",
			specs.Process{Capabilities: &specs.LinuxCapabilities{
				Bounding: kill, Effective: kill, Permitted: kill, Inheritable: kill, Ambient: kill,
			}},
			specs.Process{
				User: build, Env: []string{"HOME=/home/build"},
				NoNewPrivileges: true, Capabilities: &specs.LinuxCapabilities{Bounding: kill},
			},
		},
	} {
		got := tc.in
		h.setUser(&got)
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
	root, process := Rootfs{user: &hostUser{}}, specs.Process{Capabilities: &specs.LinuxCapabilities{Permitted: kill}}
	if root.setUser(&process); process.NoNewPrivileges || len(process.Capabilities.Permitted) == 0 {
		t.Errorf("as root the process is %+v, want it with its privileges", process)
	}
	none, process := Rootfs{}, specs.Process{}
	if none.setUser(&process); !cmp.Equal(process, specs.Process{}) {
		t.Errorf("without the setting the process is %+v", process)
	}
}

func TestUser_IsRefusedBesideOthers(t *testing.T) {
	u, err := findTestUser(t, "build")
	if err != nil {
		t.Fatal(err)
	}
	spec := func(uid uint32, ns ...specs.LinuxNamespace) *specs.Spec {
		return &specs.Spec{Process: &specs.Process{User: specs.User{UID: uid}}, Linux: &specs.Linux{Namespaces: ns}}
	}
	if err := u.check(spec(0)); err != nil {
		t.Errorf("check = %v", err)
	}
	for want, s := range map[string]*specs.Spec{
		"process.user names user 7": spec(7), "user namespace": spec(0, specs.LinuxNamespace{Type: specs.UserNamespace}),
	} {
		if err := u.check(s); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `the key "build"`) {
			t.Errorf("check = %v, want %q", err, want)
		}
	}
}
