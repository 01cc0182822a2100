// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

// goneManager is the manager of a cgroup that systemd removes at any moment.
type goneManager struct{ cgroups.Manager }

func (goneManager) Exists() bool { return true }

func (goneManager) Freeze(cgroups.FreezerState) error {
	return &os.PathError{Op: "write", Path: "cgroup.freeze", Err: unix.ENODEV}
}

func TestDestroy_OfACgroupThatGoesMeanwhile(t *testing.T) {
	for name, destroy := range map[string]func(*box) error{
		"Destroy": func(b *box) error { return b.Destroy() },
		"Discard": func(b *box) error { return b.Discard() },
	} {
		t.Run(name, func(t *testing.T) {
			b := create(t, newConfig(t, "true"))
			c := b.RuntimeContainer.(*container)
			must(t, b.Init().Signal(syscall.SIGKILL))
			b.wait()
			c.manager = goneManager{c.manager}
			if err := destroy(b); err != nil {
				t.Errorf("%s = %v, want success", name, err)
			}
		})
	}
}

// The state of a container that has ended, and whose init's number another process has, is no reason.
func TestDestroy_GoesByMoreThanANumber(t *testing.T) {
	b := create(t, newConfig(t, "true")).start()
	b.wait()
	c := newConfig(t, "sleep", "1000")
	c.Spec.Linux.CgroupsPath = b.config.Spec.Linux.CgroupsPath
	c.Root = filepath.Join(filepath.Dir(b.config.Root), "another namespace")
	other := create(t, c).start()
	file := filepath.Join(stateDir(c.Root, c.ID), "state.json")
	text, err := os.ReadFile(file)
	must(t, err)
	const started = `"init_process_start":`
	must(t, os.WriteFile(file, bytes.Replace(text, []byte(started), []byte(started+"1"), 1), 0o600))
	must(t, b.Destroy())
	other.wait()
	must(t, os.WriteFile(file, text, 0o600))
	must(t, other.Destroy())
}

// Who cannot look for other containers must not take it that there are none.
func TestSubdirectories_SaysThatItCannotTell(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "namespace/container"), 0o700))
	must(t, os.WriteFile(filepath.Join(root, "file"), nil, 0o600))
	var err error
	withoutDescriptors(t, func() { _, err = subdirectories(root) })
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("without descriptors: %v, want %v", err, unix.EMFILE)
	}
	got, err := subdirectories(root)
	must(t, err)
	if want := []string{filepath.Join(root, "namespace/container")}; !slices.Equal(got, want) {
		t.Errorf("subdirectories = %q, want %q", got, want)
	}
}

// `docker run --cgroup-parent` puts a container into the cgroup of another.
func TestDestroy_LeavesAnotherContainerInTheCgroup(t *testing.T) {
	private := func(*process.Config) {}
	for place, below := range map[string]string{"there": "", "below": "/below"} {
		for _, tc := range []struct {
			name    string
			change  func(*process.Config)
			destroy func(*box) error
		}{
			{"Destroy", private, func(b *box) error { return b.Destroy() }},
			{"Destroy without a PID namespace", hostPIDs, func(b *box) error { return b.Destroy() }},
			{"Remove", private, func(b *box) error { return Remove(bounded(t), b.config) }},
			{"Remove without a PID namespace", hostPIDs, func(b *box) error { return Remove(bounded(t), b.config) }},
			{"Remove by SIGKILL", hostPIDs, func(b *box) error {
				c := b.config
				c.Stop = process.Stop{Signal: syscall.SIGKILL, Grace: time.Second}
				return Remove(bounded(t), c)
			}},
			{"exit", hostPIDs, func(b *box) error {
				if err := b.KillRemaining(bounded(t)); err != nil {
					return err
				}
				return b.Destroy()
			}},
		} {
			t.Run(tc.name+", "+place, func(t *testing.T) {
				config := newConfig(t, "true")
				tc.change(&config)
				b := create(t, config).start()
				b.wait()
				c := newConfig(t, "sleep", "1000")
				c.Root = filepath.Join(filepath.Dir(b.config.Root), "another namespace")
				c.Spec.Linux.CgroupsPath = b.config.Spec.Linux.CgroupsPath + below
				other := create(t, c).start()
				err := tc.destroy(b)
				if !errdefs.IsFailedPrecondition(err) {
					t.Errorf("with another container: %v, want %v", err, errdefs.ErrFailedPrecondition)
				}
				wantText(t, err, other.config.ID, "delete that container first")
				must(t, other.Init().Signal(syscall.SIGKILL)) // which fails if it is dead
				other.wait()
				must(t, other.Destroy())
				must(t, tc.destroy(b))
			})
		}
	}
}
