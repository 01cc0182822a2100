// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// freezeTimeout bounds the wait for a cgroup to be frozen. It is an aid against processes that fork while they are
	// killed, and one that sleeps in the kernel may keep it from ever becoming complete.
	freezeTimeout = 100 * time.Millisecond

	// firstPoll and lastPoll bound the wait between two looks at a state that the kernel does not announce.
	firstPoll = time.Millisecond
	lastPoll  = 50 * time.Millisecond
)

// freezer is the pair of files that stop and continue all processes of a cgroup: freezer.state on v1
// (cgroup-v1/freezer-subsystem.rst), cgroup.freeze on v2 (cgroup-v2.rst, "Core Interface Files").
type freezer struct {
	dir            string
	file           string
	frozen, thawed string // what is written to file
	stateFile      string
	done           string // what stateFile holds once every process is stopped
}

// freezer returns the cgroup's freezer, whose dir is "" on a machine without one.
func (c *Cgroup) freezer() freezer {
	if c.unified {
		return freezer{c.Path(""), "cgroup.freeze", "1", "0", "cgroup.events", "frozen 1"}
	}
	return freezer{c.Path("freezer"), "freezer.state", "FROZEN", "THAWED", "freezer.state", "FROZEN"}
}

// asked reports whether the cgroup was told to freeze and not to thaw since; it may not be frozen yet.
func (f freezer) asked() bool {
	if f.dir == "" {
		return false
	}
	b, err := os.ReadFile(filepath.Join(f.dir, f.file))
	return err == nil && !strings.HasPrefix(string(b), f.thawed)
}

// freeze stops all processes and waits until they are, for freezeTimeout at most. It returns nil also when the time is
// over: the processes that are stopped are stopped.
func (f freezer) freeze(ctx context.Context) error {
	if f.dir == "" {
		return errors.New("no freezer controller")
	}
	ctx, cancel := context.WithTimeout(ctx, freezeTimeout)
	defer cancel()
	for wait := firstPoll; ; wait = min(2*wait, lastPoll) {
		// v1 stays at FREEZING when processes appeared meanwhile, until it is told again.
		if err := write(filepath.Join(f.dir, f.file), f.frozen); err != nil {
			return err
		}
		b, err := os.ReadFile(filepath.Join(f.dir, f.stateFile))
		if err != nil {
			return err
		}
		if strings.Contains(string(b), f.done) || !pause(ctx, wait) {
			return nil
		}
	}
}

// thaw lets the processes go on that freeze stopped. A cgroup that is gone, and one without a freezer, need no thawing.
func (f freezer) thaw() error {
	if f.dir == "" {
		return nil
	}
	if err := write(filepath.Join(f.dir, f.file), f.thawed); err != nil && !gone(err) {
		return err
	}
	return nil
}

// Thaw lets all processes go on, also those in nested cgroups, whoever stopped them. A cgroup that is gone is success.
func (c *Cgroup) Thaw() error { return c.freezer().thawTree() }

// thawTree lets all processes go on, also those that were frozen in a nested cgroup of their own.
func (f freezer) thawTree() error {
	if f.dir == "" {
		return nil
	}
	err := walk(f.dir, func(n node) error {
		file, err := n.open(f.file, unix.O_WRONLY)
		if err != nil {
			return err
		}
		return writeTo(file, f.thawed)
	}, stay)
	if err != nil && !gone(err) {
		return fmt.Errorf("thaw cgroup %s: %w", f.dir, err)
	}
	return nil
}

// write writes value to a control file, which must exist.
func write(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return writeTo(f, value)
}

// writeTo writes value to a control file and closes that.
func writeTo(f *os.File, value string) error {
	if _, err := f.WriteString(value); err != nil {
		_ = f.Close() // the write has failed already, and closing a control file does nothing
		return fmt.Errorf("%w (value %q)", err, value)
	}
	return f.Close()
}

// pause waits for d and reports whether it could; false means that ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
