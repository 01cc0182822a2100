// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
)

// What was made in vain is not left on disk because systemd does not answer;
// what can be deleted again is.
func TestSystemdThatIsSilentKeepsNoDiscardedContainer(t *testing.T) {
	config := newConfig(t, "sleep", "1000")
	ran := filepath.Join(filepath.Dir(config.Bundle), "ran")
	config.Spec.Hooks = &specs.Hooks{Poststop: []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", "echo >> " + ran}}}}
	b := create(t, config)
	c, ok := b.RuntimeContainer.(*container)
	if !ok {
		t.Fatalf("Create = %T, want a container", b.RuntimeContainer)
	}
	must(t, b.Init().Signal(unix.SIGKILL))
	b.wait()
	c.lc.Config().Cgroups.Systemd = true // of which there may be none here
	silentBus(t)
	state := stateDir(config.Root, config.ID)

	if err := b.Destroy(); !errors.Is(err, errSystemdSilent) {
		t.Errorf("Destroy = %v, want %v", err, errSystemdSilent)
	}
	if _, err := os.Stat(state); err != nil {
		t.Errorf("state directory after a Destroy that can be tried again: %v", err)
	}
	if left := cgroupDirs(t, config); len(left) > 0 {
		t.Errorf("cgroups left: %v", left)
	}
	if err := b.Discard(); !errors.Is(err, errSystemdSilent) {
		t.Errorf("Discard = %v, want %v", err, errSystemdSilent)
	}
	if _, err := os.Stat(state); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("state directory after Discard: %v, want it gone", err)
	}
	if err := c.initFD.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Close of init's pidfd after Discard = %v, want it closed already", err)
	}
	if text, err := os.ReadFile(ran); string(text) != "\n" {
		t.Errorf("the poststop hook wrote %q, %v, want one line", text, err)
	}
}

// The cgroup and systemd share one time, of which systemd has a part in any case.
func TestSystemdIsWaitedForInWhatTheCgroupLeft(t *testing.T) {
	silentBus(t)
	gone := cgroup.New(map[string]string{"": "/sys/fs/cgroup/" + parent() + "/gone"})
	ctx, cancel := context.WithTimeout(t.Context(), unitTimeout/100)
	defer cancel()
	begin := time.Now()
	if err := endCgroup(ctx, gone, true); !errors.Is(err, errSystemdSilent) {
		t.Errorf("endCgroup = %v, want %v", err, errSystemdSilent)
	}
	if took := time.Since(begin); took < unitTimeout || took >= destroyTimeout {
		t.Errorf("endCgroup took %v, want %v", took, unitTimeout)
	}
}

// dirManager is a manager whose cgroup is a directory.
type dirManager struct {
	cgroups.Manager
	dir string
}

func (m dirManager) Path(string) string { return m.dir }

func TestSystemdChangesKeepTheOOMGroup(t *testing.T) {
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
			s := newScope(dirManager{dir: t.TempDir()}, nil)
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

func TestSystemdChangesTakeTurns(t *testing.T) {
	s := newScope(dirManager{dir: t.TempDir()}, nil)
	err := s.change(t.Context(), true, func(context.Context) error {
		return s.change(soon(t, errSystemdSilent), true, func(context.Context) error {
			t.Error("a change began within another")
			return nil
		})
	})
	if !errors.Is(err, errSystemdSilent) {
		t.Errorf("change within another = %v, want its context's cause", err)
	}
	if err := s.change(t.Context(), true, func(context.Context) error { return nil }); err != nil {
		t.Errorf("change after another = %v, want none", err)
	}
}
