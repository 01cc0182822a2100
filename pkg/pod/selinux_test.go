// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/selinux/go-selinux"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/internal/testx"
)

// onSELinux is label.InitLabels of a machine with SELinux, on which the categories c5 and c9 are the next.
func onSELinux(options []string) (process, mount string, err error) {
	user, level := "system_u", "s0:c5,c9"
	for _, option := range options {
		switch name, value, _ := strings.Cut(option, ":"); name {
		case "user":
			user = value
		case "level":
			level = value
		case "role", "type": // of processes alone
		default:
			return "", "", errors.New("bad label option " + option)
		}
	}
	return user + ":system_r:container_t:" + level, user + ":object_r:container_file_t:" + level, nil
}

func offSELinux([]string) (process, mount string, err error) { return "", "", nil }

func TestPodFiles_HaveTheContextOfThePod(t *testing.T) {
	for name, test := range map[string]struct {
		config Config
		on     func([]string) (string, string, error)
		want   string
	}{
		"a level":               {Config{SELinux: &SELinuxOptions{Level: "s0:c1,c2"}}, onSELinux, "system_u:object_r:container_file_t:s0:c1,c2"},
		"all parts":             {Config{SELinux: &SELinuxOptions{User: "u", Role: "r", Type: "t", Level: "s0:c1"}}, onSELinux, "u:object_r:container_file_t:s0:c1"},
		"no level":              {Config{SELinux: &SELinuxOptions{Type: "t"}}, onSELinux, "system_u:object_r:container_file_t:s0"},
		"nothing":               {Config{}, onSELinux, "system_u:object_r:container_file_t:s0"},
		"a whole context":       {Config{MountLabel: "a:b:c:s0:c3"}, onSELinux, "a:b:c:s0:c3"},
		"SELinux is off":        {Config{SELinux: &SELinuxOptions{Level: "s0:c1,c2"}}, offSELinux, ""},
		"off, a whole context":  {Config{MountLabel: "a:b:c:s0:c3"}, offSELinux, ""},
		"the host's /dev/shm":   {Config{IPC: ModeNode}, onSELinux, "system_u:object_r:container_file_t:s0"},
		"a pod with users, off": {Config{User: &idmap.Mappings{UIDs: mapping, GIDs: mapping}}, offSELinux, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := test.config.mountLabel(test.on)
			if err != nil || got != test.want {
				t.Errorf("context = %q, %v, want %q", got, err, test.want)
			}
			var names []string
			for _, fs := range test.config.fileSystems(1, 2, got) {
				names = append(names, fs.name)
				_, context, labelled := strings.Cut(fs.options, ",context=")
				if labelled != (test.want != "") || labelled && context != `"`+test.want+`"` {
					t.Errorf("options of %s = %s, want the context %q at the end", fs.name, fs.options, test.want)
				}
			}
			want := []string{etcDir, shmDir}
			if test.config.IPC == ModeNode { // CRI does not label the host's either
				want = []string{etcDir}
			}
			if diff := cmp.Diff(want, names); diff != "" {
				t.Errorf("file systems (-want +got):\n%s", diff)
			}
		})
	}
}

// On a machine that has SELinux.
func TestPodFiles_AreLabelled(t *testing.T) {
	if !selinux.GetEnabled() {
		if slices.Contains(strings.Split(os.Getenv("SHIM_TEST_REQUIRE"), ","), "selinux") {
			t.Fatal("needs SELinux, which SHIM_TEST_REQUIRE promises")
		}
		t.Skip("SKIPPED: needs SELinux (add \"selinux\" to SHIM_TEST_REQUIRE to make this a failure)")
	}
	p := create(t, request(t, func(r *Request) { r.Config.SELinux = &SELinuxOptions{Level: "s0:c1,c2"} }))
	testx.Must(t, os.WriteFile(filepath.Join(p.Bundle, "shm", "file"), nil, 0o600))
	for _, name := range []string{"etc/hostname", "etc/hosts", "etc/resolv.conf", "shm", "shm/file"} {
		got, err := selinux.FileLabel(filepath.Join(p.Bundle, name))
		if err != nil || !strings.HasSuffix(got, ":object_r:container_file_t:s0:c1,c2") {
			t.Errorf("context of %s = %q, %v", name, got, err)
		}
	}
}
