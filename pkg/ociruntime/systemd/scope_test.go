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
	refused := errors.New("refused")
	for _, tc := range []struct {
		name    string
		keep    []string
		unified bool
		err     error
		want    string
	}{
		{"what is set", keptFiles, true, nil, "1 1"},
		{"what is refused", keptFiles, true, refused, "1 1"},
		{"what asks for another", keptFiles[1:], true, nil, "0 1"},
		{"what is set on cgroup v1", keptFiles, false, nil, "0 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := NewScope(dirManager{dir: t.TempDir()}, nil)
			s.unified = tc.unified
			write := func(text string) {
				for _, file := range keptFiles[:2] { // the kernel has no third
					testx.Must(t, os.WriteFile(filepath.Join(s.Path(""), file), []byte(text), 0o600))
				}
			}
			write("1")
			err := s.change(t.Context(), tc.keep, func(context.Context) error { write("0"); return tc.err })
			if !errors.Is(err, tc.err) {
				t.Errorf("change = %v, want %v", err, tc.err)
			}
			var got []string
			for _, file := range keptFiles[:2] {
				text, err := os.ReadFile(filepath.Join(s.Path(""), file))
				testx.Must(t, err)
				got = append(got, string(text))
			}
			if got := strings.Join(got, " "); got != tc.want {
				t.Errorf("%q = %q, want %q", keptFiles[:2], got, tc.want)
			}
			if files, err := os.ReadDir(s.Path("")); len(files) != 2 {
				t.Errorf("files are %v, %v, want two", files, err)
			}
		})
	}
}

func TestScope_ChangesExcludeEachOther(t *testing.T) {
	s := NewScope(dirManager{dir: t.TempDir()}, nil)
	err := s.change(t.Context(), nil, func(context.Context) error {
		return s.change(soon(t, ErrSilent), nil, func(context.Context) error {
			t.Error("a change began within another")
			return nil
		})
	})
	if !errors.Is(err, ErrSilent) {
		t.Errorf("change within another = %v, want its context's cause", err)
	}
	if err := s.change(t.Context(), nil, func(context.Context) error { return nil }); err != nil {
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
