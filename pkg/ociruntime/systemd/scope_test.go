// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups"
)

// dirManager is a manager whose cgroup is a directory.
type dirManager struct {
	cgroups.Manager
	dir string
}

func (m dirManager) Path(string) string { return m.dir }

func TestScope_ChangesKeepTheOOMGroup(t *testing.T) {
	cgroups.TestMode = true // lets it write to other file systems
	t.Cleanup(func() { cgroups.TestMode = false })
	refused := errors.New("refused")
	for _, tc := range []struct {
		name          string
		keep, unified bool
		err           error
		want          string
	}{
		{"what is set", true, true, nil, "1"},
		{"what is refused", true, true, refused, "1"},
		{"what asks for another", false, true, nil, "0"},
		{"what is set on cgroup v1", true, false, nil, "0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := NewScope(dirManager{dir: t.TempDir()}, nil)
			s.unified = tc.unified
			file := filepath.Join(s.Path(""), oomGroup)
			must(t, os.WriteFile(file, []byte("1"), 0o600))
			err := s.change(t.Context(), tc.keep, func(context.Context) error {
				must(t, os.WriteFile(file, []byte("0"), 0o600))
				return tc.err
			})
			if !errors.Is(err, tc.err) {
				t.Errorf("change = %v, want %v", err, tc.err)
			}
			if got, err := os.ReadFile(file); string(got) != tc.want {
				t.Errorf("%s = %q, %v, want %q", oomGroup, got, err, tc.want)
			}
		})
	}
}

func TestScope_ChangesExcludeEachOther(t *testing.T) {
	s := NewScope(dirManager{dir: t.TempDir()}, nil)
	err := s.change(t.Context(), true, func(context.Context) error {
		return s.change(soon(t, ErrSilent), true, func(context.Context) error {
			t.Error("a change began within another")
			return nil
		})
	})
	if !errors.Is(err, ErrSilent) {
		t.Errorf("change within another = %v, want its context's cause", err)
	}
	if err := s.change(t.Context(), true, func(context.Context) error { return nil }); err != nil {
		t.Errorf("change after another = %v, want none", err)
	}
}

func TestScope_SetCPUSetRefusesInvalidLists(t *testing.T) {
	silentBus(t)
	for _, tt := range []struct{ cpus, mems, want string }{
		{"many", "", `AllowedCPUs "many": must be`},
		{"0", "1-0", `AllowedMemoryNodes "1-0": must be`},
	} {
		s := NewScope(nil, &cgroups.Cgroup{})
		err := s.SetCPUSet(soon(t, ErrSilent), tt.cpus, tt.mems)
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("SetCPUSet(%q, %q) = %v, want an invalid argument with %q", tt.cpus, tt.mems, err, tt.want)
		}
	}
}
