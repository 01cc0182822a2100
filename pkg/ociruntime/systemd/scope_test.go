// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups"

	"sandbox.internal/shim/pkg/internal/testx"
)

// dirManager is a manager whose cgroup is a directory.
type dirManager struct {
	cgroups.Manager
	dir string
}

func (m dirManager) Path(string) string { return m.dir }

func TestScope_ChangesKeepWhatSystemdWritesAgain(t *testing.T) {
	cgroups.TestMode = true // lets it write to other file systems
	t.Cleanup(func() { cgroups.TestMode = false })
	for name, tc := range map[string]struct {
		before, asked string
		err           error
		want          string
	}{
		"what is set":            {"1", "", nil, "1"},
		"what is refused":        {"1", "", errors.New("refused"), "1"},
		"what asks for another":  {"0", "1", nil, "1"},
		"cgroup v1 without file": {"", "1", nil, "0"},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewScope(dirManager{dir: t.TempDir()}, nil)
			file := filepath.Join(s.Path(""), oomGroup)
			if tc.before != "" {
				testx.Write(t, file, tc.before)
			}
			err := s.change(func() error { testx.Write(t, file, "0"); return tc.err }, tc.asked)
			if !errors.Is(err, tc.err) {
				t.Errorf("change = %v, want %v", err, tc.err)
			}
			if got := testx.Read(t, file); got != tc.want {
				t.Errorf("%s = %q, want %q", oomGroup, got, tc.want)
			}
		})
	}
	s := NewScope(dirManager{dir: t.TempDir()}, nil)
	testx.Write(t, filepath.Join(s.Path(""), oomGroup), "1")
	testx.Must(t, s.change(func() error { return os.Remove(filepath.Join(s.Path(""), oomGroup)) }, "")) // with the cgroup
}

func TestScope_SetCPUSetRefusesInvalidLists(t *testing.T) {
	silentBus(t)
	for _, tt := range []struct{ cpus, mems, want string }{
		{"many", "", `AllowedCPUs "many"`},
		{"0", "1-0", `AllowedMemoryNodes "1-0"`},
	} {
		err := NewScope(nil, &cgroups.Cgroup{}).SetCPUSet(soon(t, ErrSilent), tt.cpus, tt.mems)
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("SetCPUSet(%q, %q) = %v, want an invalid argument with %q", tt.cpus, tt.mems, err, tt.want)
		}
	}
}
